"""Encoders whose blocks have a matrix memory per head: the common part of mLSTM and DeltaNet.

Shapes: B sequences, L timesteps, N envs, H heads, K numbers of a key, D of the residual stream.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import NumLayers, PositiveInt, check_bounds, require
from yamame.trajectory.base import Activation, TrajectoryKeys
from yamame.trajectory.blocks import (
    BlockEncoder,
    RecurrentBlock,
    state_dtype,
    without_autocast,
)
from yamame.trajectory.linear_attention import Access, attend_sequence, attend_step
from yamame.trajectory.recurrent import TimeConstant, bias_for, spaced_time_constants

_LITTLE = 1e-2
"""Mean square of what a head has read that counts as little."""


class MatrixMemoryBlock(RecurrentBlock):
    """A block whose recurrence writes into a matrix memory and reads it.

    A subclass states how linear maps of the input become an `Access`, and how what was read becomes
    the output.

    Args:
        d_model: Size D of the input and of the output.
        num_heads: Number H of heads; divides ``d_model``.
        d_ff: Hidden size of the feed-forward part.
        activation: Activation of the feed-forward part.
        max_time_constant: Longest initial time constant of a head, in timesteps.
    """

    extra_columns: ClassVar[int] = 0
    """Columns of a memory beside those of the value."""

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        d_ff: int,
        activation: Activation,
        max_time_constant: float,
    ) -> None:
        super().__init__(d_model)
        self.head_size = d_model // num_heads
        self.state_shape = (num_heads, self.head_size, self.head_size + self.extra_columns)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.gates = nn.Linear(d_model, 2 * num_heads)  # to write and to keep
        self.output_gate = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)
        self.add_feedforward(type(self).__name__, d_ff, activation)
        time_constants = spaced_time_constants(num_heads, longest=max_time_constant)
        with torch.no_grad():
            self.gates.bias[:num_heads] = 0.0
            self.gates.bias[num_heads:] = bias_for(time_constants)

    @abstractmethod
    def access(
        self, query: Tensor, key: Tensor, value: Tensor, write: Tensor, keep: Tensor
    ) -> Access:
        """Return what is written and read, from linear maps of the input.

        Args:
            query: ``[*, H, K]``.
            key: ``[*, H, K]``.
            value: ``[*, H, K]``.
            write: ``[*, H]``, argument of the gate of writing.
            keep: ``[*, H]``, argument of the gate of keeping.
        """

    @abstractmethod
    def gated(self, read: Tensor, gate: Tensor) -> Tensor:
        """Return the output before the last linear map, ``[*, D]``.

        Args:
            read: ``[*, H, V]``.
            gate: ``[*, D]``, argument of the output gate.
        """

    def sequence(self, x: Tensor, is_init: Tensor) -> Tensor:
        """Apply the recurrence to sequences; see `RecurrentBlock.sequence`."""
        access = self._access(x)
        # Products of matrices would be computed in the precision of autocast.
        with without_autocast(x):
            read = attend_sequence(access, is_init)
        return self._outputs(x, read)

    def timestep(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the recurrence to one timestep; see `RecurrentBlock.timestep`."""
        read, state = attend_step(self._access(x), state)
        return self._outputs(x, read), state

    def _access(self, x: Tensor) -> Access:
        qkv = self.qkv(x)
        gates = self.gates(x)
        dtype = state_dtype(qkv.dtype)
        heads = (3, -1, self.head_size)
        query, key, value = qkv.to(dtype).unflatten(-1, heads).unbind(-3)
        write, keep = gates.to(dtype).chunk(2, -1)
        return self.access(query, key, value, write, keep)

    def _outputs(self, x: Tensor, read: Tensor) -> Tensor:
        gate = self.output_gate(x)
        hidden = self.gated(read, gate.to(read.dtype))
        output: Tensor = self.out(hidden.to(self.out.weight.dtype))
        return output


class MatrixMemoryEncoder(BlockEncoder):
    """A linear map, blocks with a matrix memory, and a LayerNorm.

    Args:
        in_features: Size E of the features.
        d_model: Size D of the residual stream and of the context.
        num_heads: Number of heads; divides ``d_model``. A block has about ``D D / heads`` numbers
            of memory.
        num_layers: Number of blocks.
        ff_factor: Hidden size of the feed-forward part, in multiples of ``d_model``.
        activation: Activation of the feed-forward parts: ``leaky_relu``, ``gelu`` or ``relu``.
        max_time_constant: Longest initial time constant of a head, in timesteps. Those of the heads
            are evenly spaced up to it on a logarithmic scale; they are learnt.
        keys: Keys to read and write; None for the defaults.

    Raises:
        ArgumentError: An argument is out of range, or ``d_model`` no multiple of ``num_heads``.
    """

    block: ClassVar[Callable[..., MatrixMemoryBlock]]
    """Class of the blocks."""

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        *,
        d_model: PositiveInt = 128,
        num_heads: PositiveInt = 4,
        num_layers: NumLayers = 2,
        ff_factor: PositiveInt = 2,
        activation: Activation = "leaky_relu",
        max_time_constant: TimeConstant = 128.0,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        divides = d_model % num_heads == 0
        condition = f"be a multiple of num_heads {num_heads}"
        require(type(self).__name__, "d_model", d_model, divides, condition)

        def make_block() -> MatrixMemoryBlock:
            return self.block(
                d_model,
                num_heads=num_heads,
                d_ff=ff_factor * d_model,
                activation=activation,
                max_time_constant=max_time_constant,
            )

        super().__init__(in_features, d_model, num_layers, make_block, keys=keys)


def scale_heads(read: Tensor) -> Tensor:
    """Scale what each head has read, ``[*, H, V]``, to a root mean square of 1.

    A head that has read nearly nothing stays small: enlarged, its rounding errors would count.
    """
    return F.rms_norm(read, read.shape[-1:], eps=_LITTLE)
