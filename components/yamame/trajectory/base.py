"""Trajectory encoders: features over time -> context, in one parallel pass or step by step.

Two passes compute the same function of the history:

* the *parallel* pass reads a batch of sequences ``[*, L]`` (training; under
  ``set_recurrent_mode(True)``);
* a *step* reads one timestep of N envs and a memory, and returns the context and the next memory.

A memory is a value: a TensorDict of batch size ``[N]`` that the caller may index, concatenate,
move, send or save. A step may write into the one it is given: clone a memory to go on from it
twice. For TorchRL loops, ``encoder(tensordict)`` keeps one between calls in its attribute
``memory``.

====================  ==============  ========  ==========================================================
key                   shape           dtype     meaning
====================  ==============  ========  ==========================================================
``features`` (in)     ``[*, L, E]``   float     what the timestep encoder made of each timestep
``step_index`` (in)   ``[*, L, 1]``   int64     timestep inside the episode; missing: counted from the start
``is_init`` (in)      ``[*, L, 1]``   bool      a fresh memory begins here; in a sequence it may be missing
``mask`` (in)         ``[*, L, 1]``   bool      real timestep; sequences only, missing: all are real
``context`` (out)     ``[*, L, D]``   float     summary of the history up to and including this timestep
====================  ==============  ========  ==========================================================

A step has the same keys without L and without ``mask``. A fresh memory begins at the first timestep
of a sequence, wherever ``is_init`` says so, and where real timesteps follow padding. Laws (see
`yamame.testing.check_trajectory_encoder`): both passes agree; no output depends on a later
timestep, on padding, on another env or on anything before the last start.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor
from torch.nn import functional as F
from torchrl.modules import recurrent_mode

from yamame.checks import require, require_at_least, require_choice
from yamame.execution.capturing import NUM_SEGMENTS

Device = torch.device | str | None
_FAR = 16
"""Steps for which a memory has room after a look at it that waits for the device."""


@dataclass(frozen=True)
class TrajectoryKeys:
    """Where an encoder reads and writes in a TensorDict; see the module, and of ``memory``
    `RecurrentEncoder`.
    """

    features: NestedKey = "features"
    step_index: NestedKey = "step_index"
    is_init: NestedKey = "is_init"
    mask: NestedKey = "mask"
    context: NestedKey = "context"
    memory: NestedKey | None = None


Activation = Literal["leaky_relu", "gelu", "relu"]


def activation_function(owner: str, name: Activation) -> Callable[[Tensor], Tensor]:
    """The activation called ``name``; for the class ``owner``, whom a message about another name
    speaks for.
    """
    require_choice(owner, "activation", name, get_args(Activation))
    function: Callable[[Tensor], Tensor] = getattr(F, name)
    return function


class TrajectoryEncoder(TensorDictModuleBase):
    """Base of everything that turns features over time into context.

    A subclass implements `init_memory` and `step`, `parallel` where one step after the other is too
    slow, and `grow` if its memory has a length; or `grow_by`, so that not every step on a device
    waits for a look at that length.

    Args:
        in_features: Size E of the features.
        out_features: Size D of the context.
        context_length: Longest history, in timesteps, that steps reproduce exactly; None if any.
        keys: Where to read and write, if not under the usual names.

    Attributes:
        memory: What is remembered between calls: neither parameter nor buffer. It stays when
            weights change, and ``copy.deepcopy`` and ``pickle`` leave it behind. Nothing is
            differentiated through it.
        capture_obstacle: What keeps the parallel pass from being captured as a CUDA graph; None if
            nothing does.
        compile_obstacle: What keeps it from being compiled, and not from being captured.
        takes_num_segments: Whether `parallel` has an argument ``num_segments``: how many memories
            begin, at most, where the host knows without asking the device, else None.

    Raises:
        ValueError: If a size is not positive, or ``keys.memory`` is set for an encoder that is not
            recurrent.
    """

    is_recurrent = False
    takes_num_segments = False
    capture_obstacle: str | None = None
    compile_obstacle: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        context_length: int | None = None,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        require_at_least(name, 1, in_features=in_features, out_features=out_features)
        require_at_least(name, 1, context_length=1 if context_length is None else context_length)
        self.in_features = in_features
        self.out_features = out_features
        self.context_length = context_length
        self.keys = keys = TrajectoryKeys() if keys is None else keys
        self.in_keys: list[NestedKey] = [keys.features, keys.step_index, keys.is_init]
        self.out_keys: list[NestedKey] = [keys.context]
        fits, condition = (
            keys.memory is None or self.is_recurrent,
            "be None: only recurrent encoders have it",
        )
        require(name, "keys.memory", keys.memory, fits, condition)
        self.memory = None

    @property
    def memory(self) -> TensorDict | None:
        """See the class."""
        return self._memory

    @memory.setter
    def memory(self, memory: TensorDict | None) -> None:
        self._memory, self._room = memory, 0  # how many steps there surely is room for

    @abstractmethod
    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """A fresh memory ``[N]``, on the weights' device unless one is given; with a length: for
        ``capacity`` steps.
        """

    @abstractmethod
    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encodes one timestep of every env. Decides nothing by the data, and changes no attribute.

        Args:
            x: ``[N, E]``.
            memory: ``[N]``, what `init_memory` or the step before returned, after `grow`. May be
                written into.
            is_init: ``[N]`` bool, envs that must forget what their memory holds.
            step_index: ``[N]`` int64, for encoders that use positions; None: counted from the
                start.

        Returns:
            The context ``[N, D]`` and the next memory.
        """

    def check_step(self, x: Tensor, memory: TensorDict, is_init: Tensor) -> None:
        """Raises ValueError unless these are of equally many envs; `step` begins with it."""
        got = (len(x), len(memory), len(is_init))
        require(
            type(self).__name__,
            "x, memory and is_init",
            got,
            len(set(got)) == 1,
            "be of equally many envs",
        )

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encodes whole sequences ``[B, L, E] -> [B, L, D]``; here, one step after the other.

        ``step_index`` is ``[B, L]`` int64; ``is_init`` ``[B, L]`` bool says where a fresh memory
        begins, True in the first column.
        """
        memory = self.init_memory(len(x), capacity=x.shape[1], device=x.device)
        contexts = []
        for t in range(x.shape[1]):
            context, memory = self.step(x[:, t], self.grow(memory), is_init[:, t], step_index[:, t])
            contexts.append(context)
        return torch.stack(contexts, 1)

    def grow(self, memory: TensorDict) -> TensorDict:
        """``memory`` with room for one timestep more. Called between steps; only where memory has a
        length.
        """
        return self.grow_by(memory, 1)[0]

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """``memory`` with room for so many timesteps more, if that can be told; and for how many
        there is.
        """
        if type(self).grow is TrajectoryEncoder.grow:
            return memory, sys.maxsize
        return self.grow(memory), 1

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the context: of whole sequences under ``recurrent_mode()``, else of one timestep.

        Raises:
            ValueError: A step has no ``is_init``, or another number of envs than the memory.
        """
        if recurrent_mode():
            return tensordict.set(self.keys.context, self._sequences(tensordict))
        return self._step(tensordict)

    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        x, is_init, step_index = self.read_step(tensordict)
        context, memory = self.step(x, self.ready_memory(is_init), is_init, step_index)
        self.keep_memory(memory)
        batch_size = tensordict.get(self.keys.features).shape[:-1]
        return tensordict.set(self.keys.context, context.reshape(*batch_size, self.out_features))

    def read_is_init(self, tensordict: TensorDictBase) -> Tensor:
        """Which envs of a step ``[*N]`` start afresh: ``[N]`` bool. Raises ValueError if the step
        does not tell.
        """
        is_init = tensordict.get(self.keys.is_init, None)
        if is_init is None:
            raise ValueError(
                f"{type(self).__name__}: a step must have key {self.keys.is_init!r} (without it memory would"
                f" never be reset), got {sorted(map(str, tensordict.keys(True)))}"
            )
        return is_init.reshape(-1).bool()

    def read_step(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, Tensor | None]:
        """What `step` takes of a TensorDict ``[*N]``: ``x`` ``[N, E]``, ``is_init`` ``[N]``,
        ``step_index`` ``[N]``.
        """
        x, step_index = (
            tensordict.get(self.keys.features),
            tensordict.get(self.keys.step_index, None),
        )
        step_index = None if step_index is None else step_index.reshape(-1)
        return x.reshape(-1, x.shape[-1]), self.read_is_init(tensordict), step_index

    @torch.no_grad()
    def ready_memory(self, is_init: Tensor) -> TensorDict:
        """The memory that the module keeps, ready for the next step of the envs ``is_init`` ``[N]``
        is of.

        Raises:
            ValueError: It is of another number of envs, and not all of them start afresh.
        """
        memory, num_envs = self.memory, len(is_init)
        # Normal tensors even under inference mode, so that a later step outside it may write into
        # them.
        with torch.inference_mode(False):
            if memory is None or len(memory) != num_envs:
                if memory is not None and not (memory.is_empty() or is_init.all()):
                    raise ValueError(
                        f"{type(self).__name__}: the number of envs must stay {len(memory)} until all of them start"
                        f" afresh (is_init), got {num_envs}; act inside separate_memory() for a second stream, or keep"
                        " a memory of your own for each and call step()"
                    )
                self.memory = memory = self.init_memory(num_envs, device=is_init.device)
            elif memory.device != is_init.device:
                self.memory = memory = memory.to(is_init.device)
            if is_init.is_cpu:  # where a look costs nothing
                self._memory, self._room = self.grow(memory), 1
            elif self._room < 1:
                self.reserve(_FAR)
        self._room -= 1
        return self._memory

    def keep_memory(self, memory: TensorDict) -> None:
        """Remembers what a step made of `ready_memory`. Another memory is set as an attribute."""
        self._memory = memory

    def reserve(self, num_steps: int) -> bool:
        """Makes room in the memory for so many steps, none of which looks whether there is any;
        whether there is.
        """
        if self.memory is None:
            return False
        if self._room < num_steps:
            with torch.inference_mode(False):
                self.memory, self._room = self.grow_by(self.memory, num_steps)
        return self._room >= num_steps

    def reset_memory(self) -> None:
        """Forgets everything: the next step starts every env afresh."""
        self.memory = None

    def memory_state_dict(self) -> dict[str, Any]:
        """A copy of the memory for a checkpoint; empty before the first step."""
        return {} if self.memory is None else {"memory": self.memory.clone()}

    def load_memory_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `memory_state_dict` returned."""
        with torch.inference_mode(False):
            self.memory = state["memory"].clone() if state else None

    def _sequences(self, tensordict: TensorDictBase) -> Tensor:
        x = tensordict.get(self.keys.features)
        batch_size = x.shape[:-1]
        x = x.reshape(-1, *x.shape[-2:])
        keys = self.keys.is_init, self.keys.mask, self.keys.step_index
        values = [tensordict.get(key, None) for key in keys]
        is_init, mask, step_index = (None if v is None else v.reshape(x.shape[:2]) for v in values)
        starts = segment_starts(x.shape[:2], is_init, mask, device=x.device)
        if step_index is None:
            step_index = segment_positions(starts)
        if mask is not None:
            padding = ~mask.bool()
            x = x.masked_fill(padding.unsqueeze(-1), 0)
            step_index = step_index.masked_fill(padding, 0)
        known = {}
        if self.takes_num_segments and (self.keys.is_init, self.keys.mask) == ("is_init", "mask"):
            known["num_segments"] = tensordict.get_non_tensor(NUM_SEGMENTS, default=None)
        context = self.parallel(x, step_index, starts, **known)
        return context.reshape(*batch_size, self.out_features)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_memory": None, "_room": 0}


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
