"""A TorchRL environment over Gymnasium environments.

Entries written besides those of `yamame_envs.context`:

===========  ================  ==================================================================================
``aborted``  ``[N, 1]`` bool   the episode ended because its environment failed; nothing can be learnt from the end
===========  ================  ==================================================================================
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary
from yamame.checks import require
from yamame.spaces import Spaces

from yamame_envs.adapters.episodes import History, TaskSeeds
from yamame_envs.adapters.failures import FailureCount
from yamame_envs.adapters.in_process import EnvSpaces, Failure, InProcessEnvs, Make, Outcome
from yamame_envs.adapters.reading import check_picklable, read_spaces
from yamame_envs.adapters.resume import play_again
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.specs import action_spec, observation_specs
from yamame_envs.adapters.task import reset_seeds
from yamame_envs.adapters.timestep import Timestep
from yamame_envs.adapters.workers import Pool, Workers
from yamame_envs.context import ContextEnv


class HostedEnv(ContextEnv):
    """Plays a batch of N Gymnasium environments, in this process or in worker processes.

    An episode begins with ``reset(seed=task_seed mod 2^31)``: its seed decides everything about it.
    What is observed and done is described in `yamame_envs.adapters.spaces` and
    `yamame_envs.adapters.actions`; entries of a ``Dict`` observation are entries of the root. One
    of them may be ``trial_start`` (``MultiBinary(1)``), where an episode has several attempts at
    its task.

    The time limit is a finite, visible horizon (``time``): an episode that reaches it is
    terminated. Where there is none, or before it is reached, the environment's own truncation is
    passed on.

    An environment that fails (an exception, an observation or reward that is not finite or not of
    its space, an action out of bounds, a worker process that dies or does not answer) is an error
    or, as ``workers`` say, the end of the env's episode: it shows the last observation again,
    reward 0, ``truncated`` and ``aborted``. The env's next episode has the next task seed and an
    environment that is made anew.

    `state_dict` holds the task seeds and the actions of all running episodes: `load_state_dict`
    plays them again.

    Args:
        make: Makes the environment of one env; with worker processes it must be picklable.
        num_envs: N, at least 1.
        time_limit: Steps after which an episode is over, at least 1; None: only the environment
            ends it.
        success: Where the info of a step tells of success, which is then shown; None: nowhere;
            ``auto``: under ``success`` or ``is_success``, if one of them is there after a first
            step.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.
        workers: Where envs are played, and what becomes of their failures.

    Raises:
        ValueError: If a value is out of its range, or a space cannot be turned into tensors.
    """

    _generic = False
    """Whether spaces are read without a meaning in their names and whole numbers
    (`read_observation`).
    """
    _counts_attempts = False
    """Whether seeds name the attempt at a task as well (`yamame_envs.adapters.task`)."""
    _novelty: str | None = None
    """What is new on the other side of a split, if there is one."""

    def __init__(
        self,
        make: Make,
        *,
        num_envs: int,
        time_limit: int | None = None,
        success: str | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
    ) -> None:
        self._workers, self._make_env = workers, make
        self._spaces = self._read(success)
        self._current = Timestep(self._spaces, time_limit)
        self._failures = FailureCount(workers)
        self._aborting: dict[int, Failure] = {}  # envs that are aborted at their next step
        self._player: InProcessEnvs | Pool | None = None
        observations = observation_specs(self._spaces.observations, device)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=action_spec(self._spaces.action),
            observations={**observations, "aborted": Binary(n=1, dtype=torch.bool, device=device)},
            tells_success=self._spaces.success_key is not None,
            seed=seed,
            device=device,
        )
        self._history = History(num_envs)
        self._attempts = np.zeros(num_envs, np.int64)  # at the task that is played, before this one
        self._tasks = np.zeros(num_envs, np.int64)

    @property
    def spaces(self) -> Spaces:
        """Description of the Gymnasium spaces: how their values become observations and actions of
        this environment.
        """
        return self._spaces

    @property
    def novelty(self) -> str | None:
        """See `ContextEnv.novelty`."""
        return self._novelty

    def task_hashes(self) -> Tensor | None:
        """See `ContextEnv.task_hashes`; an environment tells its task by a method
        ``played_task_hash()``.
        """
        hashes = self._play().task_hashes()
        self._report(dict(self._play().interrupted), "while its task was asked for")
        self._abort_interrupted()
        known = [task for task in hashes if task is not None]
        return torch.tensor(known) if len(known) == len(hashes) else None

    @property
    def num_aborted(self) -> int:
        """Episodes that ended because their environment failed."""
        return self._failures.aborted

    def _read(self, success: str | None) -> EnvSpaces:
        if self._workers.num_processes > 0:
            check_picklable(self._make_env, owner=self.label)
        return read_spaces(self._make_env, owner=self.label, generic=self._generic, success=success)

    def _play(self) -> InProcessEnvs | Pool:
        if self._player is None:
            what = self._make_env, self.batch_size[0], self._spaces
            in_process = self._workers.num_processes == 0
            self._player = InProcessEnvs(*what) if in_process else Pool(*what, self._workers)
        return self._player

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What was interrupted half-way cannot be gone on from: all envs must be reset."""
        try:
            yield
        except BaseException:
            self._current.forget()
            self._aborting.clear()
            raise

    @property
    def _present(self) -> Mapping[str, Any]:
        return self._current.tensors

    def _restart(self, streams: Tensor) -> None:
        self._seeds = TaskSeeds(streams)

    def _begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        attempts = self._attempts + self._counts_attempts
        self._begin_episodes(begins, self._wrap({"task_seed": task_seed}), attempts=attempts)

    def _begin_episodes(
        self, begins: Tensor, tensordict: TensorDictBase | None, *, attempts: Array | None = None
    ) -> None:
        chosen, numbers = self._chosen_tasks(tensordict), begins.nonzero().squeeze(-1).tolist()
        self._attempts[numbers] = 0 if attempts is None else attempts[numbers]
        for env_id in numbers:
            self._aborting.pop(env_id, None)
        with self._whole():
            outcome = self._start(numbers, None if chosen is None else chosen[begins].tolist())
        self._history.begin(numbers)
        steps, never = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.bool_)
        action = np.zeros((len(numbers), self._encoding.encoded_size), np.float32)
        arrays = self._current.build(outcome, action, steps, never, starts=True)
        self._current.replace(arrays, numbers, self.device)

    def _start(self, env_ids: list[int], chosen: list[int] | None) -> Outcome:
        """Begins episodes; where that fails, the env's next ones, but chosen tasks once more."""
        player, waiting = self._play(), env_ids
        whole: Outcome | None = None
        while True:
            seeds = (
                self._seeds.take(waiting)
                if chosen is None
                else [chosen[env_ids.index(r)] for r in waiting]
            )
            self._tasks[waiting] = seeds
            begun = player.reset(waiting, reset_seeds(seeds, self._attempts[waiting]))
            if whole is None:
                whole = begun
            else:
                positions = [env_ids.index(env_id) for env_id in waiting]
                for array, part in zip(whole.leaves, begun.leaves, strict=True):
                    array[positions] = part
            self._abort_interrupted()
            if not begun.failures:
                return whole
            failed = {waiting[position]: failure for position, failure in begun.failures.items()}
            self._report(failed, "at the start")
            waiting = sorted(failed)

    def _abort_interrupted(self) -> None:
        """Episodes lost with a worker process that failed over other envs end at their next
        step.
        """
        self._aborting |= self._play().interrupted
        self._play().interrupted.clear()

    def _report(self, failures: Mapping[int, Failure], when: str | None = None) -> None:
        def place(env_id: int) -> str:
            moment = when or f"at step {self._current.column('step_index')[env_id]}"
            return f"in env {env_id} {moment} of task {self._tasks[env_id]}"

        self._failures.add(self.label, failures, place)

    def _advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        converter, current = self._spaces.action, self._current
        batch = action.detach().cpu().numpy().astype(converter.dtype)
        over, wrong = current.column("done"), converter.wrong(batch)
        refused = bool(wrong.any())
        if refused:
            self._refuse(batch, wrong & ~over)
            batch[wrong] = converter.least
        with self._whole():
            outcome, aborted = self._step_envs(batch, over, wrong)
        self._history.add(batch)
        encoded = self._encoding.encode(torch.from_numpy(batch)).numpy()
        if refused:
            encoded[wrong] = 0.0
        self._failures.aborted += int(aborted.sum())
        steps = current.column("step_index") + ~over
        if self._time_limit is not None:
            reached = (steps >= self._time_limit) & ~(over | aborted)
            outcome.terminated |= reached
            outcome.truncated &= ~reached
        aborted |= over & current.column("aborted")
        current.replace(
            current.build(outcome, encoded, steps, aborted, starts=False),
            range(len(over)),
            self.device,
        )
        return current.tensors, current.tensors["prev_reward"].clone()

    def _refuse(self, batch: Array, wrong: Array) -> None:
        """Actions out of bounds are an error of who acts, or counted as a failure."""
        env_ids = wrong.nonzero()[0].tolist()
        if env_ids and self._failures.raises:
            steps = torch.from_numpy(self._current.arrays["step_index"])
            self._check_action(torch.from_numpy(batch).to(self.device), steps)
        self._report(
            {
                env_id: Failure(f"action {batch[env_id].tolist()} is out of bounds")
                for env_id in env_ids
            }
        )

    def _step_envs(self, batch: Array, over: Array, wrong: Array) -> tuple[Outcome, Array]:
        """Steps the envs that can be stepped.

        The others stay where they are; those of them that are not over are aborted: ``[N]`` bool.
        """
        player, count = self._play(), len(batch)
        still = over | wrong
        still[list(self._aborting)] = True
        if not still.any():
            outcome, went = player.step(range(count), batch), list(range(count))
        else:
            went = (~still).nonzero()[0].tolist()
            outcome = player.step(went, batch[went])
        player.interrupted.clear()  # envs that were not asked are over or aborted
        self._aborting.clear()
        if len(went) == count and not outcome.failures:
            return outcome, np.zeros(count, np.bool_)
        self._report({went[position]: failure for position, failure in outcome.failures.items()})
        positions = [position for position in range(len(went)) if position not in outcome.failures]
        return self._merged(outcome, positions, [went[position] for position in positions], over)

    def _merged(
        self, outcome: Outcome, positions: list[int], env_ids: list[int], over: Array
    ) -> tuple[Outcome, Array]:
        """Where all envs are when only some of them, at these positions of an outcome, have gone
        on.
        """
        current = self._current
        aborted = ~over
        aborted[env_ids] = False
        whole = Outcome(
            leaves=[current.arrays[key].copy() for key in current.keys],
            reward=np.zeros(len(over), np.float32),
            terminated=over & current.column("terminated"),
            truncated=(over & current.column("truncated")) | aborted,
            success=over & current.column("success"),
            failures={},
        )
        for array, part in zip(whole.leaves, outcome.leaves, strict=True):
            array[env_ids] = part[positions]
        for name in ("reward", "terminated", "truncated", "success"):
            getattr(whole, name)[env_ids] = getattr(outcome, name)[positions]
        return whole, aborted

    def render(self, env_id: int = 0) -> Array:
        """Draws one env: ``[H, W, 3]`` uint8 RGB.

        Raises:
            NotImplementedError: If its environment cannot be drawn.
        """
        here = bool(self._present) and 0 <= env_id < self.batch_size[0]
        require(self.label, "env_id", env_id, here, "be an env that was reset")
        picture = self._play().render(env_id)
        self._report(dict(self._play().interrupted), "while it was drawn")
        self._abort_interrupted()
        if isinstance(picture, Failure):
            reason = f"{self.label}: env {env_id} cannot be drawn: {picture.summary}"
            raise NotImplementedError(reason) from picture.error()
        return picture

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on in the middle of episodes, in an environment of the same
        settings.
        """
        state: dict[str, Any] = {
            "streams": self._seeds.streams.clone(),
            "episodes": torch.from_numpy(self._seeds.episodes.copy()),
            "num_failures": self._failures.count,
            "num_aborted": self._failures.aborted,
        }
        if self._present:
            lengths = self._episode_lengths()
            actions = self._history.of(lengths, self._spaces.action.nothing(len(lengths)))
            state["task_seed"] = torch.from_numpy(self._tasks.copy())
            state["actions"] = torch.from_numpy(actions)
            state["attempts"] = torch.from_numpy(self._attempts.copy())
            state["aborting"] = sorted(self._aborting)
            state["timestep"] = self._current.save()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken: plays the running episodes again.

        The timestep to go on from is `present`. Envs that come out differently are aborted at their
        next step.

        Raises:
            ValueError: If the state is of another number of envs.
        """
        num_envs, own = len(state_dict["streams"]), self.batch_size[0]
        require(self.label, "state_dict", f"{num_envs} envs", num_envs == own, f"hold {own} envs")
        self._current.forget()
        self._aborting = {}
        self._seeds = TaskSeeds(state_dict["streams"], state_dict["episodes"])
        self._failures.count = int(state_dict["num_failures"])
        self._failures.aborted = int(state_dict["num_aborted"])
        if "timestep" not in state_dict:
            return
        self._current.load(state_dict["timestep"], self.device)
        self._tasks = state_dict["task_seed"].cpu().numpy().copy()
        self._attempts = state_dict["attempts"].cpu().numpy().copy()
        actions = state_dict["actions"].cpu().numpy()
        self._history.restore(actions, self._episode_lengths())
        ended = {*self._current.column("done").nonzero()[0].tolist(), *state_dict["aborting"]}
        running = [env_id for env_id in range(num_envs) if env_id not in ended]
        seeds = reset_seeds(self._tasks[running].tolist(), self._attempts[running])
        with self._whole():
            self._aborting = play_again(self._play(), running, seeds, actions, self._current)
        self._aborting |= {
            env_id: Failure("its episode was lost before") for env_id in state_dict["aborting"]
        }

    def _episode_lengths(self) -> Array:
        """Steps of the running episode of each env ``[N]``; none where it is over."""
        return np.where(self._current.column("done"), 0, self._current.column("step_index"))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes all environments and ends the worker processes."""
        super().close(raise_if_closed=raise_if_closed)
        if self._player is not None:
            self._player.close()
            self._player = None
        self._current.forget()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HostedEnv":
        super()._apply(fn, recurse)
        self._current.show(self.device)
        return self
