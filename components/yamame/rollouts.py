"""Batches in TorchRL's layout: how they differ from packed ones, and where episodes end in them.

A *rollout* ``[*, T]``, as TorchRL's environments, collectors and samplers return it, holds the
observation before each step at the root and the one after it under ``"next"``. A *packed* batch
``[E, L]`` (`yamame.replay.pack`) holds every observation once.
"""

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from yamame.checks import require

TRANSITION_KEYS = ("reward", "terminated", "truncated", "success")
"""Entries of ``"next"`` that describe the transition rather than the next observation."""

TRAJ_IDS = ("collector", "traj_ids")
"""Numbers of trajectories, which TorchRL's collectors write."""

INIT_REMEDY = (
    "append torchrl.envs.InitTracker() to the environment, or collect with "
    "Collector(auto_register_policy_transforms=True)"
)
"""Ways to have TorchRL write ``is_init``."""


def is_rollout(batch: TensorDictBase) -> bool:
    """Return whether a batch holds the observation after each step, under ``"next"``.

    >>> from tensordict import TensorDict
    >>> x = torch.zeros(4)
    >>> packed = TensorDict({"x": x, "next": {"reward": x, "terminated": x > 0}}, [4])
    >>> rollout = TensorDict({"x": x, "next": {"x": x, "done": x > 0}}, [4])
    >>> is_rollout(packed), is_rollout(rollout)
    (False, True)
    """
    return bool(arrival_keys(batch))


def arrival_keys(batch: TensorDictBase) -> list[NestedKey]:
    """Return the keys of entries that a batch holds before and after each step."""
    following = batch.get("next", None)
    if not isinstance(following, TensorDictBase):
        return []
    described = {*TRANSITION_KEYS, "done"}
    root = set(batch.keys(True, True))
    return [key for key in following.keys(True, True) if key in root and key not in described]


def changes_trajectory(batch: TensorDictBase) -> Tensor | None:
    """Return the timesteps after which another trajectory follows, as TorchRL marks them.

    It is read from ``done`` of a next state at the root, and in rollouts from ``("next", "done")``
    and ``("collector", "traj_ids")``. In a packed batch, the last observation follows an end.

    Args:
        batch: ``[*, T]``.

    Returns:
        ``[*, T]`` bool, without meaning at the last timestep; None if the batch has no such entry.
    """
    shape = batch.batch_size
    marks = []
    done = batch.get("done", None)
    if done is not None and done.shape[: len(shape)] == shape:
        marks.append(done.reshape(shape).bool())
    # Looked up first: finding out about the layout takes longer.
    done = batch.get(("next", "done"), None)
    if done is not None and is_rollout(batch):
        marks.append(done.reshape(shape).bool())
    ids = batch.get(TRAJ_IDS, None)
    if ids is not None:
        marks.append(changes(ids.reshape(shape)))
    if not marks:
        return None
    return torch.stack(marks).any(0)


def changes(numbers: Tensor) -> Tensor:
    """Return the timesteps ``[*, T]`` bool after which a number ``[*, T]`` changes.

    >>> changes(torch.tensor([7, 7, 8]))
    tensor([False,  True, False])
    """
    marks = torch.zeros_like(numbers, dtype=torch.bool)
    marks[..., :-1] = numbers[..., 1:] != numbers[..., :-1]
    return marks


def read_is_init(owner: str, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """Return the flags of envs that start afresh, of a step.

    Args:
        owner: Class named in the error.
        tensordict: Timestep.
        key: Key of the flags.

    Raises:
        ValueError: The step has no such entry.
    """
    is_init = tensordict.get(key, None)
    if is_init is None:
        present = sorted(map(str, tensordict.keys(True)))
        raise ValueError(
            f"{owner}: a step must have key {key!r} (without it memory would never be reset), "
            f"got {present}; {INIT_REMEDY}"
        )
    return is_init


def check_not_mapped(owner: str, *entries: Tensor | None) -> None:
    """Raise if `torch.vmap` maps over entries of sequences.

    A map over weights alone is no error.

    Args:
        owner: Class named in the error.
        entries: Flags and counts of the timesteps, or None.

    Raises:
        ArgumentError: An entry has a dimension that is mapped over.
    """
    is_mapped = False
    for entry in entries:
        if entry is not None and torch._C._functorch.is_batchedtensor(entry):
            is_mapped = True
    require(
        owner,
        "a batch of sequences",
        "one that torch.vmap maps over",
        not is_mapped,
        "be passed in one piece",
        remedy="use torchrl.objectives.value.GAE(..., shifted=True), which encodes a sequence and "
        "its last observation together",
    )
