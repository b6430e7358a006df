"""Checks of the batches that an encoder is called with: their layout, and the stream of a step.

A module that keeps its memory serves one *stream* of steps: one env batch, step after step. Nothing
in a step names its stream, so a second one, such as an evaluation between two steps of a collector,
is found by marks that TorchRL's loops leave in a step:

* ``("collector", "traj_ids")``, which collectors write and rollouts do not;
* ``step_index``, which counts up by one, stays (an env that waits) or begins again;
* ``context`` of the step before, which rollouts, collectors and ``step_and_maybe_reset`` carry
  along.

The latter two count as marks once they have been seen to behave so. A stream is not recognised if
its steps have none of these marks, if its marks equal those of the other stream, if it begins anew
with every ``is_init`` set, or on a device other than the CPU, where a comparison would wait.
`yamame.trajectory.separate_memory`, or a memory in the TensorDict, is always safe.
"""

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import require
from yamame.rollouts import TRAJ_IDS
from yamame.trajectory.keys import TrajectoryKeys

RECURRENT_REMEDY = "compute sequences [B, L] within torchrl.modules.set_recurrent_mode(True)"
STREAM_REMEDY = (
    "another stream of steps, such as an evaluation, has used this memory; act in one of them "
    "within yamame.trajectory.separate_memory(policy), or keep the memory in the TensorDict: "
    "keys=TrajectoryKeys(memory='memory')"
)


def check_sequences(owner: str, tensordict: TensorDictBase, batch_size: torch.Size) -> None:
    """Raise unless a batch under ``recurrent_mode()`` has a time dimension.

    Args:
        owner: Class named in the error.
        tensordict: Batch.
        batch_size: Shape of the features without their last dimension.

    Raises:
        ArgumentError: The batch is flat, and its dimension is not named ``"time"``.
    """
    if len(batch_size) > 1:
        return
    is_one_sequence = len(batch_size) == 1 and "time" in _names(tensordict)
    require(
        owner,
        "a batch within set_recurrent_mode(True)",
        list(batch_size),
        is_one_sequence,
        "be of sequences [B, L]",
        remedy="reshape flat slices to [B, L]; one sequence is [1, L]",
    )


def check_step(
    owner: str,
    tensordict: TensorDictBase,
    is_init: Tensor,
    *,
    keys: TrajectoryKeys,
    last: "LastStep | None",
    is_first: bool,
) -> "LastStep | None":
    """Check the layout of a step, and on a CPU that it continues the episodes of the last one.

    Args:
        owner: Class named in the error.
        tensordict: Step ``[*N]``.
        is_init: ``[N]`` bool, envs that start afresh.
        keys: Keys of the encoder.
        last: Last step; None if unknown.
        is_first: True if there is no memory yet, and none was dropped on purpose.

    Returns:
        Marks of this step; None on other devices.

    Raises:
        ArgumentError: It is no step, or belongs to another stream of steps.
    """
    features = tensordict.get(keys.features, None)
    shape = tensordict.batch_size if features is None else features.shape[:-1]
    check_step_layout(owner, tensordict, is_init, shape, last=last, is_first=is_first)
    if not is_init.is_cpu:
        return None

    step_index = tensordict.get(keys.step_index, None)
    if step_index is not None:
        step_index = step_index.reshape(-1)
    ids = tensordict.get(TRAJ_IDS, None)
    if ids is not None:
        ids = ids.reshape(-1)
    if last is not None and last.shape == shape:
        # Stored steps hold the context of their own.
        is_stored = "next" in tensordict.keys()
        context = None if is_stored else tensordict.get(keys.context, None)
        last.check_next(owner, is_init, step_index=step_index, ids=ids, context=context)

    expected = None if step_index is None else step_index + 1
    # A copy: collectors write into it.
    step = LastStep(shape, expected, None if ids is None else ids.clone())
    if last is not None:
        step.counts = last.counts
        step.carries = last.carries
    return step


