"""A feed-forward network over the latest timesteps: memory that ends after a fixed number of them.

The control between no memory at all and a recurrent one; the stack of frames of Mnih et al., Nature
518, 2015, for features of any kind.
"""

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import require, require_at_least
from yamame.trajectory.base import (
    Activation,
    Device,
    TrajectoryEncoder,
    TrajectoryKeys,
    activation_function,
    segment_positions,
)
from yamame.trajectory.memoryless import MemorylessEncoder


class WindowEncoder(TrajectoryEncoder):
    """A linear map of the latest ``window`` timesteps, then the network of `MemorylessEncoder`.

    The map reads the features of the present timestep and of those before it, oldest first, each
    with a flag that says that it is there: before the start of the memory features and flag are
    zero. ``step_index`` is not used.

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

    >>> encoder = WindowEncoder(3, window=4, d_model=8)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

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
        sizes = {
            "window": window,
            "d_model": d_model,
            "num_layers": num_layers,
            "ff_factor": ff_factor,
        }
        require_at_least("WindowEncoder", 1, **sizes)
        require("WindowEncoder", "dropout", dropout, 0 <= dropout < 1, "lie in [0, 1)")
        super().__init__(in_features, d_model, keys=keys)
        self.window = window
        self.activation = activation_function("WindowEncoder", activation)
        self.embed = nn.Linear(window * (in_features + 1), d_model)
        self.network = MemorylessEncoder(
            d_model,
            d_model=d_model,
            num_layers=num_layers,
            ff_factor=ff_factor,
            dropout=dropout,
            activation=activation,
        )

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        behind = torch.arange(self.window - 1, -1, -1, device=x.device)
        source = torch.arange(x.shape[1], device=x.device).unsqueeze(1) - behind
        latest = F.pad(x, (0, 1), value=1.0)[:, source.clamp(min=0)]
        before_start = segment_positions(is_init).unsqueeze(-1) < behind
        return self._encode(latest.masked_fill(before_start.unsqueeze(-1), 0))

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """The latest ``features`` ``[N, window, E + 1]``, oldest first and flags last."""
        weight = self.embed.weight.detach()
        features = weight.new_zeros(num_envs, self.window, self.in_features + 1, device=device)
        return TensorDict({"features": features}, [num_envs], device=features.device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        before = memory["features"][:, 1:].masked_fill(is_init.view(-1, 1, 1), 0)
        present = F.pad(x, (0, 1), value=1.0).to(before.dtype).unsqueeze(1)
        latest = torch.cat((before, present), 1)
        return self._encode(latest), TensorDict(
            {"features": latest}, memory.batch_size, device=memory.device
        )

    def _encode(self, latest: Tensor) -> Tensor:
        """``[*, window, E + 1] -> [*, D]``."""
        return self.network.encode(self.activation(self.embed(latest.flatten(-2))))
