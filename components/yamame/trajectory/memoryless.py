"""A trajectory encoder without memory: the control that shows the value of memory.

Source: the memory-free ablation of AMAGO, arXiv 2310.09971.
"""

from tensordict import TensorDict
from torch import Tensor, nn

from yamame.checks import NumLayers, PositiveInt, check_bounds
from yamame.trajectory.base import (
    Activation,
    Device,
    DropoutRate,
    TrajectoryEncoder,
    TrajectoryKeys,
    activation_function,
)


class MemorylessEncoder(TrajectoryEncoder):
    """A residual feed-forward network over single timesteps (arXiv 2310.09971, ablation).

    ``x = dropout(act(embed(x)))``, blocks ``x + dropout(act(W2 dropout(act(W1 x))))``, linear map,
    LayerNorm. Only the features are used.

    Args:
        in_features: Size E of the features.
        d_model: Width D of the layers and of the context.
        num_layers: Number of blocks.
        ff_factor: Hidden size of a block, in multiples of ``d_model``.
        dropout: Dropout probability after every activation, in [0, 1).
        activation: Activation of all hidden layers: ``leaky_relu``, ``gelu``, ``relu`` or ``mish``.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range.

    >>> import torch
    >>> encoder = MemorylessEncoder(3, d_model=8)
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
        num_layers: NumLayers = 1,
        ff_factor: PositiveInt = 4,
        dropout: DropoutRate = 0.0,
        activation: Activation = "leaky_relu",
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__(in_features, d_model, keys=keys)
        d_ff = ff_factor * d_model
        self.embed = nn.Linear(in_features, d_model)
        # Two comprehensions, not one loop: the order of construction determines the random weights.
        self.up = nn.ModuleList(nn.Linear(d_model, d_ff) for _ in range(num_layers))
        self.down = nn.ModuleList(nn.Linear(d_ff, d_model) for _ in range(num_layers))
        self.out = nn.Linear(d_model, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation_function("MemorylessEncoder", activation)

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encode ``[B, L, E]`` as ``[B, L, D]``."""
        return self.encode(x)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return a memory without entries."""
        device = self.norm.weight.device if device is None else device
        return TensorDict({}, [num_envs], device=device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        return self.encode(x), memory

    def encode(self, x: Tensor) -> Tensor:
        """Apply the network to every timestep on its own: ``[*, E] -> [*, D]``."""
        x = self.activation(self.embed(x))
        x = self.dropout(x)
        for up, down in zip(self.up, self.down, strict=True):
            hidden = self.activation(up(x))  # [*, d_ff]
            hidden = self.dropout(hidden)
            hidden = self.activation(down(hidden))  # [*, D]
            x = x + self.dropout(hidden)
        x = self.out(x)
        return self.norm(x)
