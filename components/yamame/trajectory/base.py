"""Trajectory encoders: features over time -> context, in one parallel pass or step by step.

Two passes compute the same function of the history:

* the *parallel* pass reads a sequence batch ``[*, L]`` (training, ``set_recurrent_mode(True)``, which a
  `torchrl.objectives.LossModule` sets by itself);
* the *step* reads one timestep of N acting rows ``[N]`` and continues from the encoder's own memory.

====================  ==============  ========  ==========================================================
key                   shape           dtype     meaning
====================  ==============  ========  ==========================================================
``features`` (in)     ``[*, L, E]``   float     what the timestep encoder made of each timestep
``step_index`` (in)   ``[*, L, 1]``   int64     timestep inside the rollout; missing: counted from the start
``is_init`` (in)      ``[*, L, 1]``   bool      a fresh memory begins here; in a sequence it may be missing
``mask`` (in)         ``[*, L, 1]``   bool      real timestep; sequences only, missing: all are real
``context`` (out)     ``[*, L, D]``   float     summary of the history up to and including this timestep
====================  ==============  ========  ==========================================================

Acting has the same keys without L and without ``mask``. A fresh memory begins at the first timestep of a
sequence, wherever ``is_init`` says so, and where real timesteps follow padding. Laws (see
`yamame.testing.check_trajectory_encoder`): both passes agree; no output depends on a later timestep, on
padding, on another row or on anything before the last start.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.modules import recurrent_mode

from yamame.capturing import capturing
from yamame.preparable import Preparable


@dataclasses.dataclass(frozen=True)
class TrajectoryKeys:
    """Where a trajectory encoder reads and writes in a TensorDict."""

    features: NestedKey = "features"
    step_index: NestedKey = "step_index"
    is_init: NestedKey = "is_init"
    mask: NestedKey = "mask"
    context: NestedKey = "context"


class TrajectoryEncoder(Preparable):
    """Base of everything that turns features over time into context.

    A subclass implements `parallel`, `init_memory` and `advance`, and `make_room` if its memory grows; it works on
    plain tensors. The memory of acting belongs to the module that acts: it is allocated at the first step, lives in a
    plain attribute (neither parameter nor buffer, and never in the TensorDict), stays when weights change, is replaced
    when the number of rows changes, and is left behind by ``copy.deepcopy`` and ``pickle``. Nothing is
    differentiated through steps.

    Args:
        in_features: Size E of the features.
        out_features: Size D of the context.
        context_length: Longest history, in timesteps, that acting step by step reproduces exactly; None if
            any.
        keys: Where to read and write, if not under the usual names.

    Attributes:
        capture_obstacle: What keeps the parallel pass from being recorded as a CUDA graph; None if nothing does.

    Raises:
        ValueError: If a size is not positive.
    """

    capture_obstacle: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        context_length: int | None,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for label, size in (("in_features", in_features), ("out_features", out_features)):
            if size < 1:
                raise ValueError(f"{name}: {label} must be at least 1, got {size}")
        if context_length is not None and context_length < 1:
            raise ValueError(f"{name}: context_length must be at least 1 or None, got {context_length}")
        self.in_features = in_features
        self.out_features = out_features
        self.context_length = context_length
        self.keys = keys = TrajectoryKeys() if keys is None else keys
        self.in_keys = [keys.features, keys.step_index, keys.is_init]
        self.out_keys = [keys.context]
        self._memory: dict[str, Tensor] | None = None

    @abstractmethod
    def parallel(self, x: Tensor, step_index: Tensor, starts: Tensor) -> Tensor:
        """Encodes whole sequences.

        Args:
            x: ``[B, L, E]``.
            step_index: ``[B, L]`` int64.
            starts: ``[B, L]`` bool, where a fresh memory begins; True in the first column.

        Returns:
            ``[B, L, D]``.
        """

    @abstractmethod
    def init_memory(self, num_rows: int, like: Tensor) -> dict[str, Tensor]:
        """A fresh memory for ``num_rows`` acting rows, on the device of ``like``."""

    @abstractmethod
    def advance(self, x: Tensor, step_index: Tensor, starts: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """Encodes one timestep of every row and updates ``memory``: in place, or by replacing its entries.

        Args:
            x: ``[N, E]``.
            step_index: ``[N]`` int64.
            starts: ``[N]`` bool, rows that must forget what they hold.
            memory: What `init_memory` made, and ``age`` ``[N]`` int64: how many timesteps each row remembers
                from before this one.

        Returns:
            ``[N, D]``.
        """

    def make_room(self, memory: dict[str, Tensor]) -> None:
        """Lets ``memory``, as `advance` gets it next, hold one timestep more: may replace entries, and read ages."""

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the context: of whole sequences under ``recurrent_mode()``, else of one acting step."""
        context = self._sequence(tensordict) if recurrent_mode() else self._act(tensordict)
        return tensordict.set(self.keys.context, context)

    def step(self, x: Tensor, step_index: Tensor | None, starts: Tensor) -> Tensor:
        """Encodes one acting timestep: ``[N, E]``, ``[N]`` int64, ``[N]`` bool -> ``[N, D]``."""
        return self._proceed(x, step_index, self.make_ready(starts))

    @torch.no_grad()
    def make_ready(self, starts: Tensor) -> Tensor:
        """The part of a step that decides by what is remembered: memory is there, counts this timestep and has room.

        Args:
            starts: ``[N]`` bool, rows that must forget what they hold.

        Returns:
            The same ``[N]``, but all in a fresh memory: for `encode_step`, which has to follow.
        """
        memory, num_rows = self._memory, len(starts)
        # Normal tensors even under inference mode, so that a later step outside it may update them.
        with torch.inference_mode(False):
            if memory is None or len(memory["age"]) != num_rows:
                age = torch.zeros(num_rows, dtype=torch.int64, device=starts.device)
                memory = {"age": age, **self.init_memory(num_rows, starts)}
                starts = torch.ones_like(starts)
            elif memory["age"].device != starts.device:
                memory = {name: value.to(starts.device) for name, value in memory.items()}
            memory["age"].add_(1).masked_fill_(starts, 0)
            self.make_room(memory)
        self._memory = memory
        return starts

    def encode_step(self, tensordict: TensorDictBase, starts: Tensor) -> Tensor:
        """The part of a step that follows `make_ready`. It can be recorded if `advance` reads nothing back.

        Args:
            tensordict: ``[*N]`` with the features, and ``step_index`` if positions are not to be counted.
            starts: What `make_ready` returned.

        Returns:
            ``[N, D]``, N rows in all.
        """
        return self._proceed(*self._timestep(tensordict), starts)

    @torch.no_grad()
    def _proceed(self, x: Tensor, step_index: Tensor | None, starts: Tensor) -> Tensor:
        memory = self._memory
        assert memory is not None
        entries = dict(memory)
        found = self.advance(x, memory["age"] if step_index is None else step_index, starts, memory)
        if capturing():  # what is recorded finds its memory where it was
            for name, value in entries.items():
                if memory[name] is not value:
                    value.copy_(memory[name])
            self._memory = entries
        return found

    def rows_that_start(self, tensordict: TensorDictBase) -> Tensor:
        """Which rows of an acting step must forget what they hold: ``[N]`` bool.

        Raises:
            ValueError: If the step does not tell.
        """
        is_init = tensordict.get(self.keys.is_init, None)
        if is_init is None:
            raise ValueError(
                f"{type(self).__name__}: a step must have key {self.keys.is_init!r} (without it memory would"
                f" never be reset), got {sorted(map(str, tensordict.keys(True)))}"
            )
        return is_init.reshape(-1).bool()

    @property
    def memory(self) -> dict[str, Tensor]:
        """The tensors of the acting memory themselves; empty before the first step."""
        return {} if self._memory is None else self._memory

    def move_memory(self, to: Mapping[str, Tensor]) -> None:
        """Goes on in other tensors of the same shapes, which get what the present ones hold."""
        for name, value in self.memory.items():
            if to[name] is not value:
                to[name].copy_(value)
        self._memory = dict(to)

    def reset_memory(self) -> None:
        """Forgets everything: the next step starts every row afresh."""
        self._memory = None

    def memory_state_dict(self) -> dict[str, Tensor]:
        """A snapshot of the acting memory; empty before the first step."""
        return {name: value.clone() for name, value in self.memory.items()}

    def load_memory_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continues from a snapshot of `memory_state_dict`; an empty one resets.

        Raises:
            ValueError: If ``state`` is no snapshot of such an encoder.
        """
        if state and "age" not in state:
            raise ValueError(f"{type(self).__name__}: state must hold 'age', got {sorted(state)}")
        with torch.inference_mode(False):
            self._memory = {name: value.clone() for name, value in state.items()} or None

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_memory": None}

    def _sequence(self, tensordict: TensorDictBase) -> Tensor:
        x = tensordict.get(self.keys.features)
        shape = x.shape[:-1]
        x = x.reshape(-1, *x.shape[-2:])
        is_init, mask, step_index = (
            None if value is None else value.reshape(x.shape[:2])
            for value in (
                tensordict.get(key, None) for key in (self.keys.is_init, self.keys.mask, self.keys.step_index)
            )
        )
        starts = segment_starts(x.shape[:2], is_init, mask, device=x.device)
        if step_index is None:
            step_index = segment_positions(starts)
        if mask is not None:
            padding = ~mask.bool()
            x = x.masked_fill(padding.unsqueeze(-1), 0)
            step_index = step_index.masked_fill(padding, 0)
        return self.parallel(x, step_index, starts).reshape(*shape, self.out_features)

    def _act(self, tensordict: TensorDictBase) -> Tensor:
        context = self.step(*self._timestep(tensordict), self.rows_that_start(tensordict))
        return context.reshape(*tensordict.get(self.keys.features).shape[:-1], self.out_features)

    def _timestep(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor | None]:
        """Features ``[N, E]`` and, where there is one, ``step_index`` ``[N]`` of an acting step."""
        x, step_index = tensordict.get(self.keys.features), tensordict.get(self.keys.step_index, None)
        return x.reshape(-1, x.shape[-1]), None if step_index is None else step_index.reshape(-1)


def segment_starts(
    shape: torch.Size, is_init: Tensor | None, mask: Tensor | None, *, device: torch.device
) -> Tensor:
    """Where a fresh memory begins in sequences of ``shape`` ``[B, L]``: bool ``[B, L]``.

    At the first column, where ``is_init`` says so, and where real timesteps follow padding.

    >>> is_init, mask = torch.tensor([[0, 0, 0, 1, 0]]).bool(), torch.tensor([[0, 1, 1, 1, 0]]).bool()
    >>> segment_starts(mask.shape, is_init, mask, device=mask.device).int()
    tensor([[1, 1, 0, 1, 0]], dtype=torch.int32)
    """
    starts = torch.zeros(shape, dtype=torch.bool, device=device)
    starts[:, 0] = True
    if is_init is not None:
        starts |= is_init.bool() if mask is None else is_init.bool() & mask.bool()
    if mask is not None:
        real = mask.bool()
        starts[:, 1:] |= real[:, 1:] & ~real[:, :-1]
    return starts


def segment_positions(starts: Tensor) -> Tensor:
    """How many timesteps each one lies behind the last start: bool ``[B, L]`` -> int64 ``[B, L]``.

    >>> segment_positions(torch.tensor([[True, False, False, True, False]]))
    tensor([[0, 1, 2, 0, 1]])
    """
    column = torch.arange(starts.shape[1], device=starts.device)
    return column - torch.where(starts, column, 0).cummax(1).values
