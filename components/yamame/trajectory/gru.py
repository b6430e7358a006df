"""A gated recurrent network as trajectory encoder: memory of fixed size, any length of history.

Source: Cho et al., arXiv 1406.1078; layout (GRU, linear map, LayerNorm) as in AMAGO, arXiv 2310.09971.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from yamame.trajectory.base import TrajectoryEncoder, TrajectoryKeys, segment_positions


class GRUEncoder(TrajectoryEncoder):
    """A stack of GRU layers, a linear map and a LayerNorm. ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        hidden_size: Size of each layer's state.
        num_layers: Number of GRU layers.
        out_features: Size D of the context.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is not positive.

    >>> from tensordict import TensorDict
    >>> encoder = GRUEncoder(3, hidden_size=8, out_features=4)
    >>> row = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(row)["context"].shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        in_features: int,
        *,
        hidden_size: int = 128,
        num_layers: int = 2,
        out_features: int = 128,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        for label, size in (("hidden_size", hidden_size), ("num_layers", num_layers)):
            if size < 1:
                raise ValueError(f"GRUEncoder: {label} must be at least 1, got {size}")
        super().__init__(in_features, out_features, context_length=None, keys=keys)
        self.gru = nn.GRU(in_features, hidden_size, num_layers, batch_first=True)
        self.out = nn.Linear(hidden_size, out_features)
        self.norm = nn.LayerNorm(out_features)

    def parallel(self, x: Tensor, step_index: Tensor, starts: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        hidden = self._segments(x, starts) if bool(starts[:, 1:].any()) else self.gru(x)[0]
        return self.norm(self.out(hidden))

    def init_memory(self, num_rows: int, like: Tensor) -> dict[str, Tensor]:
        """A ``hidden`` state ``[layers, N, hidden_size]``."""
        shape = (self.gru.num_layers, num_rows, self.gru.hidden_size)
        return {"hidden": torch.zeros(shape, dtype=self.norm.weight.dtype, device=like.device)}

    def advance(self, x: Tensor, step_index: Tensor, starts: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``; see `TrajectoryEncoder.advance`."""
        hidden = memory["hidden"]
        hidden.masked_fill_(starts.view(1, -1, 1), 0)
        if self._prepared is not None and not torch.is_autocast_enabled(x.device.type):
            for state, weights in zip(hidden, self._prepared, strict=True):
                x = _cell(x, state, *weights)
            return self.norm(self.out(x))
        found, new = self.gru(x.unsqueeze(1), hidden)
        hidden.copy_(new)
        return self.norm(self.out(found.squeeze(1)))

    def _prepare(self) -> list[tuple[Tensor, ...]] | None:
        if not self.norm.weight.is_cpu:
            return None
        return [
            tuple(part.detach().t() if part.ndim == 2 else part.detach() for part in layer)
            for layer in self.gru.all_weights
        ]

    def _segments(self, x: Tensor, starts: Tensor) -> Tensor:
        """Runs every segment between two starts as a sequence of its own, packed without padding."""
        segment = starts.flatten().cumsum(0) - 1
        position = segment_positions(starts).flatten()
        lengths = torch.bincount(segment)
        rank = torch.empty_like(lengths)
        rank[lengths.argsort(descending=True)] = torch.arange(lengths.numel(), device=x.device)
        # Packed order: the first timesteps of all segments, longest segment first, then the second ones, ...
        order = (position * lengths.numel() + rank[segment]).argsort()
        packed = PackedSequence(x.flatten(0, 1)[order], torch.bincount(position).cpu())
        return self.gru(packed)[0].data[order.argsort()].unflatten(0, starts.shape)


def _cell(
    x: Tensor, state: Tensor, from_input: Tensor, from_state: Tensor, input_bias: Tensor, state_bias: Tensor
) -> Tensor:
    """One layer's step; ``state`` ``[N, H]`` is overwritten and returned."""
    of_input = torch.addmm(input_bias, x, from_input)
    of_state = torch.addmm(state_bias, state, from_state)
    size = state.shape[1]
    reset, update = of_input[:, : 2 * size].add_(of_state[:, : 2 * size]).sigmoid_().chunk(2, 1)
    new = of_state[:, 2 * size :].mul_(reset).add_(of_input[:, 2 * size :]).tanh_()
    return torch.lerp(new, state, update, out=state)
