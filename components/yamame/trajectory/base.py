"""Trajectory encoders: features over time -> context, in one parallel pass or step by step.

Two passes compute the same function of the history:

* the *parallel* pass encodes a batch of sequences ``[*, L]`` (training; under
  ``set_recurrent_mode(True)``);
* a *step* encodes one timestep of N envs, given a memory, and returns the context and the next
  memory.

A memory is a value: a TensorDict of batch size ``[N]`` that the caller may index, concatenate,
move, send or save. A step may write into its input memory: clone a memory to continue from it
twice. For TorchRL loops, ``encoder(tensordict)`` keeps one between calls in its attribute
``memory``, or finds it in the TensorDict (``TrajectoryKeys(memory="memory")``).

====================  ==============  ========  =================================================
key                   shape           dtype     meaning
====================  ==============  ========  =================================================
``features`` (in)     ``[*, L, E]``   float     features of each timestep (timestep encoder)
``step_index`` (in)   ``[*, L, 1]``   int64     timestep in the episode; counted if missing
``is_init`` (in)      ``[*, L, 1]``   bool      a fresh memory begins; optional in a sequence
``mask`` (in)         ``[*, L, 1]``   bool      real timestep; sequences only, default all real
``context`` (out)     ``[*, L, D]``   float     summary of the history including this timestep
====================  ==============  ========  =================================================

A step has the same keys without L and without ``mask``. A fresh memory begins at the first timestep
of a sequence, at every ``is_init``, and at the first real timestep after padding; in rollouts of
TorchRL, also after ``("next", "done")`` and where ``("collector", "traj_ids")`` changes. Laws (see
`yamame.testing.check_trajectory_encoder`): both passes agree; no output depends on a later
timestep, on padding, on another env or on anything before the last start, NaN included.
"""

import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor
from torch.nn import functional as F
from torchrl.data import Composite, Unbounded
from torchrl.envs import TensorDictPrimer
from torchrl.modules import recurrent_mode

from yamame.checks import Activation as Activation
from yamame.checks import (
    Bounds,
    PositiveInt,
    check_bounds,
    require,
    require_activation,
)
from yamame.execution.capturing import NUM_SEGMENTS
from yamame.rollouts import changes_trajectory, check_not_mapped, read_is_init
from yamame.trajectory.steps import (
    LastStep,
    check_sequences,
    check_step,
    encode_apart,
    read_features,
    segment_positions,
    segment_starts,
)
from yamame.trajectory.steps import TrajectoryKeys as TrajectoryKeys

Device = torch.device | str | None
DropoutRate = Annotated[float, Bounds(least=0, below=1)]
"""Probability of dropping an element, in [0, 1)."""

_STEPS_AHEAD = 16
"""Steps for which a memory on a device grows at once. Checking its length waits for the device."""


def activation_function(owner: str, name: Activation) -> Callable[[Tensor], Tensor]:
    """Return an activation by its name.

    Args:
        owner: Class named in the error.
        name: Name of the activation.
    """
    require_activation(owner, name)
    function: Callable[[Tensor], Tensor] = getattr(F, name)
    return function


