"""Several trials at the same task as one episode: the meta-RL problem of RL^2 (Duan et al., arXiv 1611.02779).

Task seeds, the context entries, the fused step and resets are those of `yamame_envs.context`. Everything the
inner environment observes is passed on, except the context entries, which are this wrapper's own, and
``achieved`` and ``achieved_mask``: the instruction ``goal`` starts afresh with every trial, and hindsight
relabelling across trials is not defined.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical
from torchrl.envs import EnvBase, TransformedEnv

from yamame_envs.actions import Actions, BoxActions, DiscreteActions
from yamame_envs.base import BatchedEnv
from yamame_envs.context import ContextEnv
from yamame_envs.random import fold
from yamame_envs.tasks import Tensors

_OWN = frozenset(
    {"prev_action", "prev_reward", "time", "trial_start", "step_index", "is_init", "success"}
    | {"done", "terminated", "truncated"}
)
_RELABELLING = frozenset({"achieved", "achieved_mask"})


class RepeatedTrials(ContextEnv):
    """Plays ``num_trials`` episodes of another environment, all of one task, as one episode.

    When a trial ends and the episode does not, the next one begins within the same step: the timestep shown is
    its first, with ``trial_start`` set, and with the executed action and the reward that ended the old trial in
    ``prev_action`` and ``prev_reward``. Memory is kept: ``is_init`` is set only where the episode begins. An
    episode is terminated, never truncated, at the end of its last trial or at the horizon, and shows the last
    timestep of the trial there. ``time`` and ``step_index`` count the steps of the whole episode.

    ``success`` is shown at the last timestep only: whether the last trial that was completed had a success.
    Where the inner environment shows ``aborted`` ``[N, 1]`` (it failed), the episode is truncated there.

    The inner environment belongs to the wrapper from then on. Every `ContextEnv` will do. Of any other
    `EnvBase` is asked: one batch dimension; ``action`` with a `Categorical` spec ``[N]`` or a float32 `Bounded`
    spec ``[N, A]``; one number as ``reward``; a reset that takes ``_reset`` and ``task_seed`` ``[N, 1]`` int64
    and begins the task of that seed in the rows of ``_reset`` (whatever it returns of the others is not read);
    and, to be resumed exactly, a ``state_dict`` of all it remembers. Randomness that the task seed determines,
    as in every environment of this package, is the same in all trials of an episode.

    Args:
        env: The environment whose episodes are the trials.
        num_trials: Trials of an episode; None for as many as the horizon allows.
        horizon: Steps after which an episode is over, in the middle of a trial too; None for ``num_trials``
            times the time limit of ``env``.
        num_warmup: Trials at the start of an episode whose reward is 0; ``prev_reward`` shows the true one, as
            in AMAGO-2 (arXiv 2411.11188).
        seed: Names the tasks of all episodes.

    Raises:
        ValueError: If a number is out of its range, neither ``num_trials`` nor a horizon is known, or ``env``
            cannot be used (a `TransformedEnv` keeps the task seed from what it wraps).

    >>> from yamame_envs.tmaze import PassiveTMaze
    >>> env = RepeatedTrials(PassiveTMaze(num_envs=2, length=3), num_trials=2)
    >>> td = env.rollout(8)
    >>> td["trial_start"][0].flatten().int().tolist(), td["next", "done"][0].flatten().int().tolist()
    ([1, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1])
    """

    def __init__(
        self,
        env: EnvBase,
        *,
        num_trials: int | None,
        horizon: int | None = None,
        num_warmup: int = 0,
        seed: int = 0,
    ) -> None:
        self._check_env(env)
        self._num_trials = num_trials
        self._num_warmup = num_warmup
        self._tells_success = "success" in env.observation_spec.keys()
        self._overrides = env._overrides if isinstance(env, BatchedEnv) else ()  # hold for all trials
        limit = self._horizon_of(env, num_trials, horizon, num_warmup)
        entries = env.observation_spec
        self._passed = tuple(name for name in entries.keys() if name not in _OWN | _RELABELLING)
        super().__init__(
            num_envs=env.batch_size[0],
            time_limit=limit,
            actions=env._actions if isinstance(env, ContextEnv) else self._actions_of(env),
            observations={name: entries[name][0] for name in self._passed},
            tells_success=self._tells_success,
            seed=seed,
            device=env.device or "cpu",
        )
        self.env = env
        self.set_seed(seed)

    @classmethod
    def _check_env(cls, env: EnvBase) -> None:
        kind = type(env).__name__
        cls._require("env", kind, not isinstance(env, TransformedEnv), "be transformed from outside")
        batch = tuple(env.batch_size)
        cls._require("env", batch, len(batch) == 1, "have one batch dimension")
        for name, spec in (("reward", env.reward_spec), ("done", env.full_done_spec["done"])):
            shape = tuple(spec.shape)
            cls._require("env", shape, shape == (*batch, 1), f"have a {name} of shape {(*batch, 1)}")

    @classmethod
    def _horizon_of(cls, env: EnvBase, num_trials: int | None, horizon: int | None, num_warmup: int) -> int:
        known = num_trials is not None or horizon is not None
        cls._require("num_trials", num_trials, known, "be given where horizon is not")
        for name, value in (("num_trials", num_trials), ("horizon", horizon)):
            cls._require(name, value, value is None or value >= 1, "be at least 1")
        most = "" if num_trials is None else f" and less than num_trials, {num_trials}"
        good = num_warmup >= 0 and (num_trials is None or num_warmup < num_trials)
        cls._require("num_warmup", num_warmup, good, f"be at least 0{most}")
        if horizon is not None:
            return horizon
        limit = env._time_limit if isinstance(env, ContextEnv) else None
        cls._require("horizon", horizon, limit is not None, "be given where env tells no time limit")
        return (num_trials or 0) * (limit or 0)

    @classmethod
    def _actions_of(cls, env: EnvBase) -> Actions:
        spec, batch = env.action_spec, tuple(env.batch_size)
        if isinstance(spec, Categorical) and not isinstance(spec, MultiCategorical) and spec.shape == batch:
            return DiscreteActions(int(spec.space.n))
        box = isinstance(spec, Bounded) and spec.dtype == torch.float32 and len(spec.shape) == 2
        got = f"{type(spec).__name__} {tuple(spec.shape)}"
        cls._require("env", got, box, "have Categorical [N] or float32 Bounded [N, A] actions")
        return BoxActions(spec.space.low[0].clone(), spec.space.high[0].clone())

    @property
    def _present(self) -> Mapping[str, Any]:
        return self._shown

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        if seed is not None and "env" in self._modules:
            self.env.set_seed(seed)

    def _restart(self, streams: Tensor) -> None:
        self._streams = streams
        self._episodes = torch.zeros_like(streams)
        if "_state" in self.__dict__:
            return
        zero, no = torch.zeros_like(streams).unsqueeze(-1), torch.zeros_like(streams).bool().unsqueeze(-1)
        self._state: Tensors = {"task_seed": zero, "step_index": zero, "trial": zero}
        # Success within the running trial, and of the last one that was completed:
        self._state |= {"reached": no, "solved": no}
        self._shown: dict[str, Any] = {}

    def _begin_episodes(self, rows: Tensor, tensordict: TensorDictBase | None) -> None:
        task_seed = self._chosen_tasks(rows, tensordict)
        if task_seed is None:
            task_seed = fold(self._streams.index_select(0, rows), self._episodes.index_select(0, rows))
            self._episodes = self._episodes.index_add(0, rows, torch.ones_like(rows))
        begun = torch.zeros(self.batch_size[0], 1, dtype=torch.bool, device=self.device)
        begun.index_fill_(0, rows, True)
        self._state = {name: value.masked_fill(begun, 0) for name, value in self._state.items()}
        self._state["task_seed"].index_copy_(0, rows, task_seed.unsqueeze(-1))
        old = self._shown or {**self.observation_spec.zero(), **self.full_done_spec.zero()}
        shown = {k: v.masked_fill(begun, 0) for k, v in old.items() if k not in self._passed}
        for name in ("trial_start", "is_init"):
            shown[name] = shown[name] | begun
        first = self._request(begun)
        if tensordict is not None:
            first.update(tensordict.select(*self._overrides, strict=False))
        self._shown = {**self._begin_trials(begun, old, first), **shown}

    def _request(self, begun: Tensor) -> TensorDict:
        """What the inner environment is asked for when a trial begins in some rows ``[N, 1]``."""
        return self._wrap({"_reset": begun.clone(), "task_seed": self._state["task_seed"].clone()})

    def _begin_trials(
        self, begun: Tensor, old: Mapping[str, Any], first: TensorDict | None = None
    ) -> dict[str, Any]:
        """Begins a trial in some rows ``[N, 1]``; what is then seen in all rows, ``old`` in the others.

        ``first`` is what the first trial of an episode asks for; without it, rows play their task again.
        """
        if isinstance(self.env, ContextEnv):
            rows = begun.squeeze(-1).nonzero().squeeze(-1)
            if first is None:
                self.env._begin_again(rows, self._state["task_seed"].clone())
            else:
                self.env._begin_episodes(rows, first)
            return self._pass_on(self.env._present)
        new = self.env._reset(self._request(begun) if first is None else first)
        return {name: _choose(begun, new.get(name), old[name]) for name in self._passed}

    def _advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        played, true_reward = self._play(action)
        seen = self._pass_on(played)
        reward = true_reward.clone()
        if self._num_warmup > 0:
            reward = reward.masked_fill(self._state["trial"] < self._num_warmup, 0.0)
        self._count(played)
        over = self._ended()
        failed = played.get("aborted", torch.zeros_like(over))
        done = over | failed
        again = played["done"] & ~done
        if again.any():
            seen = self._begin_trials(again, seen)
        shown = {
            **seen,
            **self._context(
                self._state["step_index"].clone(),
                self._actions.encode(action),
                true_reward,
                torch.zeros_like(again),
                again | played.get("trial_start", again),
            ),
            "done": done,
            "terminated": over & ~failed,
            "truncated": failed.clone(),
        }
        if self._tells_success:
            shown["success"] = self._state["solved"] & over & ~failed
        self._shown = shown
        return shown, reward

    def _pass_on(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """What the inner environment shows and this one too; nested entries as tensordicts ``[N]``."""
        entries = {name: shown[name] for name in self._passed}
        return {name: self._wrap(v) if isinstance(v, dict) else v for name, v in entries.items()}

    def _play(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """One step of the inner environment: what it showed, and the reward as a tensor of its own."""
        if isinstance(self.env, ContextEnv):
            return self.env._advance(action)
        played = self.env.step(self._wrap({"action": action})).get("next")
        return dict(played.items()), played.get("reward").to(torch.float32, copy=True)

    def _count(self, played: Mapping[str, Any]) -> None:
        """Counts a step of the inner environment, and the trials that ended with it."""
        state, trial_over = self._state, played["done"]
        counted = {"task_seed": state["task_seed"], "step_index": state["step_index"] + 1}
        counted["trial"] = state["trial"] + trial_over
        success = played.get("success", None)
        reached = state["reached"] if success is None else state["reached"] | success
        counted["solved"] = torch.where(trial_over, reached, state["solved"])
        counted["reached"] = reached & ~trial_over
        self._state = counted

    def _ended(self) -> Tensor:
        ended = self._state["step_index"] >= self._horizon
        if self._num_trials is None:
            return ended
        return ended | (self._state["trial"] >= self._num_trials)

    def render(self, row: int = 0) -> npt.NDArray[np.uint8]:
        """Draws one row of the inner environment: ``[H, W, 3]`` uint8 RGB."""
        picture: npt.NDArray[np.uint8] = self.env.render(row)
        return picture

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that decides how all rows go on, the inner environment's included."""
        counters = {"streams": self._streams, "episodes": self._episodes, **self._state}
        return {
            "env": self.env.state_dict(),
            "counters": {name: value.clone() for name, value in counters.items()},
            "shown": {name: value.clone() for name, value in self._shown.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken, in an environment built with the same settings.

        The timestep to go on from is `present`.

        Raises:
            ValueError: If an entry is missing or has another number of rows.
        """
        for name in ("env", "counters", "shown"):
            self._require("state_dict", sorted(state_dict), name in state_dict, f"hold {name}")
        counters, rows = dict(state_dict["counters"]), self.batch_size[0]
        for name in ("streams", "episodes", *self._state):
            self._require("state_dict", sorted(counters), name in counters, f"hold {name}")
            num = len(counters[name])
            self._require("state_dict", f"{num} in {name}", num == rows, f"hold {rows} rows")
        self.env.load_state_dict(state_dict["env"])
        counters = {name: value.to(self.device).clone() for name, value in counters.items()}
        self._streams, self._episodes = counters.pop("streams"), counters.pop("episodes")
        self._state = counters
        self._shown = {name: value.to(self.device).clone() for name, value in state_dict["shown"].items()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RepeatedTrials":
        super()._apply(fn, recurse)
        self._streams, self._episodes = fn(self._streams), fn(self._episodes)
        self._state = {name: fn(value) for name, value in self._state.items()}
        self._shown = {
            name: value.apply(fn) if isinstance(value, TensorDictBase) else fn(value)
            for name, value in self._shown.items()
        }
        return self

    def to(self, device: str | torch.device) -> "RepeatedTrials":
        """Moves this environment and the inner one."""
        self.env.to(device)
        moved: RepeatedTrials = super().to(device)
        return moved

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes this environment and the inner one."""
        super().close(raise_if_closed=raise_if_closed)
        self.env.close(raise_if_closed=raise_if_closed)


def _choose(rows: Tensor, new: Any, old: Any) -> Any:
    """``new`` in some rows ``[N, 1]`` and ``old`` in the others: tensors or tensordicts ``[N, ...]``."""
    if isinstance(new, TensorDictBase):
        return new.where(rows.squeeze(-1), old)
    return torch.where(rows.view(-1, *[1] * (new.ndim - 1)), new, old)
