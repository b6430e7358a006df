"""A long short-term memory as trajectory encoder: memory of fixed size, any length of history.

Source: Hochreiter & Schmidhuber, Neural Computation 9(8), 1997; layout (LSTM, linear map, LayerNorm) as in AMAGO,
arXiv 2310.09971, has it for a GRU.
"""

import torch
from torch import Tensor, nn

from yamame.trajectory.base import TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.segments import segment_outputs
from yamame.trajectory.time_constants import keep_bias


class LSTMEncoder(TrajectoryEncoder):
    """A stack of LSTM layers, a linear map and a LayerNorm. ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        hidden_size: Size of each layer's output, and of its cell.
        num_layers: Number of LSTM layers.
        out_features: Size D of the context.
        max_time_constant: Longest time constant, in timesteps, that a channel begins with; they are drawn
            between 1 and this, evenly on a logarithmic scale, and learnt.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is not positive, or a time constant below 1.

    >>> from tensordict import TensorDict
    >>> encoder = LSTMEncoder(3, hidden_size=8, out_features=4)
    >>> row = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(row)["context"].shape
    torch.Size([5, 4])
    """

    capture_obstacle = "LSTMEncoder"  # the sizes of what it computes depend on where memories begin

    def __init__(
        self,
        in_features: int,
        *,
        hidden_size: int = 128,
        num_layers: int = 2,
        out_features: int = 128,
        max_time_constant: float = 128.0,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "max_time_constant": max_time_constant}
        for label, size in sizes.items():
            if not size >= 1:
                raise ValueError(f"LSTMEncoder: {label} must be at least 1, got {size}")
        super().__init__(in_features, out_features, context_length=None, keys=keys)
        self.lstm = nn.LSTM(in_features, hidden_size, num_layers, batch_first=True)
        self.out = nn.Linear(hidden_size, out_features)
        self.norm = nn.LayerNorm(out_features)
        for _, _, input_bias, state_bias in self.lstm.all_weights:
            keep = keep_bias(hidden_size, longest=max_time_constant)
            input_bias.data[: 2 * hidden_size] = torch.cat((-keep, keep))  # what is kept is hardly added to
            state_bias.data[: 2 * hidden_size] = 0.0

    def parallel(self, x: Tensor, step_index: Tensor, starts: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        hidden = segment_outputs(lambda rows: self.lstm(rows)[0], x, starts)
        return self.norm(self.out(hidden))

    def init_memory(self, num_rows: int, like: Tensor) -> dict[str, Tensor]:
        """A ``hidden`` state and a ``cell``, each ``[layers, N, hidden_size]``."""
        shape = (self.lstm.num_layers, num_rows, self.lstm.hidden_size)
        dtype = self.norm.weight.dtype
        return {name: torch.zeros(shape, dtype=dtype, device=like.device) for name in ("hidden", "cell")}

    def advance(self, x: Tensor, step_index: Tensor, starts: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``; see `TrajectoryEncoder.advance`."""
        hidden, cell = state = memory["hidden"], memory["cell"]
        for part in state:
            part.masked_fill_(starts.view(1, -1, 1), 0)
        if self._prepared is not None and not torch.is_autocast_enabled(x.device.type):
            for *parts, weights in zip(hidden, cell, self._prepared, strict=True):
                x = _step(x, *parts, *weights)
            return self.norm(self.out(x))
        found, new = self.lstm(x.unsqueeze(1), state)
        for part, value in zip(state, new, strict=True):
            part.copy_(value)
        return self.norm(self.out(found.squeeze(1)))

    def _prepare(self) -> list[tuple[Tensor, Tensor, Tensor]] | None:
        """Of each layer the matrices from input and state, ``[in, out]``, and the sum of its biases."""
        if not self.norm.weight.is_cpu:
            return None
        dtype = self._compute_dtype or self.norm.weight.dtype
        with torch.no_grad():
            return [
                (from_input.to(dtype).t(), from_state.to(dtype).t(), (input_bias + state_bias).to(dtype))
                for from_input, from_state, input_bias, state_bias in self.lstm.all_weights
            ]


def _step(
    x: Tensor, hidden: Tensor, cell: Tensor, from_input: Tensor, from_state: Tensor, bias: Tensor
) -> Tensor:
    """One layer's step; ``hidden`` and ``cell`` ``[N, H]`` are overwritten, and ``hidden`` is returned.

    Products are in the dtype of the matrices, everything else in that of the cell.
    """
    products = torch.addmm(bias, x.to(bias.dtype), from_input).addmm_(hidden.to(bias.dtype), from_state)
    add, keep, new, show = products.to(cell.dtype).chunk(4, 1)
    cell.mul_(keep.sigmoid_()).addcmul_(add.sigmoid_(), new.tanh_())
    return torch.mul(cell.tanh(), show.sigmoid_(), out=hidden)
