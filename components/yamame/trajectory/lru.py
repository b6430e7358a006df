"""The linear recurrent unit: complex channels that fade and turn at constant rates.

Each channel of the state is a complex number (arXiv 2303.06349, equation 7 and appendix A)

    ``h[t] = lambda h[t-1] + gamma (B x[t])``,  ``lambda = exp(-exp(nu) + i exp(theta))``,

and the output is ``Re(C h[t]) + D x[t]``. The decays do not depend on the input: unlike a gated
recurrence, a channel cannot decide to keep one timestep longer than another. ``gamma`` begins at
``sqrt(1 - |lambda|^2)``, so that states are of order one however long they are kept. A fresh
memory has ``h[t-1] = 0``.

The feed-forward part of the block takes the place of the paper's gated linear unit. Time constants
begin as in the gated encoders, uniformly on a logarithmic scale, instead of in a ring (lemma 3.2).

Source: Orvieto et al., "Resurrecting Recurrent Neural Networks for Long Sequences", 2023.
"""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from yamame.checks import Bounds, NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import Activation, TrajectoryKeys
from yamame.trajectory.blocks import BlockEncoder, RecurrentBlock, state_dtype
from yamame.trajectory.recurrent import TimeConstant
from yamame.trajectory.scan import complex_product, complex_scan, polar

Angle = Annotated[float, Bounds(above=0, most=2 * math.pi)]
"""Angle in radians."""


class LRUBlock(RecurrentBlock):
    """A block with the recurrence of the module.

    Args:
        d_model: Size D of the input and of the output, and number of complex channels.
        d_ff: Hidden size of the feed-forward part.
        activation: Activation of the feed-forward part.
        max_time_constant: Longest initial time constant of a channel, in timesteps.
        max_phase: Largest initial angle by which a channel turns at a timestep, in radians.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_ff: int,
        activation: Activation,
        max_time_constant: float,
        max_phase: float,
    ) -> None:
        super().__init__(d_model)
        self.state_shape = (d_model, 2)  # real and imaginary parts
        self.inputs = nn.Linear(d_model, 2 * d_model, bias=False)  # B
        self.out = nn.Linear(2 * d_model, d_model)  # C
        self.skip = nn.Parameter(torch.randn(d_model))  # D
        self.add_feedforward("LRUEncoder", d_ff, activation)

        log_time_constant = torch.empty(d_model).uniform_(0.0, math.log(max_time_constant))
        phase = max_phase * (1 - torch.rand(d_model))  # above zero
        rate = (-log_time_constant).exp()
        self.log_rate = nn.Parameter(-log_time_constant)  # nu
        self.log_phase = nn.Parameter(phase.log())  # theta
        # 1 - |lambda|^2 would be rounded to zero for a long time constant.
        self.log_gain = nn.Parameter((-torch.expm1(-2 * rate)).sqrt().log())  # of gamma

    def sequence(self, x: Tensor, is_init: Tensor) -> Tensor:
        """Apply the recurrence to sequences; see `RecurrentBlock.sequence`."""
        states = complex_scan(self._decay(), self._added(x), is_init)  # [B, L, D, 2]
        return self._outputs(x, states)

    def timestep(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the recurrence to one timestep; see `RecurrentBlock.timestep`."""
        state = complex_product(self._decay(), state) + self._added(x)  # [N, D, 2]
        return self._outputs(x, state), state

    def _decay(self) -> Tensor:
        """Return lambda, ``[D, 2]``."""
        dtype = state_dtype(self.log_rate.dtype)
        rate = self.log_rate.to(dtype).exp()
        phase = self.log_phase.to(dtype).exp()
        return polar((-rate).exp(), phase)

    def _added(self, x: Tensor) -> Tensor:
        """Return ``gamma B x``: ``[*, D] -> [*, D, 2]``."""
        inputs = self.inputs(x).unflatten(-1, self.state_shape)
        dtype = state_dtype(inputs.dtype)
        gain = self.log_gain.to(dtype).exp().unsqueeze(-1)  # [D, 1]
        return gain * inputs.to(dtype)

    def _outputs(self, x: Tensor, states: Tensor) -> Tensor:
        """Return ``Re(C h) + D x``; the sign of the imaginary part is that of the weights."""
        states = states.to(self.out.weight.dtype)
        output: Tensor = self.out(states.flatten(-2)) + self.skip * x
        return output


class LRUEncoder(BlockEncoder):
    """A linear map, blocks with a linear recurrent unit (arXiv 2303.06349), and a LayerNorm.

    ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context, and number of complex channels of
            each block.
        num_layers: Number of blocks.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        activation: Activation of the feed-forward parts: ``leaky_relu``, ``gelu`` or ``relu``.
        max_time_constant: Longest initial time constant of a channel, in timesteps. Initial time
            constants are drawn between 1 and this number, uniformly on a logarithmic scale; they
            are learnt.
        max_phase: Largest initial angle by which a channel turns at a timestep, in radians, in
            (0, 2 pi]. A small one suits long sequences.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range.

    >>> from tensordict import TensorDict
    >>> encoder = LRUEncoder(3, d_model=8)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        d_model: PositiveInt = 128,
        num_layers: NumLayers = 2,
        ff_factor: PositiveInt = 2,
        activation: Activation = "leaky_relu",
        max_time_constant: TimeConstant = 128.0,
        max_phase: Angle = 0.314,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        def make_block() -> LRUBlock:
            return LRUBlock(
                d_model,
                d_ff=ff_factor * d_model,
                activation=activation,
                max_time_constant=max_time_constant,
                max_phase=max_phase,
            )

        super().__init__(in_features, d_model, num_layers, make_block, keys=keys)
