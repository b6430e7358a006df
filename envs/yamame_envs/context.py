"""What all environments of this package show, and how they are stepped and reset.

A `ContextEnv` plays N independent rows. Entries written at every timestep, besides the environment's own
observation:

=================  ==================  ===========================================================
``prev_action``    ``[N, A]`` float32  action executed on the way here, one-hot or in [-1, 1]; 0 at the start
``prev_reward``    ``[N, 1]`` float32  reward received on arrival; 0 at the start
``time``           ``[N, 1]`` float32  steps taken / time limit, in [0, 1]; absent without a time limit
``trial_start``    ``[N, 1]`` bool     an attempt at the task begins here
``step_index``     ``[N, 1]`` int64    steps taken in the episode
``is_init``        ``[N, 1]`` bool     the episode begins here: memories must be cleared
``success``        ``[N, 1]`` bool     the whole task is done; absent where the environment cannot tell
=================  ==================  ===========================================================

Row ``i``'s ``e``-th episode plays the task of seed ``fold(fold(seed, i), e)``: the same seed replays the same
tasks, and a row's tasks do not depend on how many other rows there are.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase

from yamame_envs.actions import Actions
from yamame_envs.random import fold
from yamame_envs.tasks import Tensors


class ContextEnv(EnvBase):
    """Base class: specs, seeds, and the fused step of rows that begin a new episode by themselves.

    A subclass says how episodes begin and how all rows are stepped: `_begin_episodes`, `_advance`, `_present`
    and `_restart`.

    ``reset`` takes, besides ``_reset``, an optional entry ``task_seed`` ``[N, 1]`` int64: the rows that reset
    play exactly these tasks, and their numbered episodes wait. ``step_and_maybe_reset`` is fused: it does in
    one pass what `EnvBase` does in several, but does not carry the executed action to the next timestep.

    Args:
        num_envs: Rows, at least 1.
        time_limit: Steps after which an episode is over, at least 1; None where there is no limit to be seen.
        actions: What an action is.
        observations: Spec of one row of every entry that is observed.
        tells_success: Whether ``success`` is shown.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.

    Raises:
        ValueError: If a number is out of its range.
    """

    _overrides: tuple[str, ...] = ()
    """Entries of the task that a reset may set otherwise than their task seed says."""

    def __init__(
        self,
        *,
        num_envs: int,
        time_limit: int | None,
        actions: Actions,
        observations: Mapping[str, TensorSpec],
        tells_success: bool = True,
        seed: int,
        device: str | torch.device,
    ) -> None:
        self._require("num_envs", num_envs, num_envs >= 1, "be at least 1")
        self._require("time_limit", time_limit, time_limit is None or time_limit >= 1, "be at least 1")
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        self.is_closed = False
        self._actions = actions.to(self.device)  # type: ignore[attr-defined]
        self._time_limit = time_limit
        self._set_specs(observations, tells_success)
        self._known = {"action", "next", "_reset", "task_seed", *self._overrides}
        self._known |= {*self.observation_spec.keys(), *self.full_done_spec.keys(), "reward"}
        horizon = torch.tensor(float(time_limit or 1), device=self.device)
        self.register_buffer("_horizon", horizon, persistent=False)
        self.set_seed(seed)

    @classmethod
    def _require(cls, name: str, value: object, holds: bool, condition: str) -> None:
        if not holds:
            raise ValueError(f"{cls.__name__}: {name} must {condition}, got {value}")

    def _set_specs(self, observations: Mapping[str, TensorSpec], tells_success: bool) -> None:
        rows = self.batch_size[0]
        column: dict[str, Any] = {"shape": (rows, 1), "device": self.device}
        encoded = (rows, self._actions.encoded_size)
        entries = {name: spec.expand(rows, *spec.shape) for name, spec in observations.items()}
        entries["prev_action"] = Bounded(-1.0, 1.0, shape=encoded, dtype=torch.float32, device=self.device)
        entries["prev_reward"] = Unbounded(dtype=torch.float32, **column)
        if self._time_limit is None:
            entries["step_index"] = Unbounded(dtype=torch.int64, **column)
        else:
            entries["time"] = Bounded(0.0, 1.0, dtype=torch.float32, **column)
            entries["step_index"] = Bounded(0, self._time_limit, dtype=torch.int64, **column)
        for name in ("trial_start", "is_init", *(["success"] if tells_success else [])):
            entries[name] = Binary(n=1, dtype=torch.bool, **column)
        self.observation_spec = Composite(entries, shape=self.batch_size, device=self.device)
        self.action_spec = self._actions.spec(rows, self.device)
        self.reward_spec = Unbounded(dtype=torch.float32, **column)
        flag = Categorical(2, dtype=torch.bool, **column)
        done = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.full_done_spec = Composite(done, shape=self.batch_size, device=self.device)

    @property
    @abstractmethod
    def _present(self) -> Mapping[str, Any]:
        """The timestep that all rows are at; empty before the first reset."""

    @abstractmethod
    def _restart(self, streams: Tensor) -> None:
        """From the next reset on, row i's e-th episode has the task seed ``fold(streams[i], e)``."""

    @abstractmethod
    def _begin_episodes(self, rows: Tensor, tensordict: TensorDictBase | None) -> None:
        """Begins an episode in some rows ``[R]``; ``tensordict`` is what `reset` was given, if anything."""

    def _begin_again(self, rows: Tensor, task_seed: Tensor) -> None:
        """Begins another episode of the task that some rows ``[R]`` play; the seeds are all rows' ``[N, 1]``."""
        self._begin_episodes(rows, self._wrap({"task_seed": task_seed}))

    @abstractmethod
    def _advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """Steps all rows; returns what is shown, and the reward ``[N, 1]`` as a tensor of its own."""

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        rows = torch.arange(self.batch_size[0], device=self.device)
        self._restart(fold(torch.full_like(rows, seed), rows))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        rows = self._resetting(tensordict)
        if rows.shape[0] > 0:
            self._begin_episodes(rows, tensordict)
        return self._wrap(dict(self._present))

    def _resetting(self, tensordict: TensorDictBase | None) -> Tensor:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            return torch.arange(self.batch_size[0], device=self.device)
        rows = mask.view(self.batch_size).nonzero().squeeze(-1)
        if not self._present:
            self._require("_reset", f"{len(rows)} rows", len(rows) == mask.numel(), "cover all rows at first")
        return rows

    def _chosen_tasks(self, rows: Tensor, tensordict: TensorDictBase | None) -> Tensor | None:
        """The task seeds ``[R]`` that a reset asks for, if it does."""
        seeds = None if tensordict is None else tensordict.get("task_seed", None)
        if seeds is None:
            return None
        shape = (self.batch_size[0], 1)
        good = seeds.shape == shape and seeds.dtype == torch.int64
        self._require("task_seed", f"{seeds.dtype} {tuple(seeds.shape)}", good, f"be int64 {shape}")
        return seeds[rows, 0]

    def _context(
        self,
        step_index: Tensor,
        prev_action: Tensor,
        prev_reward: Tensor,
        is_init: Tensor,
        trial_start: Tensor,
    ) -> Tensors:
        """The context entries of a timestep; every tensor handed in must be of no further use elsewhere."""
        time = {} if self._time_limit is None else {"time": step_index / self._horizon}
        return {
            "prev_action": prev_action,
            "prev_reward": prev_reward,
            **time,
            "trial_start": trial_start,
            "step_index": step_index,
            "is_init": is_init,
        }

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        shown, reward = self._advance(self._action(tensordict))
        return self._wrap({**shown, "reward": reward})

    def _action(self, tensordict: TensorDictBase) -> Tensor:
        if not self._present:
            raise RuntimeError(f"{type(self).__name__}: reset must be called before step")
        return tensordict.get("action")

    def _wrap(self, entries: Mapping[str, Any]) -> TensorDict:
        return TensorDict._new_unsafe(entries, batch_size=self.batch_size, device=self.device)

    def _step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        keys = set(tensordict.keys())
        if self.run_type_checks or "next" in keys or "_step" in keys:
            return super()._step_and_maybe_reset(tensordict)
        self._assert_tensordict_shape(tensordict)
        if tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        shown, reward = self._advance(self._action(tensordict))
        tensordict.set("next", self._wrap({**shown, "reward": reward}))
        rows = shown["done"].view(self.batch_size).nonzero().squeeze(-1)
        if rows.shape[0] > 0:
            self._begin_episodes(rows, None)
        root = self._wrap(dict(self._present))
        foreign = keys - self._known
        if foreign:  # a policy's own entries stay; as in `EnvBase`, they are cleared if only some rows begin
            carried = tensordict.select(*foreign)
            if 0 < rows.shape[0] < self.batch_size[0]:
                ongoing = ~shown["done"].view(self.batch_size)
                carried = carried.where(ongoing, other=carried.empty(), pad=0)
            root.update(carried)
        return tensordict, root

    def present(self) -> TensorDict:
        """The timestep that all rows are at: what `reset` or the last step showed."""
        return self._wrap(dict(self._present)).clone()