class TrajectoryEncoder(TensorDictModuleBase):
    """Base class of all modules that turn features over time into context.

    A subclass implements `init_memory` and `step`; `parallel` if one step after the other is too
    slow; and `grow` if its memory has a length, or `grow_by` to avoid a synchronisation with the
    device at every step.

    `parallel` may have a further argument ``num_segments: int | None = None``: an upper bound of
    the number of memories that begin in the batch, if it is known without a synchronisation.

    Args:
        in_features: Size E of the features.
        out_features: Size D of the context.
        context_length: Longest history, in timesteps, that steps reproduce exactly; None for any.
        keys: Keys to read and write; None for the defaults.

    Attributes:
        memory: Memory kept between calls, neither parameter nor buffer. It survives changes of the
            weights; ``copy.deepcopy`` and ``pickle`` drop it. No gradient passes through it.
        capture_obstacle: Reason why the parallel pass cannot be captured as a CUDA graph, or None.
        compile_obstacle: Reason why it cannot be compiled although it can be captured, or None.

    Raises:
        ArgumentError: A size is not positive, or ``keys.memory`` is set for a memory that grows
            without end.
    """

    last_step: LastStep | None
    memory_length: int | None = None
    """Timesteps after which a memory has its full size; None if it has no length."""
    capture_obstacle: str | None = None
    compile_obstacle: str | None = None

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        out_features: PositiveInt,
        *,
        context_length: PositiveInt | None = None,
        keys: TrajectoryKeys | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.context_length = context_length

        keys = TrajectoryKeys() if keys is None else keys
        is_known = isinstance(keys, TrajectoryKeys)
        require(type(self).__name__, "keys", keys, is_known, "be TrajectoryKeys(...)")
        self.keys = keys
        self.in_keys: list[NestedKey] = [keys.features, keys.step_index, keys.is_init]
        self.out_keys: list[NestedKey] = [keys.context]
        if keys.memory is not None:
            self.in_keys.append(keys.memory)
            self.out_keys.append(unravel_key(("next", keys.memory)))

        self._takes_num_segments = "num_segments" in inspect.signature(self.parallel).parameters
        self.memory = None

    # Memory as a value.

    @abstractmethod
    def init_memory(
        self, num_envs: int, *, capacity: int | None = None, device: Device = None
    ) -> TensorDict:
        """Return a fresh memory.

        Args:
            num_envs: Number N of envs.
            capacity: Number of steps for which a memory with a length has room; None for a memory
                that is grown before the first step.
            device: Device of the memory; None for that of the weights.

        Returns:
            ``[N]``.
        """

    @abstractmethod
    def step(
        self, x: Tensor, memory: TensorDict, is_init: Tensor, step_index: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Encode one timestep of every env.

        A step does not change attributes of the module and, while it is captured
        (`yamame.execution.capturing`), does not branch on values of tensors.

        Args:
            x: ``[N, E]``.
            memory: ``[N]``, returned by `init_memory` or by the previous step, after `grow`. A step
                may write into it.
            is_init: ``[N]`` bool, envs that must forget the content of their memory.
            step_index: ``[N]`` int64, for encoders that use positions; None to count from the
                start.

        Returns:
            The context ``[N, D]`` and the next memory.
        """

    def check_step(self, x: Tensor, memory: TensorDict, is_init: Tensor) -> None:
        """Raise ValueError if the arguments of `step` have different numbers of envs, or 0."""
        owner = type(self).__name__
        num_envs = (len(x), len(memory), len(is_init))
        fits = len(set(num_envs)) == 1 and len(x) > 0
        require(owner, "x, memory and is_init", num_envs, fits, "be of equally many envs, not 0")

    def parallel(self, x: Tensor, step_index: Tensor, is_init: Tensor) -> Tensor:
        """Encode whole sequences; this default takes one step after the other.

        Args:
            x: ``[B, L, E]``.
            step_index: ``[B, L]`` int64.
            is_init: ``[B, L]`` bool, starts of fresh memories; True in the first column.

        Returns:
            The context ``[B, L, D]``.
        """
        batch, length, _ = x.shape
        memory = self.init_memory(batch, capacity=length, device=x.device)
        contexts = []
        for t in range(length):
            memory = self.grow(memory)
            starts = is_init[:, t]
            context, memory = self.step(x[:, t], memory, starts, step_index[:, t])
            contexts.append(context)
        return torch.stack(contexts, 1)

    def grow(self, memory: TensorDict) -> TensorDict:
        """Return a memory with room for one more timestep. Only memories with a length change."""
        larger, _ = self.grow_by(memory, 1)
        return larger

    def grow_by(self, memory: TensorDict, num_steps: int) -> tuple[TensorDict, int]:
        """Return a memory with room for several timesteps, and the number that it has room for.

        The number may be less than ``num_steps`` if the encoder implements `grow` only.
        """
        if type(self).grow is TrajectoryEncoder.grow:
            # The memory of this encoder has no length.
            return memory, sys.maxsize
        return self.grow(memory), 1

    # One module call for both passes, as TorchRL expects it.

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the context: of whole sequences under ``recurrent_mode()``, else of one timestep.

        Raises:
            ValueError: A step has no ``is_init``, its number of envs differs from that of the
                memory, or it does not continue the episodes in the memory; or a batch is not of
                timesteps outside of ``recurrent_mode()``, not of sequences inside, or empty; or the
                dtype of features is not that of the weights, outside of autocast.
        """
        if not recurrent_mode():
            if self.keys.memory is not None:
                return self._step_from_key(tensordict)
            return self._step(tensordict)
        context = self._sequences(tensordict)
        return tensordict.set(self.keys.context, context)

    def _sequences(self, tensordict: TensorDictBase) -> Tensor:
        keys = self.keys
        x = read_features(self, tensordict, keys.features)
        batch_size = x.shape[:-1]
        check_sequences(type(self).__name__, tensordict, batch_size, keys=keys)
        x = x.reshape(-1, *x.shape[-2:])  # [B, L, E]
        rows = x.shape[:2]

        def read(key: NestedKey) -> Tensor | None:
            value = tensordict.get(key, None)
            return None if value is None else value.reshape(rows)

        is_init = read(keys.is_init)
        mask = read(keys.mask)
        step_index = read(keys.step_index)
        has_same_shape = tensordict.batch_size == batch_size
        ends = changes_trajectory(tensordict) if has_same_shape else None
        check_not_mapped(type(self).__name__, is_init, mask, step_index, ends)
        starts = segment_starts(rows, is_init, mask, ends, device=x.device)
        if step_index is None:
            step_index = segment_positions(starts)
        if mask is not None:
            # Padding may hold anything, NaN and indices beyond a table included.
            padding = ~mask.bool()
            x = x.masked_fill(padding.unsqueeze(-1), 0)
            step_index = step_index.masked_fill(padding, 0)

        known: dict[str, Any] = {}
        # The number was counted under the default keys; other keys may hold other starts.
        has_default_keys = (keys.is_init, keys.mask) == ("is_init", "mask")
        if self._takes_num_segments and has_default_keys and ends is None:
            known["num_segments"] = tensordict.get_non_tensor(NUM_SEGMENTS, default=None)
        context = encode_apart(self.parallel, x, step_index, starts, **known)
        return context.reshape(*batch_size, self.out_features)

    @torch.no_grad()
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        x, is_init, step_index = self.read_step(tensordict)
        memory = self.memory_for(tensordict)
        context, memory = self.step(x, memory, is_init, step_index)
        self.keep_memory(memory)
        features = tensordict.get(self.keys.features)
        context = context.reshape(*features.shape[:-1], self.out_features)
        if self.last_step is not None:
            self.last_step.context = context
        return tensordict.set(self.keys.context, context)

    @torch.no_grad()
    def _step_from_key(self, tensordict: TensorDictBase) -> TensorDictBase:
        keys = self.keys
        assert keys.memory is not None
        x, is_init, step_index = self.read_step(tensordict)
        batch_size = tensordict.get(keys.features).shape[:-1]
        memory = tensordict.get(keys.memory, None)
        if memory is None:
            memory = self.fixed_memory(len(x), device=x.device)
            # Starting afresh in the middle of an episode would be a silent error.
            is_fresh = memory.is_empty() or bool(is_init.all())
            condition = "be in the tensordict of a step (make_tensordict_primer puts it there)"
            require(type(self).__name__, repr(keys.memory), None, is_fresh, condition)
        else:
            # A copy: a step may write into it, and the caller stores it as it was.
            memory = memory.reshape(-1).clone()
        context, memory = self.step(x, memory, is_init, step_index)
        if not memory.is_empty():
            tensordict.set(("next", keys.memory), memory.reshape(batch_size))
        context = context.reshape(*batch_size, self.out_features)
        return tensordict.set(keys.context, context)

    def read_step(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the arguments of `step` in a TensorDict ``[*N]``.

        Returns:
            ``x`` ``[N, E]``, ``is_init`` ``[N]`` bool, and ``step_index`` ``[N]`` or None.
        """
        x = read_features(self, tensordict, self.keys.features)
        x = x.reshape(-1, x.shape[-1])
        is_init = self.read_is_init(tensordict)
        step_index = tensordict.get(self.keys.step_index, None)
        if step_index is not None:
            step_index = step_index.reshape(-1)
        return x, is_init, step_index

    def read_is_init(self, tensordict: TensorDictBase) -> Tensor:
        """Return the flags of envs that start afresh, ``[N]`` bool; raise without an entry."""
        is_init = read_is_init(type(self).__name__, tensordict, self.keys.is_init)
        return is_init.reshape(-1).bool()

    # Memory in the TensorDict.

    def limit_memory(self, length: int | None, setting: str) -> None:
        """Declare after how many timesteps a memory that grows has its full size.

        Args:
            length: Number of timesteps; None if it grows without end.
            setting: Arguments that limit it, in words.

        Raises:
            ArgumentError: It grows without end, and ``keys.memory`` is set.
        """
        self.memory_length = length
        is_fixed = self.keys.memory is None or length is not None
        condition = f"be None, because the memory grows without end; set {setting}"
        require(type(self).__name__, "keys.memory", self.keys.memory, is_fixed, condition)

    def fixed_memory(self, num_envs: int, *, device: Device = None) -> TensorDict:
        """Return a fresh memory ``[N]`` of full size, which never grows.

        Raises:
            ArgumentError: It would grow.
        """
        memory = self.init_memory(num_envs, capacity=self.memory_length, device=device)
        _, room = self.grow_by(memory, 1)
        condition = "not grow; call limit_memory in the constructor, and implement grow_by"
        require(type(self).__name__, "memory", f"{room} steps", room == sys.maxsize, condition)
        return memory

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Return the transform that writes a fresh memory at every reset of an environment.

        It is empty if ``keys.memory`` is None, because the module then keeps its memory.
        """
        primers = Composite()
        if self.keys.memory is not None:
            memory = self.fixed_memory(1)
            for name, value in memory.items(True, True):
                spec = Unbounded(value.shape[1:], dtype=value.dtype)
                primers[unravel_key((self.keys.memory, name))] = spec
        return TensorDictPrimer(primers, default_value=0.0, expand_specs=True)

    # Memory kept between calls.

    def memory_for(self, tensordict: TensorDictBase) -> TensorDict:
        """Return the memory kept by the module, with room for a step ``[*N]``, after checks.

        On a CPU, the step is compared with the last one: the memory may belong to another stream of
        steps (`yamame.trajectory.steps`).

        Raises:
            ValueError: The batch is not a step, or does not continue the episodes in the memory.
        """
        owner = type(self).__name__
        is_init = self.read_is_init(tensordict)
        is_first = self._memory is None and not self._starts_afresh
        step = check_step(
            owner, tensordict, is_init, keys=self.keys, last=self.last_step, is_first=is_first
        )
        memory = self.ready_memory(is_init)
        if self.last_step is not step:
            self.last_step = step
        return memory

    @property
    def memory(self) -> TensorDict | None:
        """Memory kept between calls; None before the first step."""
        return self._memory

    @memory.setter
    def memory(self, memory: TensorDict | None) -> None:
        self._memory = memory
        self._room = 0  # steps for which there is certainly room; unknown in a new memory
        self.last_step = None  # unknown in a new memory
        self._starts_afresh = False

    @torch.no_grad()
    def ready_memory(self, is_init: Tensor) -> TensorDict:
        """Return the memory kept by the module, with room for the next step.

        Args:
            is_init: ``[N]`` bool, envs that start afresh.

        Raises:
            ValueError: The memory belongs to a different number of envs, and not all of them start
                afresh.
        """
        memory = self._memory
        is_other = memory is None or len(memory) != len(is_init) or memory.device != is_init.device
        if is_other or self._room < 1:
            # Normal tensors, into which a later step outside of inference mode may write.
            with torch.inference_mode(False):
                self._fit_memory(is_init)
                if is_init.is_cpu:
                    # Reading the length is cheap here, so a memory grows as late as possible.
                    self._memory, self._room = self.grow_by(self._memory, 1)
                elif self._room < 1:
                    self.reserve(_STEPS_AHEAD)
        self._room -= 1
        return self._memory

    def _fit_memory(self, is_init: Tensor) -> None:
        """Start a memory for other envs; move it if it is on a different device."""
        memory = self._memory
        num_envs = len(is_init)
        device = is_init.device
        if memory is None:
            self.memory = self.init_memory(num_envs, device=device)
            return
        if len(memory) == num_envs:
            if memory.device != device:
                self.memory = memory.to(device)
            return

        # Without entries there is nothing to lose.
        if not memory.is_empty() and not is_init.all():
            raise ValueError(
                f"{type(self).__name__}: the number of envs must stay {len(memory)} until all of "
                f"them start an episode (is_init), got {num_envs}; use separate_memory() or step() "
                "for a second stream, and set_recurrent_mode(True) for batches of sequences"
            )
        self.memory = self.init_memory(num_envs, device=device)

    def keep_memory(self, memory: TensorDict) -> None:
        """Store the memory of a step after `ready_memory`; set ``memory`` to any other one."""
        self._memory = memory

    def reserve(self, num_steps: int) -> bool:
        """Make room in the memory for several steps, so that none of them has to check its length.

        Returns:
            Whether there is room for all of them.
        """
        if self.memory is None:
            return False
        if self._room < num_steps:
            with torch.inference_mode(False):
                larger, room = self.grow_by(self.memory, num_steps)
            self.memory = larger
            self._room = room
        return self._room >= num_steps

    def reset_memory(self) -> None:
        """Forget everything: the next step starts every env afresh."""
        self.memory = None
        self._starts_afresh = True

    def memory_state_dict(self) -> dict[str, Any]:
        """Return a copy of the memory for a checkpoint; empty before the first step."""
        return {} if self.memory is None else {"memory": self.memory.clone()}

    def load_memory_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a memory that `memory_state_dict` returned."""
        with torch.inference_mode(False):
            self.memory = state["memory"].clone() if state else None
        self._starts_afresh = not state

    def __getstate__(self) -> dict[str, object]:
        state = dict(super().__getstate__())
        state["_memory"] = None
        state["_room"] = 0
        state["last_step"] = None
        state["_starts_afresh"] = False
        return state
