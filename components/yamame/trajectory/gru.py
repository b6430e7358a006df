"""A gated recurrent network as trajectory encoder: memory of fixed size, any length of history.

Source: Cho et al., arXiv 1406.1078; layout (GRU, linear map, LayerNorm) as in AMAGO, arXiv 2310.09971.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from yamame.product import Product
from yamame.trajectory.base import TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.gru_kernel import GRUCell, gru_kernel, gru_layer
from yamame.trajectory.segments import segment_outputs
from yamame.trajectory.time_constants import keep_bias

Cell = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What input and state add to the gates, and a state -> the next state, in its place."""


class GRUEncoder(TrajectoryEncoder):
    """A stack of GRU layers, a linear map and a LayerNorm. ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        hidden_size: Size of each layer's state.
        num_layers: Number of GRU layers.
        out_features: Size D of the context.
        max_time_constant: Longest time constant, in timesteps, that a channel begins with; they are drawn
            between 1 and this, evenly on a logarithmic scale, and learnt.
        gate_gain: Factor of the weights by which the update gates begin to depend on the input. The larger, the more
            channels there are that open at one kind of timestep and keep what they saw at the others.
        compiled: Go through sequences by a function compiled for these sizes, in float32 on a CPU: much faster where
            units and sequences are few. Changes the last bits.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is not positive, a time constant below 1, the gain negative or not finite, or something
            is to be compiled and cannot be.

    >>> from tensordict import TensorDict
    >>> encoder = GRUEncoder(3, hidden_size=8, out_features=4)
    >>> row = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(row)["context"].shape
    torch.Size([5, 4])
    """

    capture_obstacle = "GRUEncoder"  # the sizes of what it computes depend on where memories begin

    def __init__(
        self,
        in_features: int,
        *,
        hidden_size: int = 128,
        num_layers: int = 2,
        out_features: int = 128,
        max_time_constant: float = 128.0,
        gate_gain: float = 1.0,
        compiled: bool = False,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "max_time_constant": max_time_constant}
        for label, size in sizes.items():
            if not size >= 1:
                raise ValueError(f"GRUEncoder: {label} must be at least 1, got {size}")
        if not 0 <= gate_gain < math.inf:
            raise ValueError(f"GRUEncoder: gate_gain must be finite and not negative, got {gate_gain}")
        super().__init__(in_features, out_features, context_length=None, keys=keys)
        if compiled:
            gru_kernel(hidden_size)
        self.compiled = compiled
        self.gru = nn.GRU(in_features, hidden_size, num_layers, batch_first=True)
        self.out = nn.Linear(hidden_size, out_features)
        self.norm = nn.LayerNorm(out_features)
        update = slice(hidden_size, 2 * hidden_size)
        for from_input, _, input_bias, state_bias in self.gru.all_weights:
            from_input.data[update] *= gate_gain
            input_bias.data[update] = keep_bias(hidden_size, longest=max_time_constant)
            state_bias.data[update] = 0.0

    def parallel(self, x: Tensor, step_index: Tensor, starts: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        return self.norm(self.out(segment_outputs(self._states, x, starts)))

    def _states(self, x: Tensor) -> Tensor:
        """Of the last layer, in sequences that begin with none: ``[S, l, E] -> [S, l, hidden_size]``."""
        if not self.compiled:
            states: Tensor = self.gru(x)[0]
            return states
        for layer in self.gru.all_weights:
            x = gru_layer(x, *layer)
        return x

    def init_memory(self, num_rows: int, like: Tensor) -> dict[str, Tensor]:
        """A ``hidden`` state ``[layers, N, hidden_size]``."""
        shape = (self.gru.num_layers, num_rows, self.gru.hidden_size)
        return {"hidden": torch.zeros(shape, dtype=self.norm.weight.dtype, device=like.device)}

    def advance(self, x: Tensor, step_index: Tensor, starts: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``; see `TrajectoryEncoder.advance`."""
        hidden = memory["hidden"]
        hidden.masked_fill_(starts.view(1, -1, 1), 0)
        if self._prepared is not None and not torch.is_autocast_enabled(x.device.type):
            products, cell = self._prepared
            for state, (from_input, from_state) in zip(hidden, products, strict=True):
                x = cell(from_input(x.to(from_input.dtype)), from_state(state.to(from_state.dtype)), state)
            return self.norm(self.out(x))
        found, new = self.gru(x.unsqueeze(1), hidden)
        hidden.copy_(new)
        return self.norm(self.out(found.squeeze(1)))

    def _prepare(self) -> tuple[list[tuple[Product, Product]], Cell] | None:
        """Of each layer the products with input and state; and what follows them."""
        weight = self.norm.weight
        if self._compiled and not (weight.is_cpu and weight.dtype is torch.float32):
            where = f"{weight.dtype} on {weight.device}"
            raise ValueError(
                f"compile_policy must be false unless weights are in float32 on a CPU, got {where}"
            )
        if not weight.is_cpu:
            return None
        dtype = self._compute_dtype or weight.dtype
        product = functools.partial(Product, dtype=dtype, compiled=self._compiled)
        products = [
            (product(from_input.t(), input_bias), product(from_state.t(), state_bias))
            for from_input, from_state, input_bias, state_bias in self.gru.all_weights
        ]
        return products, GRUCell(self.gru.hidden_size, dtype) if self._compiled else _cell


def _cell(of_input: Tensor, of_state: Tensor, state: Tensor) -> Tensor:
    """What follows the products of one layer; ``state`` ``[N, H]`` is overwritten and returned.

    Gates and state are in the dtype of the state: in bfloat16 a gate near one would be one, and small changes of the
    state would be lost at every step.
    """
    of_input, of_state, size = of_input.to(state.dtype), of_state.to(state.dtype), state.shape[1]
    reset, update = of_input[:, : 2 * size].add_(of_state[:, : 2 * size]).sigmoid_().chunk(2, 1)
    new = of_state[:, 2 * size :].mul_(reset).add_(of_input[:, 2 * size :]).tanh_()
    return torch.lerp(new, state, update, out=state)
