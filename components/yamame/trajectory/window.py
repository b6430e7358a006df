"""A feed-forward network over the latest timesteps: memory that ends after a fixed number of them.

The control between no memory at all and a recurrent one; the stack of frames of Mnih et al., Nature 518, 2015, for
features of any kind.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.trajectory.activation import Activation, activation_function
from yamame.trajectory.base import TrajectoryEncoder, TrajectoryKeys
from yamame.trajectory.memoryless import MemorylessEncoder


class WindowEncoder(TrajectoryEncoder):
    """A linear map of the latest ``window`` timesteps, then the network of `MemorylessEncoder`.

    The map reads the features of the present timestep and of those before it, each with a flag that says that it is
    there: before the start of the memory features and flag are zero. ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        window: How many of the latest timesteps are seen, the present one included.
        d_model: Size D of the hidden layers and of the context.
        num_layers: Number of residual blocks.
        ff_factor: Hidden size of a block, in multiples of ``d_model``.
        dropout: Probability after every activation.
        activation: Of all hidden layers.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is not positive, or ``dropout`` no probability.

    >>> from tensordict import TensorDict
    >>> encoder = WindowEncoder(3, window=4, d_model=8)
    >>> row = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(row)["context"].shape
    torch.Size([5, 8])
    """

    capture_obstacle = "WindowEncoder"  # the sizes of what it computes depend on where memories begin

    def __init__(
        self,
        in_features: int,
        *,
        window: int = 16,
        d_model: int = 128,
        num_layers: int = 1,
        ff_factor: int = 4,
        dropout: float = 0.0,
        activation: Activation = "leaky_relu",
        keys: TrajectoryKeys | None = None,
    ) -> None:
        sizes = {"window": window, "d_model": d_model, "num_layers": num_layers, "ff_factor": ff_factor}
        for label, size in sizes.items():
            if size < 1:
                raise ValueError(f"WindowEncoder: {label} must be at least 1, got {size}")
        if not 0 <= dropout < 1:
            raise ValueError(f"WindowEncoder: dropout must lie in [0, 1), got {dropout}")
        super().__init__(in_features, d_model, context_length=None, keys=keys)
        self.window = window
        self.activation = activation_function(activation, owner="WindowEncoder")
        self.embed = nn.Linear(window * (in_features + 1), d_model)
        self.network = MemorylessEncoder(
            d_model,
            d_model=d_model,
            num_layers=num_layers,
            ff_factor=ff_factor,
            dropout=dropout,
            activation=activation,
        )

    def parallel(self, x: Tensor, step_index: Tensor, starts: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        # One long sequence in which zeros precede every start, so that a convolution reads all windows.
        gap = self.window - 1
        segment = starts.flatten().cumsum(0)
        place = torch.arange(segment.numel(), device=x.device) + segment * gap
        rows = F.pad(x.flatten(0, 1), (0, 1), value=1.0)
        spaced = rows.new_zeros(segment.numel() + int(segment[-1]) * gap, rows.shape[1])
        kernel = self.embed.weight.unflatten(1, (self.window, -1)).transpose(1, 2)
        found = F.conv1d(spaced.index_put((place,), rows).t(), kernel, self.embed.bias)
        embedded = found.t()[place - gap].unflatten(0, starts.shape)
        return self.network.parallel(self.activation(embedded), step_index, starts)

    def init_memory(self, num_rows: int, like: Tensor) -> dict[str, Tensor]:
        """A ring of ``features`` ``[N, window, E + 1]``, flags last."""
        shape = (num_rows, self.window, self.in_features + 1)
        return {"features": torch.zeros(shape, dtype=self.embed.weight.dtype, device=like.device)}

    def advance(self, x: Tensor, step_index: Tensor, starts: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``; see `TrajectoryEncoder.advance`."""
        ring, row = memory["features"], torch.arange(len(x), device=x.device)
        ring.masked_fill_(starts.view(-1, 1, 1), 0)
        ring[row, memory["age"] % self.window] = F.pad(x, (0, 1), value=1.0).to(ring.dtype)
        # The slot after the present one holds the oldest timestep, or nothing yet.
        behind = torch.arange(1, self.window + 1, device=x.device)
        order = (memory["age"].unsqueeze(1) + behind) % self.window
        latest = ring[row.unsqueeze(1), order].flatten(1)
        return self.network.parallel(self.activation(self.embed(latest)), step_index, starts)
