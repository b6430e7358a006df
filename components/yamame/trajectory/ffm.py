"""Fast and Forgetful Memory: a table of fading traces, made for reinforcement learning.

The state is a complex matrix of m traces by c contexts (arXiv 2310.04128, section 4):

* aggregator: ``S[t] = gamma * S[t-1] + v[t]``, where ``gamma[j, k] = exp(-|alpha[j]|) exp(i
  omega[k])``: row j fades at one rate, and column k turns at one frequency;
* input: ``v = l1(x) * sigmoid(l2(x))``, m numbers, written into all c columns;
* output: ``LayerNorm(l3(S)) * g + l5(x) * (1 - g)``, with ``g = sigmoid(l4(x))``, where ``l3``
  reads real and imaginary parts.

``alpha`` and ``omega`` are learnt and do not depend on the input. They begin evenly spaced, as in
the paper: time constants on a logarithmic scale, periods on a linear one. A fresh memory has
``S[t-1] = 0``.

Source: Morad et al., "Reinforcement Learning with Fast and Forgetful Memory", 2023.
"""

import math

import torch
from torch import Tensor, nn

from yamame.checks import NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import Activation, TrajectoryKeys
from yamame.trajectory.blocks import BlockEncoder, RecurrentBlock, state_dtype
from yamame.trajectory.recurrent import TimeConstant, spaced_time_constants
from yamame.trajectory.scan import complex_product, complex_scan, polar


class FFMBlock(RecurrentBlock):
    """A block with the recurrence of the module.

    Args:
        d_model: Size D of the input and of the output.
        d_ff: Hidden size of the feed-forward part.
        activation: Activation of the feed-forward part.
        num_traces: Number m of rows of the state.
        num_contexts: Number c of columns of the state.
        max_time_constant: Longest initial time constant, and longest initial period, in timesteps.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_ff: int,
        activation: Activation,
        num_traces: int,
        num_contexts: int,
        max_time_constant: float,
    ) -> None:
        super().__init__(d_model)
        self.state_shape = (num_traces, num_contexts, 2)  # real and imaginary parts
        self.inputs = nn.Linear(d_model, 2 * num_traces)  # l1 and l2
        self.read = nn.Linear(math.prod(self.state_shape), d_model)  # l3
        self.norm_read = nn.LayerNorm(d_model)
        self.gate_and_skip = nn.Linear(d_model, 2 * d_model)  # l4 and l5
        self.add_feedforward("FFMEncoder", d_ff, activation)

        time_constants = spaced_time_constants(num_traces, longest=max_time_constant)
        self.alpha = nn.Parameter(1 / time_constants)
        periods = torch.linspace(1.0, max_time_constant, num_contexts)
        self.omega = nn.Parameter(2 * math.pi / periods)

    def sequence(self, x: Tensor, is_init: Tensor) -> Tensor:
        """Apply the recurrence to sequences; see `RecurrentBlock.sequence`."""
        decay = self._decay().flatten(0, 1)  # [m c, 2]
        added = self._added(x).flatten(-3, -2)  # [B, L, m c, 2]
        states = complex_scan(decay, added, is_init)
        return self._outputs(x, states.unflatten(-2, self.state_shape[:2]))

    def timestep(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the recurrence to one timestep; see `RecurrentBlock.timestep`."""
        state = complex_product(self._decay(), state) + self._added(x)  # [N, m, c, 2]
        return self._outputs(x, state), state

    def _decay(self) -> Tensor:
        """Return gamma, ``[m, c, 2]``."""
        dtype = state_dtype(self.alpha.dtype)
        magnitude = (-self.alpha.to(dtype).abs()).exp().unsqueeze(1)  # [m, 1]
        angle = self.omega.to(dtype).unsqueeze(0)  # [1, c]
        return polar(magnitude, angle)

    def _added(self, x: Tensor) -> Tensor:
        """Return the gated input as complex numbers: ``[*, D] -> [*, m, c, 2]``."""
        inputs = self.inputs(x)
        value, gate = inputs.to(state_dtype(inputs.dtype)).chunk(2, -1)
        real = value * gate.sigmoid()  # [*, m]
        added = torch.stack((real, torch.zeros_like(real)), -1)  # [*, m, 2]
        return added.unsqueeze(-2).expand(*real.shape, *self.state_shape[1:])

    def _outputs(self, x: Tensor, states: Tensor) -> Tensor:
        states = states.to(self.read.weight.dtype)
        remembered = self.norm_read(self.read(states.flatten(-3)))
        gate, skip = self.gate_and_skip(x).chunk(2, -1)
        gate = gate.sigmoid()
        output: Tensor = remembered * gate + skip * (1 - gate)
        return output


class FFMEncoder(BlockEncoder):
    """A linear map, blocks with Fast and Forgetful Memory (arXiv 2310.04128), and a LayerNorm.

    ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_layers: Number of blocks.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        activation: Activation of the feed-forward parts: ``leaky_relu``, ``gelu`` or ``relu``.
        num_traces: Number m of rates at which the memory of a block fades.
        num_contexts: Number c of frequencies at which each trace turns; its state has ``2 m c``
            numbers.
        max_time_constant: Longest initial time constant of a trace, in timesteps, and longest
            initial period of a context.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range.

    >>> from tensordict import TensorDict
    >>> encoder = FFMEncoder(3, d_model=8)
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
        num_traces: PositiveInt = 32,
        num_contexts: PositiveInt = 4,
        max_time_constant: TimeConstant = 128.0,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        def make_block() -> FFMBlock:
            return FFMBlock(
                d_model,
                d_ff=ff_factor * d_model,
                activation=activation,
                num_traces=num_traces,
                num_contexts=num_contexts,
                max_time_constant=max_time_constant,
            )

        super().__init__(in_features, d_model, num_layers, make_block, keys=keys)
