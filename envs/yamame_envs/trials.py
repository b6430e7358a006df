"""Several trials at the same task as one episode: the meta-RL problem of RL^2.

Source: Duan et al., arXiv 1611.02779.

Task seeds, context entries, the fused step and resets are those of `yamame_envs.context`. All
observed entries of the inner environment are passed on, except the context entries, which the
wrapper writes itself, and ``achieved`` and ``achieved_mask``: the instruction ``goal`` starts
afresh with every trial, and hindsight relabelling across trials is not defined.
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
from yamame.checks import NonNegativeInt, PositiveInt, check_bounds, require
from yamame.keys import CONTEXT, DONE, RELABELLING
from yamame.spaces import Spaces
from yamame.spaces.from_specs import env_attribute, recorded_spaces
from yamame.system.messages import print_once
from yamame.transforms import context_values

from yamame_envs.base import BatchedEnv
from yamame_envs.context import ContextEnv
from yamame_envs.env_state import EnvState, check_entries
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

    ``success`` is true only at the last timestep, if the last completed trial had a success. If the
    inner environment writes ``aborted`` ``[N, 1]`` (it failed), the episode is truncated there.

    The wrapper owns the inner environment. It accepts every `ContextEnv`. Any other `EnvBase` needs
    one batch dimension; an ``action`` that `yamame.actions.ActionEncoding` takes; one number as
    ``reward``; a reset that takes ``_reset`` and ``task_seed`` ``[N, 1]`` int64 and begins the task
    of that seed in the envs of ``_reset`` (its entries of the other envs are not read); and, for an
    exact resume, a ``state_dict`` of its whole state. Randomness that the task seed determines, as
    in every environment of this package, is the same in all trials of an episode.

    Args:
        env: Environment whose episodes are the trials.
        num_trials: Number of trials of an episode. None: as many as the horizon allows.
        horizon: Steps after which an episode is over, also in the middle of a trial. None:
            ``num_trials`` times the time limit of ``env``.
        num_warmup: Number of trials at the start of an episode whose reward is 0, below
            ``num_trials``. ``prev_reward`` holds the true one, as in AMAGO-2 (arXiv 2411.11188).
        seed: Seed of the tasks of all episodes.

    Raises:
        ArgumentError: A number is out of its range, neither ``num_trials`` nor a horizon is known,
            or ``env`` cannot be used.

    >>> from yamame_envs.tmaze import PassiveTMaze
    >>> env = RepeatedTrials(PassiveTMaze(num_envs=2, length=3), num_trials=2)
    >>> td = env.rollout(8)
    >>> td["trial_start"][0].flatten().int().tolist()
    [1, 0, 0, 0, 1, 0, 0, 0]
    >>> td["next", "done"][0].flatten().int().tolist()
    [0, 0, 0, 0, 0, 0, 0, 1]
    """

    @check_bounds
    def __init__(
        self,
        env: EnvBase,
        *,
        num_trials: PositiveInt | None,
        horizon: PositiveInt | None = None,
        num_warmup: NonNegativeInt = 0,
        seed: int = 0,
    ) -> None:
        self._check_env(env)
        self._warn_of_trials(env, num_trials)
        self.num_trials = num_trials
        self._num_warmup = num_warmup
        self._tells_success = "success" in env.observation_spec.keys()
        # An instruction that a reset sets holds for all trials.
        self.overrides = env.overrides if isinstance(env, BatchedEnv) else ()
        # If seeds alone decide which task is next, the inner environment counts episodes as this
        # one does, and can draw its tasks in advance.
        counts_alike = env_attribute(env, "_counts_alike") is True
        self._counts_alike = isinstance(env, BatchedEnv) or counts_alike
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
        # Again, because the base constructor seeds before there is an inner environment.
        self.set_seed(seed)

    @classmethod
    def _check_env(cls, env: EnvBase) -> None:
        owner = cls.__name__
        # A transform does not pass the task seed on to the environment that it wraps.
        is_plain = not isinstance(env, TransformedEnv)
        remedy = "transform the RepeatedTrials instead"
        kind = type(env).__name__
        require(owner, "env", kind, is_plain, "not be transformed", remedy=remedy)
        batch = tuple(env.batch_size)
        require(owner, "env", batch, len(batch) == 1, "have one batch dimension")
        # Raises if there is no encoding.
        ActionEncoding(env.action_spec, batch_dims=1)
        column = (*batch, 1)
        for name, spec in (("reward", env.reward_spec), ("done", env.full_done_spec["done"])):
            shape = tuple(spec.shape)
            require(owner, "env", shape, shape == column, f"have a {name} of shape {column}")

    @classmethod
    def _warn_of_trials(cls, env: EnvBase, num_trials: int | None) -> None:
        """Print a line about trials within trials, which are more often a mistake than meant."""
        own = env.num_trials if isinstance(env, ContextEnv) else 1
        if own == 1 or num_trials == 1:
            return
        count = "" if own is None else f"{own} "
        print_once(
            f"{cls.__name__}: {type(env).__name__} has {count}trials of its own, which together "
            "are one trial here: leave trials out, or set env.num_trials=1"
        )

    @classmethod
    def _horizon_of(
        cls, env: EnvBase, num_trials: int | None, horizon: int | None, num_warmup: int
    ) -> int:
        owner = cls.__name__
        ends = num_trials is not None or horizon is not None
        require(owner, "num_trials", num_trials, ends, "be given where horizon is not")
        leaves_trials = num_trials is None or num_warmup < num_trials
        condition = f"be less than num_trials, {num_trials}"
        require(owner, "num_warmup", num_warmup, leaves_trials, condition)
        if horizon is not None:
            return horizon
        limit = env.time_limit if isinstance(env, ContextEnv) else None
        condition = "be given where env has no time limit"
        require(owner, "horizon", horizon, limit is not None, condition)
        return (num_trials or 0) * (limit or 0)

    @property
    def spaces(self) -> Spaces | None:
        """Description of the inner environment's Gymnasium spaces; None if it has none."""
        return recorded_spaces(self.env)

    @property
    def novelty(self) -> str | None:
        """Novelty of the inner environment."""
        novelty: str | None = env_attribute(self.env, "novelty")
        return novelty

    def task_hashes(self) -> Tensor | None:
        """Return the task hashes of the inner environment; None if it has none."""
        method = env_attribute(self.env, "task_hashes")
        hashes: Tensor | None = method() if callable(method) else None
        return hashes

    @property
    def plays_all_tasks(self) -> bool:
        """See `ContextEnv.plays_all_tasks`, of the inner environment."""
        return env_attribute(self.env, "plays_all_tasks") is True

    @property
    def capture_obstacle(self) -> str | None:
        """Obstacle of the inner environment."""
        if isinstance(self.env, ContextEnv):
            return self.env.capture_obstacle
        return type(self.env).__name__

    def reserve(self, num_steps: int) -> bool:
        """Reserve steps of the inner environment; see `ContextEnv.reserve`."""
        return isinstance(self.env, ContextEnv) and self.env.reserve(num_steps)

    @property
    def current_timestep(self) -> Mapping[str, Any]:
        """See `ContextEnv.current_timestep`."""
        return self._timestep

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        if seed is not None and "env" in self._modules:
            self.env.set_seed(seed)

    def restart(self, streams: Tensor) -> None:
        """See `ContextEnv.restart`."""
        self.number_episodes(streams, torch.zeros_like(streams))
        if "_state" in self.__dict__:
            return
        zero = torch.zeros_like(streams).unsqueeze(-1)
        no = zero.bool()
        self._state: Tensors = {"task_seed": zero, "step_index": zero, "trial": zero}
        # Success within the running trial, and of the last completed one.
        self._state["reached"] = no
        self._state["solved"] = no
        self._timestep: dict[str, Any] = {}

    def number_episodes(self, streams: Tensor, episodes: Tensor) -> None:
        """Set the streams and the number ``[N]`` of the next episode of each env."""
        self._streams = streams
        self._episodes = episodes
        if self._counts_alike and "env" in self._modules:
            self.env.number_episodes(streams, episodes)

    def begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        """See `ContextEnv.begin_episodes`."""
        chosen = self.requested_seeds(tensordict)
        task_seed = fold(self._streams, self._episodes) if chosen is None else chosen
        first = self._request(begins, task_seed)
        if chosen is None:
            self._episodes = self._episodes + begins
            if self._counts_alike:
                # The inner environment draws the same task, in advance.
                del first["task_seed"]
        if tensordict is not None:
            first.update(tensordict.select(*self.overrides, strict=False))
        self._begin_tasks(begins, task_seed, first)

    def begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        """See `ContextEnv.begin_again`."""
        if self._counts_alike:
            self._begin_tasks(begins, task_seed.squeeze(-1), None)
        else:
            super().begin_again(begins, task_seed)

    def _begin_tasks(self, begins: Tensor, task_seed: Tensor, first: TensorDict | None) -> None:
        begun = begins.unsqueeze(-1)
        seeds = torch.where(begun, task_seed.unsqueeze(-1), self._state["task_seed"])
        state = {name: value.masked_fill(begun, 0) for name, value in self._state.items()}
        state["task_seed"] = seeds
        self._state = state

        old = self._timestep or {**self.observation_spec.zero(), **self.full_done_spec.zero()}
        timestep = self._begin_trials(begins, old, first)
        for name, value in old.items():
            if name not in self._passed:
                timestep[name] = value.masked_fill(begun, 0)
        for name in ("trial_start", "is_init"):
            timestep[name] = timestep[name] | begun
        self._timestep = timestep

    def _request(self, begins: Tensor, task_seed: Tensor) -> TensorDict:
        """Return the argument of the inner reset that begins trials in a mask ``[N]`` of envs."""
        # Copies, because the inner environment may change them.
        entries = {"_reset": begins.unsqueeze(-1).clone()}
        entries["task_seed"] = task_seed.unsqueeze(-1).clone()
        return self._wrap(entries)

    def _begin_trials(
        self, begins: Tensor, old: Mapping[str, Any], first: TensorDict | None = None
    ) -> dict[str, Any]:
        """Begin a trial in some envs.

        Args:
            begins: ``[N]`` bool, the envs.
            old: Entries of the current timestep, which the other envs keep.
            first: Argument of the inner reset for the first trial of an episode. None: envs play
                their task again.

        Returns:
            The passed entries of all envs.
        """
        if isinstance(self.env, ContextEnv):
            if first is None:
                self.env.begin_again(begins, self._state["task_seed"].clone())
            else:
                self.env.begin_episodes(begins, first)
            return self._pass_on(self.env.current_timestep)
        if first is None:
            first = self._request(begins, self._state["task_seed"].squeeze(-1))
        new = self.env._reset(first)
        return {name: _choose(begins, new.get(name), old[name]) for name in self._passed}

    def advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """See `ContextEnv.advance`."""
        played, true_reward = self._play(action)
        entries = self._pass_on(played)
        # ``prev_reward`` keeps the true reward.
        reward = true_reward.clone()
        if self._num_warmup > 0:
            reward = reward.masked_fill(self._state["trial"] < self._num_warmup, 0.0)
        self._count(played)
        over = self._ended()
        failed = played.get("aborted", torch.zeros_like(over))
        done = over | failed
        again = played["done"] & ~done
        if self._may_be_any(again):
            entries = self._begin_trials(again.squeeze(-1), entries)

        timestep = dict(entries)
        timestep |= context_values(
            self._state["step_index"].clone(),
            prev_action=self.action_encoding.encode(action),
            prev_reward=true_reward,
            is_init=torch.zeros_like(again),
            trial_start=again | played.get("trial_start", again),
            horizon=self.horizon,
        )
        timestep["done"] = done
        timestep["terminated"] = over & ~failed
        timestep["truncated"] = failed.clone()
        if self._tells_success:
            timestep["success"] = self._state["solved"] & over & ~failed
        self._timestep = timestep
        return timestep, reward

    def _pass_on(self, timestep: Mapping[str, Any]) -> dict[str, Any]:
        """Return the passed entries of an inner timestep, nested ones as tensordicts ``[N]``."""
        entries = {}
        for name in self._passed:
            value = timestep[name]
            entries[name] = self._wrap(value) if isinstance(value, dict) else value
        return entries

    def _play(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """Step the inner environment; return its timestep, and the reward as a separate tensor."""
        if isinstance(self.env, ContextEnv):
            return self.env.advance(action)
        played = self.env.step(self._wrap({"action": action})).get("next")
        return dict(played.items()), played.get("reward").to(torch.float32, copy=True)

    def _count(self, played: Mapping[str, Any]) -> None:
        """Count a step of the inner environment, and the trials that ended with it."""
        state = self._state
        trial_over = played["done"]
        counted = {"task_seed": state["task_seed"], "step_index": state["step_index"] + 1}
        counted["trial"] = state["trial"] + trial_over
        reached = state["reached"]
        if "success" in played:
            reached = reached | played["success"]
        counted["solved"] = torch.where(trial_over, reached, state["solved"])
        counted["reached"] = reached & ~trial_over
        self._state = counted

    def _ended(self) -> Tensor:
        ended = self._state["step_index"] >= self.horizon
        if self.num_trials is None:
            return ended
        return ended | (self._state["trial"] >= self.num_trials)

    def render(self, env_id: int = 0) -> npt.NDArray[np.uint8]:
        """Draw one env of the inner environment: ``[H, W, 3]`` uint8 RGB.

        Raises:
            NotImplementedError: The inner environment has no pictures, or only one of its first
                env.
        """
        name = type(self.env).__name__
        render: Any = env_attribute(self.env, "render")
        if not callable(render):
            raise NotImplementedError(f"{name}: it has no method render()")
        picture: npt.NDArray[np.uint8]
        if isinstance(self.env, ContextEnv):
            picture = render(env_id)
        elif env_id == 0:
            picture = render()
        else:
            raise NotImplementedError(f"{name}: only its first env can be drawn")
        return picture

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that decides how all envs continue, also the inner ones."""
        counters = {"streams": self._streams, "episodes": self._episodes, **self._state}
        return {
            "env": self.env.state_dict(),
            "counters": {name: value.clone() for name, value in counters.items()},
            "timestep": {name: value.clone() for name, value in self._timestep.items()},
            "settings": self._settings(),
        }

    def _settings(self) -> dict[str, int]:
        return {
            "num_trials": int(self.num_trials or 0),
            "num_warmup": self._num_warmup,
            "time_limit": int(self.time_limit or 0),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of an environment with the same settings.

        `present` returns the restored timestep.

        Raises:
            ArgumentError: The state was saved with other settings. The environment is unchanged.
        """
        names = sorted(state_dict)
        for name in ("env", "counters", "timestep"):
            require(self.label, "state_dict", names, name in state_dict, f"hold {name}")
        # States of earlier versions have no settings.
        settings = state_dict.get("settings", self._settings())
        condition = f"be {self._settings()}"
        is_same = settings == self._settings()
        require(self.label, "state_dict.settings", settings, is_same, condition)
        saved = state_dict["counters"]
        counters = {"streams": self._streams, "episodes": self._episodes, **self._state}
        check_entries(self.label, "state_dict.counters", saved, counters)
        timestep = state_dict["timestep"]
        if timestep:
            needed = {**self.observation_spec, **self.full_done_spec}
            check_entries(self.label, "state_dict.timestep", timestep, needed, optional=None)

        self.env.load_state_dict(state_dict["env"])
        counters = {name: value.to(self.device).clone() for name, value in saved.items()}
        # Last, because it also sets the counters of the inner environment.
        self.number_episodes(counters.pop("streams"), counters.pop("episodes"))
        self._state = counters
        self._timestep = {}
        for name, value in state_dict["timestep"].items():
            self._timestep[name] = value.to(self.device).clone()

    def static_buffers(self) -> Tensors:
        """Return the tensors of this and the inner environment that a step reads and replaces."""
        own = EnvState(self._streams, self._episodes, {}, self._state, dict(self._timestep))
        tensors = own.tensors()
        for name, value in self.env.static_buffers().items():
            tensors[f"env.{name}"] = value
        return tensors

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Use other tensors in the place of those of `static_buffers`, without copying them."""
        inner = {}
        outer = {}
        for name, value in tensors.items():
            if name.startswith("env."):
                inner[name.removeprefix("env.")] = value
            else:
                outer[name] = value
        self.env.set_static_buffers(inner)
        own = EnvState.of(outer)
        self._streams = own.streams
        self._episodes = own.episodes
        self._state = own.state
        self._timestep = own.timestep

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RepeatedTrials":
        super()._apply(fn, recurse)
        self._streams = fn(self._streams)
        self._episodes = fn(self._episodes)
        self._state = {name: fn(value) for name, value in self._state.items()}
        timestep = {}
        for name, value in self._timestep.items():
            is_nested = isinstance(value, TensorDictBase)
            timestep[name] = value.apply(fn) if is_nested else fn(value)
        self._timestep = timestep
        return self

    def to(self, device: str | torch.device) -> "RepeatedTrials":
        """Move this environment and the inner one to a device."""
        self.env.to(device)
        moved: RepeatedTrials = super().to(device)
        return moved

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close this environment and the inner one."""
        super().close(raise_if_closed=raise_if_closed)
        self.env.close(raise_if_closed=raise_if_closed)


def _choose(chosen: Tensor, new: Any, old: Any) -> Any:
    """Return ``new`` where a mask ``[N]`` is set, else ``old``; also for tensordicts."""
    if isinstance(new, TensorDictBase):
        return new.where(chosen, old)
    return torch.where(chosen.view(-1, *[1] * (new.ndim - 1)), new, old)
