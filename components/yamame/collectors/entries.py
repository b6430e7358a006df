"""Entries of steps that a collector stores.

A trajectory holds of a timestep every observation entry of the environment, except those that
`yamame.keys` does not store and those that the policy writes itself (a recurrent state in the
TensorDict); ``action``; ``("next", "reward" | "terminated" | "truncated")``; and
``("next", "success")`` and ``("next", "played_seed")`` if the environment has them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from yamame.keys import NOT_STORED, RELABELLING

Block = dict[NestedKey, Tensor]
"""Entries of consecutive steps ``[S, N, ...]``."""


class StepEntries:
    """Selects the entries of steps that are stored.

    Args:
        observed: Observation keys of the environment.
        policy: Policy that acts.
        replay: Replay that receives trajectories.
    """

    def __init__(
        self, observed: list[NestedKey], policy: TensorDictModuleBase, replay: Any
    ) -> None:
        unstored = {*NOT_STORED, *lacking(replay)}
        self._observed: list[NestedKey] = []
        for key in observed:
            if key not in unstored and not _is_state_of(policy, key):
                self._observed.append(key)
        outcomes = ("success", "aborted", "played_seed")
        self.outcomes = [key for key in outcomes if key in observed]
        ends = ("reward", "done", "terminated", "truncated")
        # Keys of the next timestep, and of the same entries in a step.
        self._next_keys: dict[NestedKey, NestedKey] = {}
        for key in (*self._observed, *ends, *self.outcomes):
            self._next_keys[key] = unravel_key(("next", key))

    def select(self, step: TensorDictBase) -> Block:
        """Return the entries of a step ``[N]``, including all of the next observation."""
        # Iteration over a TensorDict is cheaper than one look-up after the other.
        present = dict(step.items())
        next_timestep = present["next"]
        entries: Block = {}
        for key in (*self._observed, "action"):
            entries[key] = present[key] if isinstance(key, str) else step.get(key)
        next_present = dict(next_timestep.items())
        for key, key_in_step in self._next_keys.items():
            if isinstance(key, str):
                value = next_present.get(key)
            else:
                value = next_timestep.get(key, None)
            if value is not None:
                entries[key_in_step] = value
        return entries

    def stack(self, steps: list[TensorDictBase]) -> Block:
        """Return the entries of consecutive steps ``[N]`` as ``[S, N, ...]``."""
        selected = [self.select(step) for step in steps]
        block: Block = {}
        for key in selected[0]:
            block[key] = torch.stack([entries[key] for entries in selected])
        return block

    def transitions(self, block: Mapping[NestedKey, Tensor], done: Tensor) -> TensorDict:
        """Return observations, actions and outcomes of the first steps of a block on the CPU.

        Args:
            block: Entries with `with_ends`.
            done: Ends of episodes ``[S, N]``; its length is the number of steps.
        """
        flags = ("reward", "terminated", "truncated", *self.outcomes)
        steps = TensorDict({}, done.shape, device="cpu")
        for key in (*self._observed, "action"):
            steps.set(key, block[key][: len(done)])
        for name in flags:
            steps.set(("next", name), block["next", name][: len(done)])
        return steps

    def terminal(self, block: Mapping[NestedKey, Tensor], done: Tensor) -> TensorDict | None:
        """Return the last observation ``[E]`` of every episode that ended, None without one."""
        num_ended = int(done.sum())
        if num_ended == 0:
            return None
        terminal = TensorDict({}, [num_ended], device="cpu")
        for key in self._observed:
            next_observation = block[self._next_keys[key]]
            terminal.set(key, next_observation[: len(done)][done])
        return terminal


def lacking(replay: Any) -> list[str]:
    """Return the entries for relabelling that the trajectories in replay do not have.

    The run may have begun with an earlier version, whose environment did not write an entry yet.
    """
    fields = getattr(replay, "fields", None)
    if not fields:
        return []
    return [key for key in RELABELLING if key not in fields]


def with_ends(block: Mapping[NestedKey, Tensor]) -> Block:
    """Return a block with ``terminated`` and ``truncated``.

    If the environment does not write both, every end that is not ``terminated`` is truncated, and
    without ``terminated`` every end is terminated.
    """
    complete = dict(block)
    terminated = ("next", "terminated")
    truncated = ("next", "truncated")
    if terminated in block and truncated in block:
        return complete
    done = block["next", "done"]
    complete.setdefault(terminated, done)
    complete[truncated] = done & ~complete[terminated]
    return complete


def _is_state_of(policy: TensorDictModuleBase, key: NestedKey) -> bool:
    """Return whether the policy writes ``("next", key)``, or a TensorDict that holds it.

    Such an entry is a state that the policy reads at the next step.
    """
    path = unravel_key(("next", key))
    written = getattr(policy, "out_keys", ())
    for length in range(2, len(path) + 1):
        if path[:length] in written:
            return True
    return False
