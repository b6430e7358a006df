"""A gated linear recurrence as trajectory encoder: trained in parallel over time.

A block is ``x = x + out(h)`` with ``h`` the recurrence of a LayerNorm of ``x``, then
``x = x + W2 act(W1 LayerNorm(x))``. Each channel of the recurrence is a moving average

    ``z[t] = sigmoid(W_z x[t] + b_z)``,  ``h[t] = (1 - z[t]) h[t-1] + z[t] (W_h x[t] + b_h)``,

whose gate depends only on the input: the recurrence is linear in ``h``, so that all timesteps are
computed together (`yamame.trajectory.scan`). A fresh memory has ``h[t-1] = 0``.

Source: minGRU, Feng et al., arXiv 2410.01201; initial time constants of the gates as in Tallec &
Ollivier, arXiv 1804.11188.
"""

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import Activation, Device, TrajectoryKeys, activation_function
from yamame.trajectory.recurrent import RecurrentEncoder, TimeConstant, keep_bias
from yamame.trajectory.scan import linear_scan


class LinearRecurrentBlock(nn.Module):
    """One block; see the module.

    Args:
        d_model: Size D of the input, of the state and of the output.
        d_ff: Hidden size of the feed-forward part.
        activation: Activation of the feed-forward part.
        max_time_constant: Longest initial time constant of a channel, in timesteps.
    """

    def __init__(
        self, d_model: int, *, d_ff: int, activation: Activation, max_time_constant: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.gate_and_value = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.activation = activation_function("LinearRecurrentEncoder", activation)
        with torch.no_grad():
            # The gate lets in what is not kept: the opposite sign.
            bias = keep_bias(d_model, longest=max_time_constant)
            self.gate_and_value.bias[:d_model] = -bias

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """Apply the block to sequences: ``[B, L, D] -> [B, L, D]``.

        ``keep`` ``[B, L, 1]`` is 0 at the start of a fresh memory, else 1.
        """
        decay, added = self._inputs(x)
        states = linear_scan(decay * keep, added)
        return self._outputs(x, states)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the block to one timestep.

        Args:
            x: ``[N, D]``.
            state: ``[N, D]``.

        Returns:
            The output ``[N, D]`` and the next state ``[N, D]``.
        """
        decay, added = self._inputs(x)
        state = decay * state + added
        return self._outputs(x, state), state

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``1 - z`` and ``z (W_h x + b_h)``."""
        both = self.gate_and_value(self.norm1(x))  # [*, 2 D]
        # At least float32, because rounding errors of the states add up over time.
        both = both.to(state_dtype(both.dtype))
        gate, value = both.chunk(2, -1)
        gate = gate.sigmoid()
        return 1 - gate, gate * value

    def _outputs(self, x: Tensor, states: Tensor) -> Tensor:
        states = states.to(self.out.weight.dtype)
        x = x + self.out(states)
        hidden = self.up(self.norm2(x))
        return x + self.down(self.activation(hidden))


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of states in a network of some dtype: at least float32."""
    return torch.promote_types(dtype, torch.float32)


class LinearRecurrentEncoder(RecurrentEncoder):
    """A linear map, blocks of gated linear recurrence (arXiv 2410.01201), and a LayerNorm.

    ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream, of the state of each block and of the context.
        num_layers: Number of blocks.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        activation: Activation of the feed-forward parts: ``leaky_relu``, ``gelu`` or ``relu``.
        max_time_constant: Longest initial time constant of a channel, in timesteps. Initial time
            constants are drawn between 1 and this number, uniformly on a logarithmic scale; they
            are learnt.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: A size is not positive, or the time constant is below 1.

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
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__(in_features, d_model, keys=keys)
        self.embed = nn.Linear(in_features, d_model)
        self.blocks = nn.ModuleList()
        for _ in range(num_layers):
            block = LinearRecurrentBlock(
                d_model,
                d_ff=ff_factor * d_model,
                activation=activation,
                max_time_constant=max_time_constant,
            )
            self.blocks.append(block)
        self.norm = nn.LayerNorm(d_model)

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encode ``[B, L, E]``, with starts ``[B, L]``, as ``[B, L, D]``."""
        keep = (~is_init).unsqueeze(-1)
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, keep)
        return self.norm(x)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return a zero ``state`` ``[N, layers, D]``."""
        weight = self.norm.weight.detach()
        shape = (num_envs, len(self.blocks), self.out_features)
        dtype = state_dtype(weight.dtype)
        state = weight.new_zeros(shape, dtype=dtype, device=device)
        return TensorDict({"state": state}, [num_envs], device=state.device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        forget = is_init.view(-1, 1, 1)
        old = memory["state"].masked_fill(forget, 0)  # [N, layers, D]
        states = []
        x = self.embed(x)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, LinearRecurrentBlock)
            x, state = block.step(x, old[:, layer])
            states.append(state)
        entries = {"state": torch.stack(states, 1)}
        next_memory = TensorDict(entries, memory.batch_size, device=memory.device)
        return self.norm(x), next_memory
