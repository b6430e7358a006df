"""Sequences and steps as encoders read them: keys, starts of memories, and checks of both.

A module that keeps its memory serves one *stream* of steps: one env batch, step after step. Nothing
in a step names its stream, so a second one, such as an evaluation between two steps of a collector,
is found by marks that TorchRL's loops leave in a step:

* ``("collector", "traj_ids")``, which collectors write and rollouts do not;
* ``step_index``, which counts up by one, stays (an env that waits) or begins again: one that has
  counted since its start does otherwise, or all do;
* ``context`` of the step before, which rollouts, collectors and ``step_and_maybe_reset`` carry
  along.

The latter two count as marks once they have been seen to behave so. A stream is not recognised if
its steps have none of these marks, if its marks equal those of the other stream, if it begins anew
with every ``is_init`` set, or on a device other than the CPU, where a comparison would wait.
`yamame.trajectory.separate_memory`, or a memory in the TensorDict, is always safe.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from yamame.checks import require, require_tensordict
from yamame.execution.capturing import capturing
from yamame.rollouts import TRAJ_IDS

RECURRENT_REMEDY = "compute sequences [B, L] within torchrl.modules.set_recurrent_mode(True)"
STREAM_REMEDY = (
    "another stream of steps, such as an evaluation, has used this memory; act in one of them "
    "within yamame.trajectory.separate_memory(policy), or keep the memory in the TensorDict: "
    "keys=TrajectoryKeys(memory='memory'); if steps were taken without the policy "
    "(init_random_frames), call the encoder's reset_memory() after the collector is made"
)


@dataclass(frozen=True)
class TrajectoryKeys:
    """Keys that an encoder reads and writes; see the module.

    ``memory``: None, and the module keeps its memory. With a key, the memory lives in the
    TensorDict: a step reads it there (a fresh one if it is missing at a start) and writes the next
    one under ``("next", memory)``, as `torchrl.modules.GRUModule` does, and
    `TrajectoryEncoder.make_tensordict_primer` adds it to an environment. Any number of streams may
    then share a module. Whole sequences always begin with a fresh memory: they do not read the
    stored one. The price: the memory is part of every stored step, twice, and is copied at
    every step and reset. That is little for recurrent encoders. A Transformer has a cache of
    ``2 * layers * context_length * d_model`` numbers per env, allocated in full.
    """

    features: NestedKey = "features"
    step_index: NestedKey = "step_index"
    is_init: NestedKey = "is_init"
    mask: NestedKey = "mask"
    context: NestedKey = "context"
    memory: NestedKey | None = None


def segment_starts(
    shape: torch.Size,
    is_init: Tensor | None,
    mask: Tensor | None,
    ends: Tensor | None = None,
    *,
    device: torch.device,
) -> Tensor:
    """Return the starts of fresh memories in sequences.

    They are the first column, every ``is_init``, the first real timestep after padding, and that
    after an end.

    Args:
        shape: ``[B, L]``.
        is_init: ``[B, L]``, or None.
        mask: ``[B, L]``, True for real timesteps; None if all are real.
        ends: Timesteps after which another trajectory follows, of B * L elements; None if unknown.
        device: Device of the result.

    Returns:
        ``[B, L]`` bool.

    >>> is_init = torch.tensor([[False, False, False, True, False]])
    >>> mask = torch.tensor([[False, True, True, True, False]])
    >>> segment_starts(mask.shape, is_init, mask, device=mask.device).int()
    tensor([[1, 1, 0, 1, 0]], dtype=torch.int32)
    """
    starts = torch.zeros(shape, dtype=torch.bool, device=device)
    starts[:, 0] = True
    if ends is not None:
        starts[:, 1:] |= ends.reshape(shape)[:, :-1]
    if mask is None:
        if is_init is not None:
            starts |= is_init.bool()
        return starts

    real = mask.bool()
    if ends is not None:
        starts[:, 1:] &= real[:, 1:]
    if is_init is not None:
        starts |= is_init.bool() & real  # flags in padding have no meaning
    follows_padding = ~real[:, :-1]
    starts[:, 1:] |= real[:, 1:] & follows_padding
    return starts


def segment_positions(starts: Tensor) -> Tensor:
    """Count timesteps since the last start: bool ``[B, L]`` -> int64 ``[B, L]``.

    >>> segment_positions(torch.tensor([[True, False, False, True, False]]))
    tensor([[0, 1, 2, 0, 1]])
    """
    length = starts.shape[1]
    column = torch.arange(length, device=starts.device)
    last_start = torch.where(starts, column, 0).cummax(1).values
    return column - last_start


def encode_apart(
    parallel: Callable[..., Tensor], x: Tensor, step_index: Tensor, is_init: Tensor, **known: Any
) -> Tensor:
    """Return the parallel pass of an encoder, in which no start lets NaN or infinity pass.

    The context is NaN from the first timestep with such features to the end of its episode.

    Args:
        parallel: `TrajectoryEncoder.parallel` of an encoder.
        x: ``[B, L, E]``.
        step_index: ``[B, L]`` int64.
        is_init: ``[B, L]`` bool, starts; True in the first column.
        known: Further arguments of ``parallel``.

    Returns:
        The context ``[B, L, D]``.

    >>> x = torch.tensor([[[1.0], [torch.inf], [2.0], [3.0]]])
    >>> starts = torch.tensor([[True, False, False, True]])
    >>> encode_apart(lambda x, *_: x.cumsum(1), x, segment_positions(starts), starts).flatten()
    tensor([1., nan, nan, 6.])
    """
    # Scans and masks forget by factors of zero, and zero times NaN is NaN, forward and backward.
    is_finite = x.isfinite().all(-1)
    x = x.masked_fill(~is_finite.unsqueeze(-1), 0)
    context = parallel(x, step_index, is_init, **known)
    column = torch.arange(is_init.shape[1], device=is_init.device)
    last_start = torch.where(is_init, column, 0).cummax(1).values
    last_fault = torch.where(is_finite, -1, column).cummax(1).values
    is_spoilt = last_fault >= last_start
    return context.masked_fill(is_spoilt.unsqueeze(-1), torch.nan)


def count_segments(starts: Tensor) -> int | None:
    """Count the starts in ``[B, L]``; None while capturing, when no value can be read back."""
    if capturing():
        return None
    return int(starts.sum())


def read_features(encoder: Any, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """Return the features of a batch.

    Args:
        encoder: Trajectory encoder that reads them.
        tensordict: Batch.
        key: Key of the features.

    Raises:
        ArgumentError: The batch is no TensorDict, or its features have another size than
            ``encoder.in_features``, or another dtype than the weights, without autocast.
        ValueError: It has no such entry, or one of integers.
    """
    owner = type(encoder).__name__
    require_tensordict(owner, tensordict)
    features = tensordict.get(key, None)
    if features is None:
        present = sorted(map(str, tensordict.keys(True)))
        raise ValueError(f"{owner}: a batch must have features under {key!r}, got {present}")
    if not features.is_floating_point():
        raise ValueError(f"{owner}: features {key!r} must be floats, got {features.dtype}")
    shape, size = tuple(features.shape), encoder.in_features
    condition = f"end in {size}, the in_features of the encoder"
    require(owner, f"shape of features {key!r}", shape, shape[-1:] == (size,), condition)
    first = next(encoder.parameters(), None)
    if first is not None and first.dtype != features.dtype:
        _check_dtype(encoder, features, key)
    return features


def _check_dtype(encoder: nn.Module, features: Tensor, key: NestedKey) -> None:
    """Raise unless weights have the dtype of the features, or autocast converts them."""
    device = features.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return
    dtypes = []
    for weight in encoder.parameters():
        if weight.is_floating_point() and weight.dtype not in dtypes:
            dtypes.append(weight.dtype)
    condition = f"have the dtype of the weights, {' or '.join(map(str, dtypes))}"
    fits = not dtypes or features.dtype in dtypes
    remedy = "convert one of them, as by encoder.to(torch.float64), or use torch.autocast"
    name = f"features {key!r}"
    require(type(encoder).__name__, name, features.dtype, fits, condition, remedy=remedy)


def check_sequences(
    owner: str, tensordict: TensorDictBase, batch_size: torch.Size, *, keys: TrajectoryKeys
) -> None:
    """Raise if a batch under ``recurrent_mode()`` may hold several sequences in one dimension.

    A batch ``[L]`` is one sequence if its dimension is named ``"time"``, as in a rollout of
    TorchRL. Otherwise it may be a flat batch of slices if it holds outcomes of steps or
    ``traj_ids``, and, on a CPU, if ``is_init`` is set or ``step_index`` jumps after the first
    timestep. A flat batch without any of these entries is not recognised.

    Args:
        owner: Class named in the error.
        tensordict: Batch.
        batch_size: Shape of the features without their last dimension.
        keys: Keys of the encoder.

    Raises:
        ArgumentError: It may hold several sequences, has no time dimension, or is empty.
    """
    name = "a batch within set_recurrent_mode(True)"
    is_empty = 0 in batch_size
    condition = "be of at least one sequence of at least one timestep"
    require(owner, name, f"a batch {list(batch_size)}", not is_empty, condition)
    if len(batch_size) > 1 or "time" in _names(tensordict):
        return
    reason = None
    if len(batch_size) == 0:
        reason = "without a time dimension"
    elif tensordict.get(("next", "done"), None) is not None:
        reason = "that holds the outcomes of its steps"
    elif tensordict.get(TRAJ_IDS, None) is not None:
        reason = "that holds ('collector', 'traj_ids')"
    else:
        is_init = tensordict.get(keys.is_init, None)
        step_index = tensordict.get(keys.step_index, None)
        if is_init is not None and is_init.is_cpu and bool(is_init.flatten()[1:].any()):
            reason = "with is_init after the first timestep"
        elif step_index is not None and step_index.is_cpu:
            jumps = step_index.flatten().diff() != 1
            if bool(jumps.any()):
                reason = "whose step_index does not count up"
    require(
        owner,
        name,
        f"a batch {list(batch_size)} {reason}",
        reason is None,
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
) -> "LastStep":
    """Check the layout of a step, and on a CPU that it continues the episodes of the last one.

    Args:
        owner: Class named in the error.
        tensordict: Step ``[*N]``.
        is_init: ``[N]`` bool, envs that start afresh.
        keys: Keys of the encoder.
        last: Last step; None if unknown.
        is_first: True if there is no memory yet, and none was dropped on purpose.

    Returns:
        Marks of this step, ``last`` itself if it has its layout; on other devices only its layout.

    Raises:
        ArgumentError: It is no step, or belongs to another stream of steps.
    """
    # This runs at every step: nothing is read, copied or reshaped that need not be.
    batch_size = tensordict.batch_size
    is_flat_step = last is not None and last.is_flat_step(tensordict, is_init)
    if not is_flat_step:
        features = tensordict.get(keys.features, None)
        shape = batch_size if features is None else features.shape[:-1]
        check_step_layout(owner, tensordict, is_init, shape, last=last, is_first=is_first)
        if last is not None and last.shape != shape:
            last = None
    if not is_init.is_cpu:
        return LastStep(shape, batch_size) if last is None else last

    step_index = tensordict.get(keys.step_index, None)
    ids = tensordict.get(TRAJ_IDS, None) if TRAJ_IDS[0] in tensordict.keys() else None
    if last is None:
        last = LastStep(shape, batch_size)
    else:
        context = None
        # Stored steps hold the context of their own.
        if last.context is not None and "next" not in tensordict.keys():
            context = tensordict.get(keys.context, None)
        last.check_next(owner, is_init, step_index=step_index, ids=ids, context=context)
    last.context = None
    last.expected = None if step_index is None else step_index + 1
    # A copy: collectors write into it.
    last.ids = None if ids is None else ids.clone()
    return last


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
        ArgumentError: It may be a batch of sequences, or is empty.
    """
    reason = None
    remedy = RECURRENT_REMEDY
    require(owner, "a step", f"a batch {list(shape)}", 0 not in shape, "be of at least one env")
    if "time" in _names(tensordict):
        reason = "with a dimension named 'time'"
    else:
        is_nested = len(shape) > 1
        is_other = last is not None and last.shape != shape and last.shape.numel() == shape.numel()
        if is_nested or is_first or is_other:
            has_outcome = tensordict.get(("next", "done"), None) is not None
            if is_nested and has_outcome:
                reason = "that holds the outcomes of its steps (in 'next')"
            elif is_first and (is_nested or has_outcome) and not bool(is_init.all()):
                reason = "that begins within episodes (is_init)"
                remedy += ", or call reset_memory() to let envs start here with an empty memory"
            elif is_other and not bool(is_init.all()):
                assert last is not None
                reason = f"after steps of {list(last.shape)} envs"
    got = f"a batch {list(shape)} {reason}"
    condition = "be one timestep of envs [*N]"
    require(owner, "a step", got, reason is None, condition, remedy=remedy)


