"""Encoders made of residual blocks around a recurrence: a memory of fixed size, any length.

A block is ``x = x + sequence(LayerNorm(x))``, then ``x = x + W2 act(W1 LayerNorm(x))``. What
differs between memory models is the recurrence in the middle: a subclass of `RecurrentBlock`
computes it over whole sequences and for one timestep, and `BlockEncoder` does the rest.

Shapes: B sequences, L timesteps, N envs, D numbers of the residual stream; a state has any shape.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from yamame.trajectory.base import Activation, Device, TrajectoryKeys, activation_function
from yamame.trajectory.recurrent import RecurrentEncoder


class RecurrentBlock(nn.Module):
    """Base class of blocks; see the module.

    A subclass sets ``state_shape``, creates its layers, then calls `add_feedforward`.

    Args:
        d_model: Size D of the input and of the output.

    Attributes:
        state_shape: Shape of the state of one env. A fresh state is zero.
    """

    state_shape: tuple[int, ...]

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)

    def add_feedforward(self, owner: str, d_ff: int, activation: Activation) -> None:
        """Create the feed-forward part.

        Args:
            owner: Class named in errors.
            d_ff: Hidden size.
            activation: Activation.
        """
        (d_model,) = self.norm1.normalized_shape
        self.norm2 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.activation = activation_function(owner, activation)

    @abstractmethod
    def sequence(self, x: Tensor, is_init: Tensor) -> Tensor:
        """Apply the recurrence to whole sequences.

        Args:
            x: ``[B, L, D]``.
            is_init: ``[B, L]`` bool, starts of fresh states; True in the first column.

        Returns:
            ``[B, L, D]``.
        """

    @abstractmethod
    def timestep(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the recurrence to one timestep.

        Args:
            x: ``[N, D]``.
            state: ``[N, *state_shape]``.

        Returns:
            The output ``[N, D]`` and the next state.
        """

    def forward(self, x: Tensor, is_init: Tensor) -> Tensor:
        """Apply the block to sequences ``[B, L, D]`` with starts ``[B, L]``."""
        return self._feedforward(x + self.sequence(self.norm1(x), is_init))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the block to one timestep; see `timestep`."""
        output, state = self.timestep(self.norm1(x), state)
        return self._feedforward(x + output), state

    def _feedforward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm2(x))
        return x + self.down(self.activation(hidden))


class BlockEncoder(RecurrentEncoder):
    """A linear map, blocks with a recurrence, and a LayerNorm.

    A memory has one entry ``state`` ``[N, layers, *state_shape]``. ``step_index`` is not used.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_layers: Number of blocks.
        make_block: Function that returns a new block.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: A size is not positive.

    >>> from yamame.trajectory.linear_recurrent import LinearRecurrentBlock
    >>> def make_block():
    ...     return LinearRecurrentBlock(8, d_ff=16, activation="gelu", max_time_constant=9.0)
    >>> BlockEncoder(3, 8, 2, make_block).init_memory(5)["state"].shape
    torch.Size([5, 2, 8])
    """

    def __init__(
        self,
        in_features: int,
        d_model: int,
        num_layers: int,
        make_block: Callable[[], RecurrentBlock],
        *,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__(in_features, d_model, keys=keys)
        self.embed = nn.Linear(in_features, d_model)
        self.blocks = nn.ModuleList()
        for _ in range(num_layers):
            self.blocks.append(make_block())
        self.norm = nn.LayerNorm(d_model)

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encode ``[B, L, E]``, with starts ``[B, L]``, as ``[B, L, D]``."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, is_init)
        return self.norm(x)

    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return a zero ``state`` ``[N, layers, *state_shape]``."""
        weight = self.norm.weight.detach()
        block = self.blocks[0]
        assert isinstance(block, RecurrentBlock)
        shape = (num_envs, len(self.blocks), *block.state_shape)
        dtype = state_dtype(weight.dtype)
        state = weight.new_zeros(shape, dtype=dtype, device=device)
        return TensorDict({"state": state}, [num_envs], device=state.device)

    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep; see `TrajectoryEncoder.step`."""
        self.check_step(x, memory, is_init)
        state = memory["state"]
        forget = is_init.view(-1, *[1] * (state.ndim - 1))
        old = state.masked_fill(forget, 0)  # [N, layers, *]
        states = []
        x = self.embed(x)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, RecurrentBlock)
            x, state = block.step(x, old[:, layer])
            states.append(state)
        entries = {"state": torch.stack(states, 1)}
        next_memory = TensorDict(entries, memory.batch_size, device=memory.device)
        return self.norm(x), next_memory


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of states in a network of some dtype: at least float32.

    Rounding errors of states add up over time.
    """
    return torch.promote_types(dtype, torch.float32)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which operations on ``x`` have the precision of their inputs."""
    device = x.device.type
    if not torch.amp.is_autocast_available(device):
        return nullcontext()  # a meta device has none
    return torch.autocast(device, enabled=False)
