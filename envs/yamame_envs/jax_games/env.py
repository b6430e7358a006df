"""TorchRL environment of games written in JAX."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torch import Tensor
from yamame.checks import (
    ArgumentError,
    PositiveInt,
    UsageError,
    check_bounds,
    require,
    require_choice,
)
from yamame.spaces import Spaces
from yamame.system.messages import OutsideError, described, print_once
from yamame.system.user_code import user_code
from yamame.transforms import context_values

from yamame_envs.adapters.specs import action_spec, observation_specs
from yamame_envs.context import ContextEnv
from yamame_envs.jax_games.compiled import text_of
from yamame_envs.jax_games.game import Game
from yamame_envs.jax_games.libraries import EXTRAS, LIBRARIES, library_game, own_game
from yamame_envs.jax_games.own_names import located
from yamame_envs.jax_games.programs import Hook, Programs
from yamame_envs.jax_games.runtime import jax_device, load_jax, to_jax, to_torch
from yamame_envs.jax_games.worlds import Start, Worlds
from yamame_envs.split import FEWEST, Split, draw_side, hash_of
from yamame_envs.streams import fold
from yamame_envs.tasks import Tensors

_PROBED_TASKS = 64
"""Tasks that are drawn to find out whether there are enough for a split."""
_STATE = ("streams", "episodes", "seeds", "attempts")
_programs: dict[str | None, Programs] = {}
"""Programs of games of libraries, by their settings."""


class JaxEnv(ContextEnv):
    """Batch of N envs of a game written in JAX, which ``jax.vmap`` and ``jax.jit`` step at once.

    An episode is a pure function of its task seed, the number of the attempt at its task, and its
    actions: the key of a reset is a hash of the former two, and a step's the number of the step
    folded into that. Without ``tasks``, attempts share the key of their reset, so that trials begin
    alike and their noise differs.

    An env plays the same with any number of envs beside it, up to rounding where the game sums many
    real numbers: XLA orders the terms of a sum by the number of envs.

    Observations and actions are converted as those of Gymnasium environments (`yamame_envs.Gym`):
    an array is the entry ``observation``, and parts of dictionaries and tuples are nested below it.
    Real numbers are not compared with the bounds of their space.

    The time limit is a finite, visible horizon (``time``): an episode that reaches it is
    terminated. Without a limit, or before it is reached, the game's own truncation is passed on.

    Args:
        id: ``library:name`` for a game of ``gymnax``, ``popgym_arcade``, ``craftax`` or
            ``xminigrid``; ``module:name`` for a class or function that returns a game, or for a
            `yamame_envs.jax_games.Game`; or such an object itself. A game is an object with
            Gymnax's interface (``reset_env``, ``step_env``), alone or with its parameters, or a
            `yamame_envs.jax_games.Game`.
        settings: Arguments of the constructor, and fields of the game's parameters.
        time_limit: Steps after which an episode is terminated, visible to the agent.
            ``registered``: the limit of the game's parameters, if any. None: no limit is visible.
        success: Key in the info of a step that is true when the whole task is done. None: there is
            none. ``auto``: ``success`` or ``is_success``, if there is one.
        tasks: Function ``key -> task`` in JAX, or its name as ``module:name``, that draws the task
            of an episode: parameters of the game, or a dictionary of some of their fields. Trials
            of a task then begin differently. ``own``: the game's ``sample_task(key)``. None: keys
            decide everything.
        split: Tasks that episodes play: ``all``; ``train``, all but a quarter that is held out;
            ``test``, that quarter (`yamame_envs.split`). All but ``all`` need ``tasks``.
        num_envs: Number of envs N.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors. The game runs there too if JAX has it, or else on the CPU.

    Raises:
        ArgumentError: There is no such game, it does not take these settings, or its spaces cannot
            be converted to tensors.
        MissingExtra: JAX or the library is not installed, or another package owns its module.
        UserCodeError: The game has raised an error.
    """

    @check_bounds
    def __init__(
        self,
        *,
        id: str | Callable[..., Any] | Game = "gymnax:CartPole-v1",
        settings: Mapping[str, Any] = MappingProxyType({}),
        time_limit: int | Literal["registered"] | None = "registered",
        success: str | None = "auto",
        tasks: str | Callable[[Any], Any] | None = None,
        split: Split = "all",
        num_envs: PositiveInt = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self._id = id
        require_choice(self.label, "split", split, get_args(Split))
        self._split: Split = split
        self._programs = self._find_programs(settings, tasks, success)
        game = self._programs.game
        has_tasks = split == "all" or game.draw_task is not None
        require(self.label, "split", split, has_tasks, "be 'all' where tasks is null")
        self._check_tasks()
        self._timestep: dict[str, Any] = {}
        self._worlds: Worlds | None = None
        spaces = self._programs.spaces
        if time_limit == "registered":
            own = game.time_limit
            condition = f"be a number of steps, or null, as the game's own limit is {own}"
            require(self.label, "time_limit", time_limit, own is None or own >= 1, condition)
            time_limit = own
        elif time_limit is not None:
            self._check_limit(time_limit, game.time_limit)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=action_spec(spaces.action),
            observations=observation_specs(spaces.observations, device),
            tells_success=self._programs.success_key is not None,
            seed=seed,
            device=device,
        )
        self._worlds = Worlds(self._programs, num_envs, jax_device(self.device), self._draw_tasks)

    @property
    def label(self) -> str:
        """Name of this environment in messages."""
        name = self._id if isinstance(self._id, str) else getattr(self._id, "__name__", "Game")
        return f"JaxEnv({name!r})"

    def __repr__(self) -> str:
        return f"{self.label[:-1]}, num_envs={self.batch_size[0]}, time_limit={self.time_limit})"

    @property
    def spaces(self) -> Spaces:
        """Description of the spaces, which converts their values to entries and back."""
        return self._programs.spaces

    def _find_programs(
        self, settings: Mapping[str, Any], tasks: Any, success: str | None
    ) -> Programs:
        source = self._id
        is_mapping = isinstance(settings, Mapping)
        require(self.label, "settings", settings, is_mapping, "be a mapping of names to values")
        library = source.partition(":")[0] if isinstance(source, str) else None
        # The extra of a library installs JAX, too.
        load_jax(extra=EXTRAS.get(str(library), "jax"))
        draw = self._find_tasks(tasks)
        checked: tuple[Hook, ...] = ("draw_task",) if callable(draw) else ()
        is_remade = False
        if library in LIBRARIES:

            def make() -> Game:
                return library_game(str(source), settings, draw, self.label)

        else:
            made = located(source, self.label, "id") if isinstance(source, str) else source
            makes_game = callable(made) or isinstance(made, Game)
            condition = "name a class or function that makes a game, or a Game"
            require(self.label, "id", source, makes_game, condition)
            checked = get_args(Hook)
            is_remade = not isinstance(made, Game)

            def make() -> Game:
                return own_game(made, settings, draw, self.label)

        try:
            # Games of libraries are what their settings say: they need not be traced again.
            given = [source, dict(settings), draw, success]
            key = text_of(given) if library in LIBRARIES else None
            if key in _programs:
                return _programs[key]
            programs = Programs(make(), success=success, owner=self.label)
            programs.check_pure(checked, make if is_remade else None)
            if key is not None:
                _programs[key] = programs
            return programs
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            draws = callable(draw)
            if isinstance(error, UsageError | ImportError) or not (settings or draws):
                raise
            # Values of a wrong type are found where the game computes with them.
            name, got = ("tasks", _name_of(draw)) if draws else ("settings", dict(settings))
            condition = (
                f"{'draw' if draws else 'have'} values with which {self.label} can be played"
            )
            if settings and draws:
                condition += f", as must settings {dict(settings)}"
            remedy = described(error)
            raise ArgumentError(self.label, name, got, condition, remedy=remedy) from error

    def _check_limit(self, limit: Any, own: int | None) -> None:
        """Raise for a limit that is no number, or beyond that of the game, which ends before."""
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        require(self.label, "time_limit", limit, is_number, "be an integer, 'registered' or None")
        if own is None:
            return
        condition = f"be at most {own}, as the game itself ends then"
        remedy = "raise the limit in the parameters of the game, by its name in env.settings"
        require(self.label, "time_limit", limit, limit <= own, condition, remedy=remedy)

    def _find_tasks(self, tasks: Any) -> Any:
        if tasks is None or tasks == "own" or callable(tasks):
            return tasks
        # Functions of libraries could do anything, and an id of one needs no trust.
        is_own = isinstance(tasks, str) and tasks.partition(":")[0].split(".")[0] not in LIBRARIES
        condition = "be null, own, or module:name of a function of yours"
        require(self.label, "tasks", tasks, is_own, condition)
        found = located(tasks, self.label, "tasks")
        require(self.label, "tasks", tasks, callable(found), condition)
        return found

    def _check_tasks(self) -> None:
        if self._programs.game.draw_task is None:
            return
        drawn = self._programs.draw(fold(torch.arange(_PROBED_TASKS), 0))
        count = len(hash_of(drawn).unique())
        if self._split == "all":
            if count == 1:
                line = "tasks draws a single task, whatever the key: draw it with jax.random"
                print_once(f"{self.label}: {line}")
            return
        condition = f"be all, as there are too few different tasks ({count}) to hold some out"
        require(self.label, "split", self._split, count >= FEWEST, condition)

    @property
    def novelty(self) -> str | None:
        """See `ContextEnv.novelty`."""
        return None if self._split == "all" else "new tasks"

    def _draw_tasks(self, seeds: Tensor) -> Tensors:
        return draw_side(self._programs.draw, hash_of, seeds, self._split, self.label)

    def task_hashes(self) -> Tensor | None:
        """Return the hashes of the current tasks; None without ``tasks``."""
        if self._programs.game.draw_task is None:
            return None
        return hash_of(self._draw_tasks(self._seeds))

    @property
    def plays_all_tasks(self) -> bool:
        """See `ContextEnv.plays_all_tasks`."""
        if self._split != "all" or self._programs.game.draw_task is None:
            return False
        drawn = self._programs.draw(fold(torch.arange(_PROBED_TASKS), 0))
        return len(hash_of(drawn).unique()) < FEWEST

    @property
    def current_timestep(self) -> Mapping[str, Any]:
        """See `ContextEnv.current_timestep`."""
        return self._timestep

    def restart(self, streams: Tensor) -> None:
        """See `ContextEnv.restart`."""
        # Counters are read by the host, so they stay there.
        self._streams = streams.cpu()
        self._episodes = torch.zeros_like(self._streams)
        if self._worlds is None:
            self._seeds = torch.zeros_like(self._streams)
            self._attempts = torch.zeros_like(self._streams)
        else:
            self._worlds.forget_coming()

    def begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        """See `ContextEnv.begin_again`."""
        begins = begins.cpu()
        self._seeds = torch.where(begins, task_seed.squeeze(-1).cpu(), self._seeds)
        self._attempts = self._attempts + begins
        self._begin(begins)

    def begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        """See `ContextEnv.begin_episodes`."""
        chosen = self.requested_seeds(tensordict)
        begins = begins.cpu()
        self._attempts = self._attempts.masked_fill(begins, 0)
        if chosen is None:
            seeds = fold(self._streams, self._episodes)
            self._seeds = torch.where(begins, seeds, self._seeds)
            episodes = self._episodes
            self._episodes = episodes + begins
            self._begin(begins, episodes)
        else:
            self._seeds = torch.where(begins, chosen.cpu(), self._seeds)
            self._begin(begins)

    def _begin(self, begins: Tensor, episodes: Tensor | None = None) -> None:
        """Begin the present tasks in some envs.

        Args:
            begins: ``[N]`` bool, on the CPU.
            episodes: Numbers ``[N]`` of the episodes; None for episodes without a number.
        """
        worlds = self._games
        try:
            if episodes is None:
                worlds.begin(begins, Start(self._seeds, self._attempts))
            else:
                worlds.begin_numbered(begins, episodes, self._streams)
        except BaseException:
            self._forget()
            raise
        seen = self._entries(worlds.seen)
        begun = begins.to(self.device).unsqueeze(-1)
        old = self._timestep or self._nothing()
        timestep = {**old, **seen}
        for name, value in old.items():
            if name not in seen:
                is_mark = name in ("is_init", "trial_start")
                timestep[name] = value | begun if is_mark else value.masked_fill(begun, 0)
        self._timestep = timestep

    def _nothing(self) -> dict[str, Any]:
        """Return entries of zeros, other than observations."""
        specs = {**self.observation_spec, **self.full_done_spec}
        return {name: spec.zero() for name, spec in specs.items() if name != "observation"}

    @property
    def _games(self) -> Worlds:
        assert self._worlds is not None, "the constructor has not ended"
        return self._worlds

    def _forget(self) -> None:
        """Require a reset of all envs after an error, in which some may have gone ahead."""
        self._timestep = {}
        self._games.clear()

    def advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """See `ContextEnv.advance`."""
        before = self._timestep
        self.check_action(action, before["step_index"])
        worlds = self._games
        try:
            moved = worlds.step(to_jax(action, jax_device(self.device)))
            self._check_faults(moved.fault, before)
        except BaseException:
            self._forget()
            raise
        reward = to_torch(moved.reward, self.device)
        flags = to_torch(moved.flags, self.device).unsqueeze(-1)
        terminated, truncated, success = flags.unbind(1)
        step_index = before["step_index"] + 1
        if self.time_limit is not None:
            # The horizon is visible, so reaching it terminates: there is no value beyond it.
            terminated = terminated | (step_index >= self.time_limit)
        truncated = truncated & ~terminated
        starts = torch.zeros_like(terminated)
        timestep = self._entries(moved.seen)
        timestep |= context_values(
            step_index,
            prev_action=self.action_encoding.encode(action),
            prev_reward=reward,
            is_init=starts,
            horizon=self.time_limit,
        )
        if self._programs.success_key is not None:
            timestep["success"] = success.clone()
        timestep["done"] = terminated | truncated
        timestep["terminated"] = terminated.clone()
        timestep["truncated"] = truncated
        self._timestep = timestep
        return timestep, reward.clone()

    def _check_faults(self, fault: Any, before: Mapping[str, Any]) -> None:
        """Raise if the game has returned a wrong number in an episode that was not over."""
        faults = np.asarray(fault)
        if not faults.any():
            return
        running = ~before["done"].cpu().numpy()[:, 0]
        wrong = (faults * running).nonzero()[0]
        if not len(wrong):
            return
        env_id = int(wrong[0])
        text = self._programs.fault_text(int(faults[env_id]))
        step = int(before["step_index"][env_id])
        place = f"in env {env_id} at step {step} of task_seed {int(self._seeds[env_id])}"
        raise OutsideError(f"{self.label}: {text}, {place}")

    def _entries(self, seen: tuple[Any, ...]) -> dict[str, Any]:
        """Return the entries of observations, nested by their names."""
        root: dict[str, Any] = {}
        for entry, array in zip(self.spaces.observations, seen, strict=True):
            dtype = torch.int64 if entry.kind == "token" else None
            node = root
            for name in entry.name[:-1]:
                node = node.setdefault(name, {})
            node[entry.name[-1]] = to_torch(array, self.device, dtype)
        return root

    def render(self, env_id: int = 0) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        Raises:
            ArgumentError: There is no such env, or it was not reset.
            NotImplementedError: The game has no pictures.
        """
        worlds = self._games
        is_reset = not worlds.is_empty and 0 <= env_id < self.batch_size[0]
        require(self.label, "env_id", env_id, is_reset, "be an env that was reset")
        draw_picture = self._programs.game.draw_picture
        if draw_picture is not None:
            with user_code(f"{self.label}: env {env_id} cannot be drawn"):
                return np.asarray(draw_picture(*worlds.row(env_id))).astype(np.uint8)
        for entry, array in zip(self.spaces.observations, worlds.seen, strict=True):
            if entry.kind == "byte" and len(entry.shape) == 3 and entry.shape[-1] == 3:
                return np.asarray(array[env_id])
        raise NotImplementedError(f"{self.label}: the game has no pictures")

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that decides how all envs continue, also mid-episode."""
        return {
            "split": self._split,
            "counters": {name: getattr(self, f"_{name}").clone() for name in _STATE},
            "world": self._games.state_dict(),
            "timestep": _cloned(self._timestep),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of an environment with the same settings.

        `present` returns the restored timestep.

        Raises:
            ArgumentError: An entry is missing, or is of another game or number of envs.
        """
        names = sorted(state_dict)
        for name in ("counters", "world", "timestep"):
            require(self.label, "state_dict", names, name in state_dict, f"hold {name}")
        split = state_dict.get("split", self._split)  # states of earlier versions do not have it
        condition = f"be of the tasks {self._split!r}"
        require(self.label, "state_dict.split", split, split == self._split, condition)
        counters = state_dict["counters"]
        num_envs = self.batch_size[0]
        for name in _STATE:
            require(self.label, "state_dict", sorted(counters), name in counters, f"hold {name}")
            got = f"{len(counters[name])} envs"
            is_same = len(counters[name]) == num_envs
            require(self.label, "state_dict", got, is_same, f"hold {num_envs} envs")
        self._games.load_state_dict(state_dict["world"], self.label)
        for name in _STATE:
            setattr(self, f"_{name}", counters[name].cpu().clone())
        self._timestep = _cloned(state_dict["timestep"], self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "JaxEnv":
        super()._apply(fn, recurse)
        self._timestep = _cloned(self._timestep, self.device)
        return self


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _cloned(entries: Mapping[str, Any], device: torch.device | None = None) -> dict[str, Any]:
    """Return copies of nested tensors, on a device; None: where they are."""
    copies: dict[str, Any] = {}
    for name, value in entries.items():
        if isinstance(value, Tensor):
            copies[name] = value.to(device or value.device, copy=True)
        else:
            copies[name] = _cloned(value, device)
    return copies
