"""A feed-forward network over the latest timesteps: memory that ends after a fixed number of them.

The control between no memory and a recurrent one; the stack of frames of Mnih et al., Nature 518,
2015, for features of any kind.
"""

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import (
    Activation,
    Device,
    DropoutRate,
    TrajectoryEncoder,
    TrajectoryKeys,
    activation_function,
)
from yamame.trajectory.memoryless import MemorylessEncoder
from yamame.trajectory.steps import segment_positions


class WindowEncoder(TrajectoryEncoder):
    """A linear map of the latest timesteps (Mnih et al., 2015), then a `MemorylessEncoder`.

    The map takes the features of the present timestep and of those before it, oldest first, each
    with a flag of 1. Before the start of the memory features and flag are zero. ``step_index`` is
    not used.

    Args:
        in_features: Size E of the features.
        window: Number of latest timesteps that are visible, including the present one.
        d_model: Size D of the hidden layers and of the context.
        num_layers: Number of residual blocks.
        ff_factor: Hidden size of a block, in multiples of ``d_model``.
        dropout: Dropout probability after every activation, in [0, 1).
        activation: Activation of all hidden layers: ``leaky_relu``, ``gelu``, ``relu`` or ``mish``.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range.

    >>> encoder = WindowEncoder(3, window=4, d_model=8)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        window: PositiveInt = 16,
        d_model: PositiveInt = 128,
        num_layers: NumLayers = 1,
        ff_factor: PositiveInt = 4,
        dropout: DropoutRate = 0.0,
        activation: Activation = "leaky_relu",
        keys: TrajectoryKeys | None = None,
    ) -> None:
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
        """Encode ``[B, L, E]``, with starts ``[B, L]``, as ``[B, L, D]``."""
        length = x.shape[1]
        age = torch.arange(self.window - 1, -1, -1, device=x.device)  # [window], oldest first
        column = torch.arange(length, device=x.device)
        source = column.unsqueeze(1) - age  # [L, window]
        with_flag = F.pad(x, (0, 1), value=1.0)  # [B, L, E + 1]
        latest = with_flag[:, source.clamp(min=0)]  # [B, L, window, E + 1]
        position = segment_positions(is_init)
        before_start = position.unsqueeze(-1) < age  # [B, L, window]
        latest = latest.masked_fill(before_start.unsqueeze(-1), 0)
        return self._encode(latest)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return zero ``features`` ``[N, window, E + 1]``, oldest first and flags last."""
        weight = self.embed.weight.detach()
        shape = (num_envs, self.window, self.in_features + 1)
        features = weight.new_zeros(shape, device=device)
        return TensorDict({"features": features}, [num_envs], device=features.device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        forget = is_init.view(-1, 1, 1)
        before = memory["features"][:, 1:]
        before = before.masked_fill(forget, 0)
        with_flag = F.pad(x, (0, 1), value=1.0).to(before.dtype)
        present = with_flag.unsqueeze(1)  # [N, 1, E + 1]
        latest = torch.cat((before, present), 1)  # [N, window, E + 1]
        next_memory = TensorDict({"features": latest}, memory.batch_size, device=memory.device)
        return self._encode(latest), next_memory

    def _encode(self, latest: Tensor) -> Tensor:
        """Apply map and network: ``[*, window, E + 1] -> [*, D]``."""
        hidden = self.embed(latest.flatten(-2))
        hidden = self.activation(hidden)
        return self.network.encode(hidden)
