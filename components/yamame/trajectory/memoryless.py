"""A trajectory encoder without memory: the control that shows what memory is worth.

Source: the memory-free ablation of AMAGO, arXiv 2310.09971.
"""

from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import require, require_at_least
from yamame.trajectory.base import (
    Activation,
    Device,
    TrajectoryEncoder,
    TrajectoryKeys,
    activation_function,
)


class MemorylessEncoder(TrajectoryEncoder):
    """A residual feed-forward network over single timesteps. Only the features are used.

    ``x = dropout(act(embed(x)))``, blocks ``x + dropout(act(W2 dropout(act(W1 x))))``, linear map,
    LayerNorm.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_layers: Number of blocks.
        ff_factor: Hidden size of a block, in multiples of ``d_model``.
        dropout: Probability after every activation.
        activation: Of all hidden layers.
        keys: Where to read and write, if not under the usual names.

    Raises:
        ValueError: If a size is not positive, or ``dropout`` no probability.

    >>> import torch
    >>> encoder = MemorylessEncoder(3, d_model=8)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        in_features: int,
        *,
        d_model: int = 128,
        num_layers: int = 1,
        ff_factor: int = 4,
        dropout: float = 0.0,
        activation: Activation = "leaky_relu",
        keys: TrajectoryKeys | None = None,
    ) -> None:
        owner = "MemorylessEncoder"
        require_at_least(owner, 1, d_model=d_model, num_layers=num_layers, ff_factor=ff_factor)
        require(owner, "dropout", dropout, 0 <= dropout < 1, "lie in [0, 1)")
        super().__init__(in_features, d_model, keys=keys)
        d_ff = ff_factor * d_model
        self.embed = nn.Linear(in_features, d_model)
        self.up = nn.ModuleList(nn.Linear(d_model, d_ff) for _ in range(num_layers))
        self.down = nn.ModuleList(nn.Linear(d_ff, d_model) for _ in range(num_layers))
        self.out = nn.Linear(d_model, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation_function(owner, activation)

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """``[B, L, E]``, ``[B, L]``, ``[B, L]`` -> ``[B, L, D]``."""
        return self.encode(x)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Nothing."""
        return TensorDict(
            {}, [num_envs], device=self.norm.weight.device if device is None else device
        )

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """``[N, E]``, ``[N]``, ``[N]`` -> ``[N, D]``, ``[N]``; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        return self.encode(x), memory

    def encode(self, x: Tensor) -> Tensor:
        """The network, of every timestep by itself: ``[*, features] -> [*, D]``."""
        x = self.dropout(self.activation(self.embed(x)))
        for up, down in zip(self.up, self.down, strict=True):
            hidden = self.dropout(self.activation(up(x)))
            x = x + self.dropout(self.activation(down(hidden)))
        return self.norm(self.out(x))