def check_step_layout(
    owner: str,
    tensordict: TensorDictBase,
    is_init: Tensor,
    shape: torch.Size,
    *,
    last: "LastStep | None",
    is_first: bool,
) -> None:
    """Raise if a batch outside of ``recurrent_mode()`` may be one of sequences.

    It is if a dimension is named ``"time"``, as in the batches of TorchRL's collectors and
    rollouts; if it has several dimensions and holds the outcomes of its steps; if it has several
    dimensions, or holds outcomes, and begins a memory within episodes; and if its dimensions are
    others than those of the step before.

    Args:
        owner: Class named in the error.
        tensordict: Batch.
        is_init: Starts.
        shape: Shape of the envs.
        last: Step before; None if unknown.
        is_first: True if there is no memory yet, and none was dropped on purpose.

    Raises:
        ArgumentError: It may be a batch of sequences.
    """
    reason = None
    if "time" in _names(tensordict):
        reason = "with a dimension named 'time'"
    else:
        is_nested = len(shape) > 1
        is_other = last is not None and last.shape != shape and last.shape.numel() == shape.numel()
        if is_nested or is_first or is_other:
            has_outcome = tensordict.get(("next", "done"), None) is not None
            if is_nested and has_outcome:
                reason = "that holds the outcomes of its steps"
            elif is_first and (is_nested or has_outcome) and not bool(is_init.all()):
                reason = "that begins within episodes (is_init)"
            elif is_other and not bool(is_init.all()):
                assert last is not None
                reason = f"after steps of {list(last.shape)} envs"
    got = f"a batch {list(shape)} {reason}"
    condition = "be one timestep of envs [*N]"
    require(owner, "a step", got, reason is None, condition, remedy=RECURRENT_REMEDY)


def _names(tensordict: TensorDictBase) -> list[str | None]:
    return tensordict.names or []


@dataclass
class LastStep:
    """Marks of the last step that a memory has seen.

    Attributes:
        shape: Shape of the envs.
        expected: ``step_index`` of the next step ``[N]``, or None.
        ids: Numbers of the trajectories ``[N]``, or None.
        context: Context that was written into the TensorDict, or None.
        counts: Whether ``step_index`` has been seen to count.
        carries: Whether the context has been seen in the TensorDict of the next step.
    """

    shape: torch.Size
    expected: Tensor | None
    ids: Tensor | None
    context: Tensor | None = None
    counts: bool = False
    carries: bool = False

    def check_next(
        self,
        owner: str,
        is_init: Tensor,
        *,
        step_index: Tensor | None,
        ids: Tensor | None,
        context: Tensor | None,
    ) -> None:
        """Raise if a step does not continue the episodes of this one.

        Args:
            owner: Class named in the error.
            is_init: ``[N]`` bool, envs that start afresh. All others must continue.
            step_index: ``[N]``, or None.
            ids: ``[N]``, or None.
            context: Context in the TensorDict, or None.

        Raises:
            ArgumentError: It belongs to another stream of steps.
        """
        found = self._find_other_count(is_init, step_index)
        if found is None:
            found = self._find_other_ids(is_init, ids)
        if found is None:
            found = self._find_other_context(is_init, context)
        condition = "continue the episodes in the memory of the module"
        require(owner, "a step", found, found is None, condition, remedy=STREAM_REMEDY)

    def _find_other_count(self, is_init: Tensor, step_index: Tensor | None) -> str | None:
        if step_index is None or self.expected is None:
            return None
        if torch.equal(step_index, self.expected):
            self.counts = True
            return None
        # An env that waits for others keeps its count; a count may begin again within an episode.
        is_next = (step_index == self.expected) | is_init
        is_known = is_next | (step_index == self.expected - 1) | (step_index == 0)
        if bool(is_known.all()):
            self.counts = self.counts or bool((is_next & ~is_init).any())
            return None
        if not self.counts:
            return None
        env = int((~is_known).nonzero()[0])
        return f"step_index {int(step_index[env])} in env {env} after {int(self.expected[env]) - 1}"

    def _find_other_ids(self, is_init: Tensor, ids: Tensor | None) -> str | None:
        if ids is None and self.ids is None:
            return None
        if ids is None or self.ids is None:
            if bool(is_init.all()):
                return None
            others = "without" if ids is None else "with"
            return f"one {others} ('collector', 'traj_ids')"
        if torch.equal(ids, self.ids):
            return None
        is_other = (ids != self.ids) & ~is_init
        if not bool(is_other.any()):
            return None
        env = int(is_other.nonzero()[0])
        return f"trajectory {int(ids[env])} in env {env} after {int(self.ids[env])}"

    def _find_other_context(self, is_init: Tensor, context: Tensor | None) -> str | None:
        if context is None or self.context is None:
            return None
        if context is self.context:
            self.carries = True
            return None
        if context.shape != self.context.shape or context.device != self.context.device:
            return None
        is_same = (context == self.context).reshape(len(is_init), -1).all(1)
        if bool((is_same | is_init).all()):
            self.carries = self.carries or bool((is_same & ~is_init).any())
            return None
        if not self.carries:
            return None
        env = int((~is_same & ~is_init).nonzero()[0])
        return f"the context of other steps in env {env}"
