"""Several trials at the same task as one episode: the meta-RL problem of RL^2 (Duan et al., arXiv
1611.02779).

Task seeds, the context entries, the fused step and resets are those of `yamame_envs.context`.
Everything the inner environment observes is passed on, except the context entries, which are this
wrapper's own, and ``achieved`` and ``achieved_mask``: the instruction ``goal`` starts afresh with
every trial, and hindsight relabelling across trials is not defined.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from yamame.actions import ActionEncoding
from yamame.checks import require
from yamame.keys import CONTEXT, DONE, RELABELLING
from yamame.spaces import Spaces
from yamame.spaces.from_specs import recorded_spaces
from yamame.transforms import context_values

from yamame_envs.base import BatchedEnv
from yamame_envs.context import ContextEnv
from yamame_envs.env_state import EnvState
from yamame_envs.streams import fold
from yamame_envs.tasks import Tensors

_NOT_PASSED = frozenset({*CONTEXT, *DONE, *RELABELLING, "success"})


class RepeatedTrials(ContextEnv):
    """Plays ``num_trials`` episodes of another environment, all of one task, as one episode.

    When a trial ends and the episode does not, the next one begins within the same step: the
    timestep shown is its first, with ``trial_start`` set, and with the executed action and the
    reward that ended the old trial in ``prev_action`` and ``prev_reward``. Memory is kept:
    ``is_init`` is set only where the episode begins. An episode is terminated, never truncated, at
    the end of its last trial or at the horizon, and shows the last timestep of the trial there.
    ``time`` and ``step_index`` count the steps of the whole episode.

    ``success`` is shown at the last timestep only: whether the last trial that was completed had a
    success. Where the inner environment shows ``aborted`` ``[N, 1]`` (it failed), the episode is
    truncated there.

    The inner environment belongs to the wrapper from then on. Every `ContextEnv` will do. Of any
    other `EnvBase` is asked: one batch dimension; an ``action`` that
    `yamame.actions.ActionEncoding` takes; one number as ``reward``; a reset that takes ``_reset``
    and ``task_seed`` ``[N, 1]`` int64 and begins the task of that seed in the envs of ``_reset``
    (whatever it returns of the others is not read); and, to be resumed exactly, a ``state_dict`` of
    all it remembers. Randomness that the task seed determines, as in every environment of this
    package, is the same in all trials of an episode.

    Args:
        env: The environment whose episodes are the trials.
        num_trials: Trials of an episode; None for as many as the horizon allows.
        horizon: Steps after which an episode is over, in the middle of a trial too; None for
            ``num_trials`` times the time limit of ``env``.
        num_warmup: Trials at the start of an episode whose reward is 0; ``prev_reward`` shows the
            true one, as in AMAGO-2 (arXiv 2411.11188).
        seed: Names the tasks of all episodes.

    Raises:
        ValueError: If a number is out of its range, neither ``num_trials`` nor a horizon is known,
            or ``env`` cannot be used (a `TransformedEnv` keeps the task seed from what it wraps).

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
        self._overrides = (
            env._overrides if isinstance(env, BatchedEnv) else ()
        )  # hold for all trials
        # Where nothing but seeds decides which task is next, the inner environment counts episodes
        # as this one does.
        self._counts_alike = isinstance(env, BatchedEnv) or getattr(env, "_counts_alike", False)
        limit = self._horizon_of(env, num_trials, horizon, num_warmup)
        entries = env.observation_spec
        self._passed = tuple(name for name in entries.keys() if name not in _NOT_PASSED)
        super().__init__(
            num_envs=env.batch_size[0],
            time_limit=limit,
            action=env.action_spec[0],
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
        require(
            cls.__name__,
            "env",
            kind,
            not isinstance(env, TransformedEnv),
            "be transformed from outside",
        )
        batch = tuple(env.batch_size)
        require(cls.__name__, "env", batch, len(batch) == 1, "have one batch dimension")
        ActionEncoding(env.action_spec, batch_dims=1)
        for name, spec in (("reward", env.reward_spec), ("done", env.full_done_spec["done"])):
            shape = tuple(spec.shape)
            require(
                cls.__name__,
                "env",
                shape,
                shape == (*batch, 1),
                f"have a {name} of shape {(*batch, 1)}",
            )

    @classmethod
    def _horizon_of(
        cls, env: EnvBase, num_trials: int | None, horizon: int | None, num_warmup: int
    ) -> int:
        known = num_trials is not None or horizon is not None
        require(cls.__name__, "num_trials", num_trials, known, "be given where horizon is not")
        for name, value in (("num_trials", num_trials), ("horizon", horizon)):
            require(cls.__name__, name, value, value is None or value >= 1, "be at least 1")
        most = "" if num_trials is None else f" and less than num_trials, {num_trials}"
        good = num_warmup >= 0 and (num_trials is None or num_warmup < num_trials)
        require(cls.__name__, "num_warmup", num_warmup, good, f"be at least 0{most}")
        if horizon is not None:
            return horizon
        limit = env._time_limit if isinstance(env, ContextEnv) else None
        require(
            cls.__name__,
            "horizon",
            horizon,
            limit is not None,
            "be given where env tells no time limit",
        )
        return (num_trials or 0) * (limit or 0)

    @property
    def spaces(self) -> Spaces | None:
        """Description of the inner environment's Gymnasium spaces; None if it has none."""
        return recorded_spaces(self.env)

    @property
    def novelty(self) -> str | None:
        """That of the inner environment."""
        novelty: str | None = getattr(self.env, "novelty", None)
        return novelty

    def task_hashes(self) -> Tensor | None:
        """Those of the inner environment."""
        method = getattr(self.env, "task_hashes", None)
        hashes: Tensor | None = method() if callable(method) else None
        return hashes

    @property
    def plays_all_tasks(self) -> bool:
        """As the inner environment."""
        return bool(getattr(self.env, "plays_all_tasks", False))

    @property
    def capture_obstacle(self) -> str | None:
        """That of the inner environment."""
        return (
            self.env.capture_obstacle
            if isinstance(self.env, ContextEnv)
            else type(self.env).__name__
        )

    def reserve(self, num_steps: int) -> bool:
        """Lets the inner environment do so; see `ContextEnv.reserve`."""
        return isinstance(self.env, ContextEnv) and self.env.reserve(num_steps)

    @property
    def _present(self) -> Mapping[str, Any]:
        return self._timestep

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        if seed is not None and "env" in self._modules:
            self.env.set_seed(seed)

    def _restart(self, streams: Tensor) -> None:
        self._number(streams, torch.zeros_like(streams))
        if "_state" in self.__dict__:
            return
        zero, no = (
            torch.zeros_like(streams).unsqueeze(-1),
            torch.zeros_like(streams).bool().unsqueeze(-1),
        )
        self._state: Tensors = {"task_seed": zero, "step_index": zero, "trial": zero}
        # Success within the running trial, and of the last one that was completed:
        self._state |= {"reached": no, "solved": no}
        self._timestep: dict[str, Any] = {}

    def _number(self, streams: Tensor, episodes: Tensor) -> None:
        """Lets the episodes to come be those of these numbers ``[N]``."""
        self._streams, self._episodes = streams, episodes
        if self._counts_alike and "env" in self._modules:
            self.env._number(streams, episodes)

    def _begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        chosen = self._chosen_tasks(tensordict)
        task_seed = fold(self._streams, self._episodes) if chosen is None else chosen
        first = self._request(begins, task_seed)
        if chosen is None:
            self._episodes = self._episodes + begins
            if self._counts_alike:
                del first["task_seed"]
        if tensordict is not None:
            first.update(tensordict.select(*self._overrides, strict=False))
        self._begin_tasks(begins, task_seed, first)

    def _begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        if self._counts_alike:
            self._begin_tasks(begins, task_seed.squeeze(-1), None)
        else:
            super()._begin_again(begins, task_seed)

    def _begin_tasks(self, begins: Tensor, task_seed: Tensor, first: TensorDict | None) -> None:
        begun = begins.unsqueeze(-1)
        seeds = torch.where(begun, task_seed.unsqueeze(-1), self._state["task_seed"])
        self._state = {
            **{k: v.masked_fill(begun, 0) for k, v in self._state.items()},
            "task_seed": seeds,
        }
        old = self._timestep or {**self.observation_spec.zero(), **self.full_done_spec.zero()}
        timestep = {k: v.masked_fill(begun, 0) for k, v in old.items() if k not in self._passed}
        for name in ("trial_start", "is_init"):
            timestep[name] = timestep[name] | begun
        self._timestep = {**self._begin_trials(begins, old, first), **timestep}

    def _request(self, begins: Tensor, task_seed: Tensor) -> TensorDict:
        """What the inner environment is asked for when a trial begins in the envs of a mask
        ``[N]``.
        """
        return self._wrap(
            {"_reset": begins.unsqueeze(-1).clone(), "task_seed": task_seed.unsqueeze(-1).clone()}
        )

    def _begin_trials(
        self, begins: Tensor, old: Mapping[str, Any], first: TensorDict | None = None
    ) -> dict[str, Any]:
        """Begins a trial in the envs of a mask ``[N]``; what is then seen in all envs, ``old`` in
        the others.

        ``first`` is what the first trial of an episode asks for; without it, envs play their task
        again.
        """
        if isinstance(self.env, ContextEnv):
            if first is None:
                self.env._begin_again(begins, self._state["task_seed"].clone())
            else:
                self.env._begin_episodes(begins, first)
            return self._pass_on(self.env._present)
        asked = (
            self._request(begins, self._state["task_seed"].squeeze(-1)) if first is None else first
        )
        new = self.env._reset(asked)
        return {name: _choose(begins, new.get(name), old[name]) for name in self._passed}

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
        if self._may_be_any(again):
            seen = self._begin_trials(again.squeeze(-1), seen)
        timestep = {
            **seen,
            **context_values(
                self._state["step_index"].clone(),
                prev_action=self._encoding.encode(action),
                prev_reward=true_reward,
                is_init=torch.zeros_like(again),
                trial_start=again | played.get("trial_start", again),
                horizon=self._horizon,
            ),
            "done": done,
            "terminated": over & ~failed,
            "truncated": failed.clone(),
        }
        if self._tells_success:
            timestep["success"] = self._state["solved"] & over & ~failed
        self._timestep = timestep
        return timestep, reward

    def _pass_on(self, timestep: Mapping[str, Any]) -> dict[str, Any]:
        """What the inner environment shows and this one too; nested entries as tensordicts
        ``[N]``.
        """
        entries = {name: timestep[name] for name in self._passed}
        return {name: self._wrap(v) if isinstance(v, dict) else v for name, v in entries.items()}

    def _play(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """One step of the inner environment: what it showed, and the reward as a tensor of its
        own.
        """
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

    def render(self, env_id: int = 0) -> npt.NDArray[np.uint8]:
        """Draws one env of the inner environment: ``[H, W, 3]`` uint8 RGB."""
        picture: npt.NDArray[np.uint8] = self.env.render(env_id)
        return picture

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that decides how all envs go on, the inner environment's
        included.
        """
        counters = {"streams": self._streams, "episodes": self._episodes, **self._state}
        return {
            "env": self.env.state_dict(),
            "counters": {name: value.clone() for name, value in counters.items()},
            "timestep": {name: value.clone() for name, value in self._timestep.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken, in an environment built with the same settings.

        The timestep to go on from is `present`.

        Raises:
            ValueError: If an entry is missing or has another number of envs.
        """
        for name in ("env", "counters", "timestep"):
            require(
                self.label, "state_dict", sorted(state_dict), name in state_dict, f"hold {name}"
            )
        counters, num_envs = dict(state_dict["counters"]), self.batch_size[0]
        for name in ("streams", "episodes", *self._state):
            require(self.label, "state_dict", sorted(counters), name in counters, f"hold {name}")
            num = len(counters[name])
            require(
                self.label,
                "state_dict",
                f"{num} in {name}",
                num == num_envs,
                f"hold {num_envs} envs",
            )
        self.env.load_state_dict(state_dict["env"])
        counters = {name: value.to(self.device).clone() for name, value in counters.items()}
        self._number(counters.pop("streams"), counters.pop("episodes"))
        self._state = counters
        self._timestep = {
            name: value.to(self.device).clone() for name, value in state_dict["timestep"].items()
        }

    def static_buffers(self) -> Tensors:
        """As `BatchedEnv.static_buffers`, with those of the inner environment."""
        own = EnvState(self._streams, self._episodes, {}, self._state, dict(self._timestep))
        return {
            **own.tensors(),
            **{f"env.{name}": value for name, value in self.env.static_buffers().items()},
        }

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """As `BatchedEnv.set_static_buffers`."""
        inner = {name for name in tensors if name.startswith("env.")}
        self.env.set_static_buffers({name.removeprefix("env."): tensors[name] for name in inner})
        own = EnvState.of({name: value for name, value in tensors.items() if name not in inner})
        self._streams, self._episodes = own.streams, own.episodes
        self._state, self._timestep = own.state, own.timestep

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RepeatedTrials":
        super()._apply(fn, recurse)
        self._streams, self._episodes = fn(self._streams), fn(self._episodes)
        self._state = {name: fn(value) for name, value in self._state.items()}
        self._timestep = {
            name: value.apply(fn) if isinstance(value, TensorDictBase) else fn(value)
            for name, value in self._timestep.items()
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


def _choose(chosen: Tensor, new: Any, old: Any) -> Any:
    """``new`` in the envs of a mask ``[N]`` and ``old`` in the others: tensors or tensordicts
    ``[N, ...]``.
    """
    if isinstance(new, TensorDictBase):
        return new.where(chosen, old)
    return torch.where(chosen.view(-1, *[1] * (new.ndim - 1)), new, old)
