"""Environments that are registered with Gymnasium."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor
from yamame.checks import ArgumentError, PositiveInt, check_bounds, require, require_choice
from yamame.spaces.arrays import Outside
from yamame.system.messages import print_once
from yamame.system.user_code import user_code

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.extras import MissingExtra, missing_extra
from yamame_envs.adapters.in_process import EnvSpaces, Outcome
from yamame_envs.adapters.registered import find, make_registered
from yamame_envs.adapters.shipping import packing_error, registration_error
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.task import DrawTask, make_with_tasks
from yamame_envs.adapters.workers import Workers
from yamame_envs.split import HELD_OUT, Split

# Episodes after which a missing key of success is reported.
_SUCCESS_EPISODES = 10


class Gym(HostedEnv):
    """Environments of one Gymnasium id.

    The observation is the entry ``observation``: a tensor, or a nested tensordict with an entry per
    part for ``Dict`` and ``Tuple`` spaces.

    Args:
        id: A registered id, such as ``"CartPole-v1"``. ``"module:id"`` imports a module first,
            which registers it.
        settings: Keyword arguments of ``gymnasium.make``.
        time_limit: Steps after which an episode is terminated, visible to the agent (``time``).
            ``"registered"``: the limit that the id was registered with, if any. None: that limit is
            not visible and truncates episodes.
        success: Key in the info of a step that is true when the whole task is done. None: there is
            none. ``auto``: ``success`` or ``is_success``, if one of them is in the info of a first
            step. An episode has success if any step had.
        tasks: Function ``(seed) -> task`` that draws the task of an episode, so that trials of the
            same task differ in their noise (`yamame_envs.adapters.task.TaskEnv`). ``own``: the
            environment's ``sample_task``. None: the task seed decides everything, and trials repeat
            the noise.
        split: Tasks that episodes play: ``all``; ``train``, all but a share that is held out;
            ``test``, that share (`yamame_envs.split`). All but ``all`` need the environment's
            ``task_hash(task)``.
        num_envs: Number of envs N.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.
        bounds: Numbers outside of the bounds of their space: ``warn`` keeps observed ones and
            prints a line; ``clip`` makes them the bounds, and so actions in files; ``raise`` ends
            the run. See `HostedEnv`.

    Raises:
        ArgumentError: There is no such environment, it cannot be made with these settings, or its
            spaces cannot be converted to tensors.
        MissingExtra: It needs a package that is not installed.

    >>> env = Gym(id="CartPole-v1", num_envs=2)
    >>> env.rollout(3)["observation"].shape
    torch.Size([2, 3, 4])
    """

    _generic = True
    _checks_repeats = True

    @check_bounds
    def __init__(
        self,
        *,
        id: str = "CartPole-v1",
        settings: Mapping[str, Any] = MappingProxyType({}),
        time_limit: int | Literal["registered"] | None = "registered",
        success: str | None = "auto",
        tasks: DrawTask | Literal["own"] | None = None,
        split: Split = "all",
        num_envs: PositiveInt = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
        bounds: Outside = "warn",
    ) -> None:
        # First, because messages need the label.
        self._id = id
        require_choice(self.label, "split", split, get_args(Split))
        has_tasks = split == "all" or tasks is not None
        require(self.label, "split", split, has_tasks, "be 'all' where tasks is None")
        self._settings = dict(settings)
        self._draw_task = tasks
        self._split = split
        self._novelty = None if split == "all" else "new tasks"
        self._counts_attempts = tasks is not None
        # Until the key of success was found, or its absence was reported.
        self._awaits_success_key = True
        self._num_ended = 0
        self._registration = self._find()
        # Registered wrappers may need the wrapper of the limit, whose truncation is replaced here.
        has_wrappers = bool(self._registration.additional_wrappers)
        is_limited = time_limit is None or (time_limit == "registered" and has_wrappers)
        registered_limit = self._registration.max_episode_steps
        limit = registered_limit if time_limit == "registered" else time_limit
        super().__init__(
            self._maker(limited=is_limited),
            num_envs=num_envs,
            time_limit=limit,
            success=success,
            seed=seed,
            device=device,
            workers=workers,
            bounds=bounds,
        )

    @property
    def label(self) -> str:
        """Name of this environment in messages."""
        return f"Gym({self._id!r})"

    def _maker(self, *, limited: bool) -> "partial[Any]":
        """Return a function that makes the environment of one env.

        Args:
            limited: Gymnasium truncates episodes at the registered limit.
        """
        make = partial(make_registered, self._id, self._settings, limited=limited)
        if self._draw_task is None:
            return make
        draw = None if self._draw_task == "own" else self._draw_task
        return partial(
            make_with_tasks,
            make,
            draw=draw,
            split=self._split,
            held_out=HELD_OUT,
            owner=self.label,
        )

    def _step_envs(self, batch: Array, over: Array, wrong: Array) -> tuple[Outcome, Array]:
        outcome, aborted = super()._step_envs(batch, over, wrong)
        self._awaits_success_key &= not outcome.has_success_key
        return outcome, aborted

    def advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """See `ContextEnv.advance`."""
        was_over = self._current.column("done")
        advanced = super().advance(action)
        if self._spaces.success_key is not None and self._awaits_success_key:
            ends = self._current.column("done") & ~was_over
            self._num_ended += int(ends.sum())
            if self._num_ended >= _SUCCESS_EPISODES:
                self._awaits_success_key = False
                self._report_missing_success(self._spaces.success_key)
        return advanced

    def _report_missing_success(self, key: str) -> None:
        print_once(
            f"{self.label}: success={key}: no info of {self._num_ended} episodes has had {key!r}, "
            "and success counts as false"
        )

    def _find(self) -> EnvSpec:
        """Return the registration of the id.

        Raises:
            ArgumentError: It is not registered, or only as a vector environment.
            MissingExtra: The package that registers it is not installed.
        """
        try:
            with user_code(f"{self.label}: the environment failed while it was imported"):
                registration: EnvSpec = find(self._id)
        except ImportError as error:
            missing = missing_extra(error, self.label)
            if missing is not None:
                raise missing from error
            message = (
                "Gym: id must be of a package that is installed or in this directory, "
                f"got {self._id!r}: {error}"
            )
            raise MissingExtra(message) from error
        except gymnasium.error.Error as error:
            condition = "be registered with Gymnasium ('module:id' imports the module that does it)"
            raise ArgumentError("Gym", "id", self._id, condition, remedy=str(error)) from error
        has_entry_point = registration.entry_point is not None
        condition = "be registered with an entry_point, not as a vector environment only"
        require("Gym", "id", self._id, has_entry_point, condition)
        return registration

    def _check_picklable(self) -> None:
        """Raise unless the environment can be made in worker processes."""
        error = packing_error(self._make_env) or registration_error(self._registration)
        condition = "name an environment that can be pickled, to be used in worker processes"
        remedy = f"define it in a module, and name both as env.id=module:id ({error})"
        require(self.label, "id", self._id, error is None, condition, remedy=remedy)

    def _read(self, success: str | None) -> EnvSpaces:
        try:
            return super()._read(success)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            missing = missing_extra(error, self.label)
            if missing is not None:
                raise missing from error
            raise MissingExtra(f"{self.label}: its packages must be installed: {error}") from error
        except (TypeError, gymnasium.error.Error) as error:
            condition = "be arguments that the environment accepts"
            raise ArgumentError(
                self.label, "settings", self._settings, condition, remedy=str(error)
            ) from error
