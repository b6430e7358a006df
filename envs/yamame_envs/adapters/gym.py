"""Any environment that is registered with Gymnasium."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import gymnasium
import torch
from torch import Tensor
from yamame.checks import require, require_choice
from yamame.system.messages import print_stderr

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.extras import MissingExtra
from yamame_envs.adapters.in_process import EnvSpaces, Outcome
from yamame_envs.adapters.registered import find, make_registered
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.task import DrawTask, make_with_tasks
from yamame_envs.adapters.workers import Workers
from yamame_envs.split import HELD_OUT, Split

_MANY_EPISODES = 10  # after which it is told that none had success in its info


class Gym(HostedEnv):
    """Environments of one Gymnasium id.

    What is observed stands below ``observation``: a tensor, or for ``Dict`` and ``Tuple`` spaces
    one per entry.

    Args:
        id: A registered id, such as ``"CartPole-v1"``; ``"module:id"`` imports a module first,
            which registers it.
        settings: Keyword arguments of ``gymnasium.make``.
        time_limit: Steps after which an episode is terminated, which the agent can see coming
            (``time``). ``"registered"``: the limit that the id was registered with, if it was.
            None: that limit is not shown and truncates episodes.
        success: Where the info of a step tells that the whole task is done; None: nowhere;
            ``auto``: under ``success`` or ``is_success``, if one of them is there after a first
            step. An episode has success if any step had.
        tasks: What draws the task of an episode by its task seed, so that another trial of the same
            task has another noise (`yamame_envs.adapters.task.TaskEnv`): a function
            ``(seed) -> task``, or ``own`` for the environment's ``sample_task``. None: the task
            seed decides everything, and trials repeat the noise.
        split: Which of these tasks episodes play: ``all``; ``train``, all but a share that is held
            out; ``test``, that share (`yamame_envs.split`). All but ``all`` need the environment's
            ``task_hash(task)``.
        num_envs: N, at least 1.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.
        workers: Where envs are played, and what becomes of their failures.

    Raises:
        ValueError: If there is no such environment, if it cannot be made with these settings or
            needs a package that is not installed, or if its spaces cannot be turned into tensors.

    >>> env = Gym(id="CartPole-v1", num_envs=2)
    >>> env.rollout(3)["observation"].shape
    torch.Size([2, 3, 4])
    """

    _generic = True

    def __init__(
        self,
        *,
        id: str = "CartPole-v1",
        settings: Mapping[str, Any] = MappingProxyType({}),
        time_limit: int | Literal["registered"] | None = "registered",
        success: str | None = "auto",
        tasks: DrawTask | Literal["own"] | None = None,
        split: Split = "all",
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
    ) -> None:
        self._id = id
        require_choice(self.label, "split", split, get_args(Split))
        apart = split == "all" or tasks is not None
        require(self.label, "split", split, apart, "be 'all' where tasks is None")
        self._settings, self._draw_task, self._split = dict(settings), tasks, split
        self._novelty = None if split == "all" else "new tasks"
        self._looks_for_success, self._num_ended = True, 0
        self._counts_attempts = tasks is not None
        limit = self._registered_limit() if time_limit == "registered" else time_limit
        super().__init__(
            self._maker(limited=time_limit is None),
            num_envs=num_envs,
            time_limit=limit,
            success=success,
            seed=seed,
            device=device,
            workers=workers,
        )

    @property
    def label(self) -> str:
        """What errors call this environment."""
        return f"Gym({self._id!r})"

    def _maker(self, *, limited: bool) -> "partial[Any]":
        """What makes the environment of one env; ``limited``: Gymnasium truncates episodes at the
        registered limit.
        """
        make = partial(make_registered, self._id, self._settings, limited=limited)
        if self._draw_task is None:
            return make
        draw = None if self._draw_task == "own" else self._draw_task
        apart = {"draw": draw, "split": self._split, "held_out": HELD_OUT, "owner": self.label}
        return partial(make_with_tasks, make, **apart)

    def _step_envs(self, batch: Array, over: Array, wrong: Array) -> tuple[Outcome, Array]:
        outcome, aborted = super()._step_envs(batch, over, wrong)
        self._looks_for_success &= not outcome.tells_success
        return outcome, aborted

    def _advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        over = self._current.column("done")
        advanced = super()._advance(action)
        key = self._spaces.success_key
        if key is not None and self._looks_for_success:
            self._num_ended += int((self._current.column("done") & ~over).sum())
            if self._num_ended >= _MANY_EPISODES:
                self._looks_for_success = False
                reason = f"no info of {self._num_ended} episodes has had {key!r}, and success counts as false"
                print_stderr(f"{self.label}: success={key}: {reason}")
        return advanced

    def _registered_limit(self) -> int | None:
        try:
            limit: int | None = find(self._id).max_episode_steps
        except ImportError as error:
            raise MissingExtra(
                f"Gym: id must be of a package that is installed or in this directory, got {self._id!r}: {error}"
            ) from error
        except gymnasium.error.Error as error:
            raise ValueError(
                "Gym: id must be registered with Gymnasium ('module:id' imports the module that does it), got "
                f"{self._id!r}: {error}"
            ) from error
        return limit

    def _read(self, success: str | None) -> EnvSpaces:
        try:
            return super()._read(success)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise MissingExtra(f"{self.label}: its packages must be installed: {error}") from error
        except (TypeError, gymnasium.error.Error) as error:
            raise ValueError(
                f"{self.label}: settings must suit it, got {self._settings}: {error}"
            ) from error