def _names(tensordict: TensorDictBase) -> list[str | None]:
    return tensordict.names or []


@dataclass
class LastStep:
    """Marks of the last step that a memory has seen.

    Attributes:
        shape: Shape of the envs.
        batch_size: Shape of the TensorDict.
        expected: ``step_index`` of the next step, or None.
        ids: Numbers of the trajectories, or None.
        context: Context that was written into the TensorDict, or None.
        counts: Whether ``step_index`` has been seen to count.
        counted: Envs whose count is known since their start, ``[N]`` bool; None for all.
        carries: Whether the context has been seen in the TensorDict of the next step.
    """

    shape: torch.Size
    batch_size: torch.Size
    expected: Tensor | None = None
    ids: Tensor | None = None
    context: Tensor | None = None
    counts: bool = False
    counted: Tensor | None = None
    carries: bool = False

    def is_flat_step(self, tensordict: TensorDictBase, is_init: Tensor) -> bool:
        """Return whether a batch has the layout of this step, which had one dimension."""
        return (
            len(self.shape) == 1
            and tensordict.batch_size == self.batch_size
            and len(is_init) == self.shape[0]
            and "time" not in _names(tensordict)
        )

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
            step_index: Count of the steps of each env, or None.
            ids: Number of the trajectory of each env, or None.
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
            self.counted = None
            return None
        if step_index.numel() != len(is_init):
            return None
        step_index = step_index.reshape(-1)
        expected = self.expected.reshape(-1)
        counted = torch.ones_like(is_init) if self.counted is None else self.counted
        is_next = (step_index == expected) & ~is_init
        # An env that waits for others keeps its count; a count may begin again within an episode.
        is_known = is_next | is_init | (step_index == expected - 1) | (step_index == 0)
        is_wrong = ~is_known
        has_broken_off = bool((is_wrong & counted).any()) or bool((is_wrong | is_init).all())
        if self.counts and bool(is_wrong.any()) and has_broken_off:
            env = int(is_wrong.nonzero()[0])
            before = int(expected[env]) - 1
            return f"step_index {int(step_index[env])} in env {env} after {before}"
        self.counts = self.counts or bool(is_next.any())
        self.counted = (counted & ~is_init & is_known) | is_next
        return None

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
        ids = ids.reshape(-1)
        before = self.ids.reshape(-1)
        is_other = (ids != before) & ~is_init
        if not bool(is_other.any()):
            return None
        env = int(is_other.nonzero()[0])
        return f"trajectory {int(ids[env])} in env {env} after {int(before[env])}"

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
