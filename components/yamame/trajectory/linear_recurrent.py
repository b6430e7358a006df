"""A gated linear recurrence as trajectory encoder: memory of fixed size, trained in parallel over
time.

A block is ``x = x + out(h)`` with ``h`` the recurrence of a LayerNorm of ``x``, then
``x = x + W2 act(W1 LayerNorm(x))``. Each channel of the recurrence is a moving average

    ``z[t] = sigmoid(W_z x[t] + b_z)``,  ``h[t] = (1 - z[t]) h[t-1] + z[t] (W_h x[t] + b_h)``,

whose gate sees the input alone: that makes it linear in ``h``, so that all timesteps are found
together (`yamame.trajectory.scan`). A fresh memory has ``h[t-1] = 0``.

Source: minGRU, Feng et al., arXiv 2410.01201; the gates begin with the time constants of Tallec &
Ollivier, arXiv 1804.11188.
"""

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import require_at_least
from yamame.trajectory.base import Activation, Device, TrajectoryKeys, activation_function
from yamame.trajectory.recurrent import RecurrentEncoder, keep_bias
from yamame.trajectory.scan import linear_scan


class LinearRecurrentBlock(nn.Module):
    """One block; see the module.

    Args:
        d_model: Size D of the input, of the state and of the output.
        d_ff: Hidden size of the feed-forward part.
        activation: Of the feed-forward part.
        max_time_constant: Channels begin with time constants drawn evenly between 1 and this.
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
            self.gate_and_value.bias[:d_model] = -keep_bias(d_model, longest=max_time_constant)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """``[B, L, D] -> [B, L, D]``; ``keep`` ``[B, L, 1]`` is 0 where a fresh memory begins, else
        1.
        """
        decay, added = self._inputs(x)
        return self._outputs(x, linear_scan(decay * keep, added))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, D]`` and the state ``[N, D]`` -> ``[N, D]`` and the next state."""
        decay, added = self._inputs(x)
        state = decay * state + added
        return self._outputs(x, state), state

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``1 - z`` and ``z (W_h x + b_h)``, at least in float32, since rounding adds up over
        time.
        """
        both = self.gate_and_value(self.norm1(x))
        gate, value = both.to(state_dtype(both.dtype)).chunk(2, -1)
        gate = gate.sigmoid()
        return 1 - gate, gate * value

    def _outputs(self, x: Tensor, states: Tensor) -> Tensor:
        x = x + self.out(states.to(self.out.weight.dtype))
        return x + self.down(self.activation(self.up(self.norm2(x))))


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of states where everything else is of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


class LinearRecurrentEncoder(RecurrentEncoder):
    """A linear map, blocks of gated linear recurrence, and a LayerNorm. ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream, of each block's state and of the context.
        num_layers: Number of blocks.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        activation: Of the feed-forward parts.
        max_time_constant: Longest time constant, in timesteps, that a channel begins with; they are
            drawn between 1 and this, evenly on a logarithmic scale, and learnt.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is not positive, or a time constant below 1.

    >>> encoder = LinearRecurrentEncoder(3, d_model=8)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        in_features: int,
        *,
        d_model: int = 128,
        num_layers: int = 2,
        ff_factor: int = 2,
        activation: Activation = "leaky_relu",
        max_time_constant: float = 128.0,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        sizes = {"d_model": d_model, "num_layers": num_layers, "ff_factor": ff_factor}
        require_at_least("LinearRecurrentEncoder", 1, **sizes, max_time_constant=max_time_constant)
        super().__init__(in_features, d_model, keys=keys)
        self.embed = nn.Linear(in_features, d_model)
        self.blocks = nn.ModuleList(
            LinearRecurrentBlock(
                d_model,
                d_ff=ff_factor * d_model,
                activation=activation,
                max_time_constant=max_time_constant,
            )
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        keep = (~is_init).unsqueeze(-1)
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, keep)
        return self.norm(x)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """A ``state`` ``[N, layers, D]``."""
        weight = self.norm.weight.detach()
        shape = num_envs, len(self.blocks), self.out_features
        state = weight.new_zeros(shape, dtype=state_dtype(weight.dtype), device=device)
        return TensorDict({"state": state}, [num_envs], device=state.device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        old = memory["state"].masked_fill(is_init.view(-1, 1, 1), 0)
        states = []
        x = self.embed(x)
        for block, state in zip(self.blocks, old.unbind(1), strict=True):
            assert isinstance(block, LinearRecurrentBlock)
            x, state = block.step(x, state)
            states.append(state)
        new = TensorDict({"state": torch.stack(states, 1)}, memory.batch_size, device=memory.device)
        return self.norm(x), new
