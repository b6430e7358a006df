"""Environment whose tasks a curriculum chooses."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs import EnvBase
from yamame.checks import require
from yamame.curriculum import Curriculum, PlayedEpisodes
from yamame.keys import CONTEXT
from yamame.system.messages import OutsideError

from yamame_envs.base import BatchedEnv
from yamame_envs.context import ContextEnv
from yamame_envs.env_state import check_entries
from yamame_envs.streams import fold, uniform
from yamame_envs.tasks import Tensors
from yamame_envs.trials import RepeatedTrials

# Separates the random numbers of choices from all other keys that are folded out of a seed.
_CHOICE = 0x706C7221


class CurriculumEnv(ContextEnv):
    """Environment of which a curriculum chooses the task of every episode, by its seed.

    Episode e of env i has the seed ``fold(fold(seed, i), e)`` as in every `ContextEnv`, and plays
    the task of the seed that the curriculum chooses for it. A reset with ``task_seed`` plays that
    task. Everything else is that of ``env``, and every timestep has a further entry:

    * ``played_seed`` ``[N, 1]`` int64: seed of the current task.

    A choice depends on the seed of the episode and on the state of the curriculum when the episode
    begins. The state changes in `observe` alone, so that a restored environment continues bit for
    bit; `state_dict` holds the curriculum as well. Evaluations play ``env`` without a curriculum.

    In a `BatchedEnv`, also within `RepeatedTrials`, chosen tasks are drawn in advance, and steps
    can be captured. In other environments, every choice is made when an episode begins.

    Args:
        env: Environment whose tasks are chosen; the wrapper owns it. A TorchRL environment that is
            no `ContextEnv` must be wrapped by `RepeatedTrials` before.
        curriculum: Chooses the tasks, see `yamame.curriculum.Curriculum`.
        seed: Seed of the tasks of all episodes.

    Raises:
        ArgumentError: ``env`` is not a `ContextEnv`, or ``curriculum`` lacks a method.

    >>> from yamame.curriculum import PrioritizedReplay
    >>> from yamame_envs.tmaze import PassiveTMaze
    >>> env = CurriculumEnv(PassiveTMaze(num_envs=2, length=3), PrioritizedReplay())
    >>> "played_seed" in env.reset().keys()
    True
    """

    def __init__(self, env: EnvBase, curriculum: Curriculum, *, seed: int = 0) -> None:
        owner = type(self).__name__
        kind = type(env).__name__
        remedy = "wrap it in RepeatedTrials (trials=repeated trials.num_trials=1)"
        is_seeded = isinstance(env, ContextEnv)
        condition = "be a yamame_envs.ContextEnv, whose tasks are seeds"
        require(owner, "env", kind, is_seeded, condition, remedy=remedy)
        kind = type(curriculum).__name__
        is_curriculum = isinstance(curriculum, Curriculum)
        condition = "have choose, observe, state_dict and load_state_dict"
        require(owner, "curriculum", kind, is_curriculum, condition)
        entries = env.observation_spec
        written = {*CONTEXT, "success"}
        observations = {}
        for name in entries.keys():
            if name not in written:
                observations[name] = entries[name][0]
        observations["played_seed"] = Unbounded(1, dtype=torch.int64, device=env.device)
        super().__init__(
            num_envs=env.batch_size[0],
            time_limit=env.time_limit,
            action=env.action_spec[0],
            observations=observations,
            tells_success="success" in entries.keys(),
            seed=seed,
            device=env.device or "cpu",
        )
        # Not as a submodule, if it is a module.
        object.__setattr__(self, "curriculum", curriculum)
        self.overrides = env.overrides
        self.env = env
        # Again, because the base constructor seeds before there is an inner environment.
        self.set_seed(seed)
        self._renew_choices()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner environment where this one has none of this name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "env" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.env, name)

    @property
    def _drawing(self) -> BatchedEnv | None:
        """Environment that numbers the episodes and draws their tasks; None: a request does."""
        # Each episode of `RepeatedTrials` is one of such an inner environment.
        env = self.env
        while isinstance(env, RepeatedTrials):
            env = env.env
        return env if isinstance(env, BatchedEnv) else None

    @property
    def novelty(self) -> str | None:
        """Novelty of the inner environment."""
        novelty: str | None = self.env.novelty
        return novelty

    def task_hashes(self) -> Tensor | None:
        """Return the task hashes of the inner environment; None if it has none."""
        hashes: Tensor | None = self.env.task_hashes()
        return hashes

    @property
    def plays_all_tasks(self) -> bool:
        """See `ContextEnv.plays_all_tasks`, of the inner environment."""
        return bool(self.env.plays_all_tasks)

    @property
    def capture_obstacle(self) -> str | None:
        """Obstacle of the inner environment, or its name if it does not draw tasks in advance."""
        if self._drawing is None:
            return type(self.env).__name__
        obstacle: str | None = self.env.capture_obstacle
        return obstacle

    def reserve(self, num_steps: int) -> bool:
        """Reserve steps of the inner environment; see `ContextEnv.reserve`."""
        is_reserved: bool = self.env.reserve(num_steps)
        return is_reserved and self.capture_obstacle is None

    @property
    def current_timestep(self) -> Mapping[str, Any]:
        """See `ContextEnv.current_timestep`."""
        if "env" not in self._modules or not self.env.current_timestep:
            return {}
        return {**self.env.current_timestep, "played_seed": self._played_seeds()}

    def _played_seeds(self) -> Tensor:
        """Return the seeds ``[N, 1]`` of the current tasks, as a new tensor."""
        if self._drawing is None:
            return self._seeds.clone()
        seeds: Tensor = self._drawing.env_state.task["task_seed"]
        return seeds.unsqueeze(-1).clone()

    def observe(self, episodes: PlayedEpisodes) -> Tensor | None:
        """Show finished episodes to the curriculum, and let it choose coming tasks anew.

        Returns:
            The result of `Curriculum.observe`: ``[E]`` bool, episodes to learn from, or None.

        Raises:
            OutsideError: It is anything else.
        """
        kept = self.curriculum.observe(episodes)
        is_tensor = isinstance(kept, Tensor)
        shape = (len(episodes),)
        is_mask = is_tensor and kept.dtype == torch.bool and kept.shape == shape
        if kept is not None and not is_mask:
            got = f"{kept.dtype} {list(kept.shape)}" if is_tensor else type(kept).__name__
            raise OutsideError(
                f"{type(self.curriculum).__name__}: the result of observe() must be None or "
                f"torch.bool {list(shape)}, got {got}"
            )
        self._renew_choices()
        return kept

    def _renew_choices(self) -> None:
        """Forget choices for episodes that have not begun, as the curriculum has changed."""
        if self._drawing is not None:
            self._drawing.choose_tasks(self._choose)

    def _choose(self, seeds: Tensor) -> Tensor:
        """Return the task seeds of the episodes with seeds ``[R]``, on the CPU."""
        chosen = self.curriculum.choose(seeds, uniform(fold(seeds, _CHOICE), 2))
        is_tensor = isinstance(chosen, Tensor)
        if not is_tensor or chosen.shape != seeds.shape or chosen.dtype != torch.int64:
            got = f"{chosen.dtype} {list(chosen.shape)}" if is_tensor else type(chosen).__name__
            raise OutsideError(
                f"{type(self.curriculum).__name__}: the result of choose() must be torch.int64 "
                f"{list(seeds.shape)}, got {got}"
            )
        return chosen

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        if seed is not None and "env" in self._modules:
            self.env.set_seed(seed)

    def restart(self, streams: Tensor) -> None:
        """See `ContextEnv.restart`."""
        self._streams = streams
        self._episodes = torch.zeros_like(streams)
        self._seeds = torch.zeros_like(streams).unsqueeze(-1)

    def begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        """See `ContextEnv.begin_episodes`."""
        if self._drawing is not None:
            self.env.begin_episodes(begins, tensordict)
            return
        requested = self.requested_seeds(tensordict)
        seeds = self._seeds.squeeze(-1).clone()
        if requested is None:
            numbered = fold(self._streams, self._episodes)[begins]
            seeds[begins] = self._choose(numbered.cpu()).to(seeds.device)
            self._episodes = self._episodes + begins
        else:
            seeds[begins] = requested[begins]
        self._seeds = seeds.unsqueeze(-1)
        request = self._wrap({"task_seed": self._seeds.clone()})
        if tensordict is not None:
            request.update(tensordict.select(*self.overrides, strict=False))
        self.env.begin_episodes(begins, request)

    def begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        """See `ContextEnv.begin_again`."""
        self.env.begin_again(begins, task_seed)

    def advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """See `ContextEnv.advance`."""
        timestep, reward = self.env.advance(action)
        return {**timestep, "played_seed": self._played_seeds()}, reward

    def render(self, env_id: int = 0) -> npt.NDArray[np.uint8]:
        """Draw one env of the inner environment: ``[H, W, 3]`` uint8 RGB."""
        picture: npt.NDArray[np.uint8] = self.env.render(env_id)
        return picture

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the inner state, of the curriculum's, and of the choices in play."""
        counters = {"streams": self._streams, "episodes": self._episodes, "seeds": self._seeds}
        return {
            "env": self.env.state_dict(),
            "curriculum": self.curriculum.state_dict(),
            "counters": {name: value.clone() for name, value in counters.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of an environment with the same settings.

        Raises:
            ArgumentError: The state was saved with other settings. The environment is unchanged.
        """
        names = sorted(state_dict)
        for name in ("env", "curriculum", "counters"):
            require(self.label, "state_dict", names, name in state_dict, f"hold {name}")
        counters = state_dict["counters"]
        own = {"streams": self._streams, "episodes": self._episodes, "seeds": self._seeds}
        check_entries(self.label, "state_dict.counters", counters, own)
        before = self.curriculum.state_dict()
        self.curriculum.load_state_dict(state_dict["curriculum"])
        try:
            self.env.load_state_dict(state_dict["env"])
        except BaseException:
            self.curriculum.load_state_dict(before)
            raise
        self._streams = counters["streams"].to(self.device).clone()
        self._episodes = counters["episodes"].to(self.device).clone()
        self._seeds = counters["seeds"].to(self.device).clone()
        self._renew_choices()

    def static_buffers(self) -> Tensors:
        """Return the tensors of the inner environment that a step reads and replaces."""
        buffers: Tensors = self.env.static_buffers()
        return buffers

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Use other tensors in the place of those of `static_buffers`, without copying them."""
        self.env.set_static_buffers(tensors)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CurriculumEnv":
        super()._apply(fn, recurse)
        self._streams = fn(self._streams)
        self._episodes = fn(self._episodes)
        self._seeds = fn(self._seeds)
        return self

    def to(self, device: str | torch.device) -> "CurriculumEnv":
        """Move this environment and the inner one to a device."""
        self.env.to(device)
        moved: CurriculumEnv = super().to(device)
        return moved

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close this environment and the inner one."""
        super().close(raise_if_closed=raise_if_closed)
        self.env.close(raise_if_closed=raise_if_closed)
