"""A gated linear recurrence as trajectory encoder: trained in parallel over time.

Each channel of the recurrence is a moving average (arXiv 2410.01201, section 3.1.3, minGRU)

    ``z[t] = sigmoid(W_z x[t] + b_z)``,  ``h[t] = (1 - z[t]) h[t-1] + z[t] g(W_h x[t] + b_h)``,

whose gate depends only on the input: the recurrence is linear in ``h``, so that all timesteps are
computed together (`yamame.trajectory.scan`). A fresh memory has ``h[t-1] = 0``. ``g`` is the
identity, or the positive function of the paper's appendix B, ``g(v) = v + 0.5`` for ``v >= 0`` and
``sigmoid(v)`` below. The paper needs it for its scan over logarithms; here, it is a choice.

Source: minGRU, Feng et al., arXiv 2410.01201; initial time constants of the gates as in Tallec &
Ollivier, arXiv 1804.11188.
"""

import torch
from torch import Tensor, nn

from yamame.checks import NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import Activation, TrajectoryKeys
from yamame.trajectory.blocks import BlockEncoder, RecurrentBlock, state_dtype
from yamame.trajectory.recurrent import TimeConstant, keep_bias
from yamame.trajectory.scan import linear_scan


class LinearRecurrentBlock(RecurrentBlock):
    """A block with the recurrence of the module.

    Args:
        d_model: Size D of the input and of the output.
        d_ff: Hidden size of the feed-forward part.
        activation: Activation of the feed-forward part.
        max_time_constant: Longest initial time constant of a channel, in timesteps.
        expansion: Number of channels of the state, in multiples of ``d_model``.
        positive: Whether ``g`` is the positive function, instead of the identity.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_ff: int,
        activation: Activation,
        max_time_constant: float,
        expansion: int = 1,
        positive: bool = False,
    ) -> None:
        super().__init__(d_model)
        size = expansion * d_model
        self.state_shape = (size,)
        self.positive = positive
        self.gate_and_value = nn.Linear(d_model, 2 * size)
        self.out = nn.Linear(size, d_model)
        self.add_feedforward("LinearRecurrentEncoder", d_ff, activation)
        with torch.no_grad():
            # The gate lets in what is not kept: the opposite sign.
            bias = keep_bias(size, longest=max_time_constant)
            self.gate_and_value.bias[:size] = -bias

    def sequence(self, x: Tensor, is_init: Tensor) -> Tensor:
        """Apply the recurrence to sequences; see `RecurrentBlock.sequence`."""
        decay, added = self._inputs(x)
        keep = (~is_init).unsqueeze(-1)
        states = linear_scan(decay * keep, added)
        return self._outputs(states)

    def timestep(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the recurrence to one timestep; see `RecurrentBlock.timestep`."""
        decay, added = self._inputs(x)
        state = decay * state + added
        return self._outputs(state), state

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``1 - z`` and ``z g(W_h x + b_h)``."""
        both = self.gate_and_value(x)
        both = both.to(state_dtype(both.dtype))
        gate, value = both.chunk(2, -1)
        gate = gate.sigmoid()
        if self.positive:
            value = torch.where(value >= 0, value + 0.5, value.sigmoid())
        return 1 - gate, gate * value

    def _outputs(self, states: Tensor) -> Tensor:
        output: Tensor = self.out(states.to(self.out.weight.dtype))
        return output


class LinearRecurrentEncoder(BlockEncoder):
    """A linear map, blocks of gated linear recurrence (minGRU, arXiv 2410.01201), and a LayerNorm.

    ``step_index`` is not used. `encoder=mingru` has the paper's ``expansion`` and ``positive``.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_layers: Number of blocks.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        activation: Activation of the feed-forward parts: ``leaky_relu``, ``gelu`` or ``relu``.
        max_time_constant: Longest initial time constant of a channel, in timesteps. Initial time
            constants are drawn between 1 and this number, uniformly on a logarithmic scale; they
            are learnt.
        expansion: Number of channels of the state of each block, in multiples of ``d_model``.
        positive: Whether states are averages of positive numbers (appendix B of the paper), instead
            of numbers of any sign.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: A size is not positive, or the time constant is below 1.

    >>> from tensordict import TensorDict
    >>> encoder = LinearRecurrentEncoder(3, d_model=8)
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
        expansion: PositiveInt = 1,
        positive: bool = False,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        def make_block() -> LinearRecurrentBlock:
            return LinearRecurrentBlock(
                d_model,
                d_ff=ff_factor * d_model,
                activation=activation,
                max_time_constant=max_time_constant,
                expansion=expansion,
                positive=positive,
            )

        super().__init__(in_features, d_model, num_layers, make_block, keys=keys)
