"""TorchRL environment that plays Gymnasium environments.

Entries written besides those of `yamame_envs.context`:

* ``aborted`` ``[N, 1]`` bool: the episode ended because its environment failed. Nothing can be
  learnt from such an end.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary
from yamame.checks import PositiveInt, check_bounds, require, require_choice
from yamame.spaces import Spaces
from yamame.spaces.arrays import Outside
from yamame.system.messages import print_once

from yamame_envs.adapters.episodes import History, TaskSeeds
from yamame_envs.adapters.failures import FailureCount
from yamame_envs.adapters.in_process import EnvSpaces, Failure, InProcessEnvs, Make, Outcome
from yamame_envs.adapters.reading import read_spaces
from yamame_envs.adapters.resume import replay_episodes
from yamame_envs.adapters.shipping import packing_error
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.specs import action_spec, observation_specs
from yamame_envs.adapters.task import reset_seeds
from yamame_envs.adapters.timestep import Timestep
from yamame_envs.adapters.workers import Pool, Workers
from yamame_envs.context import ContextEnv


class HostedEnv(ContextEnv):
    """Batch of N Gymnasium environments, played in this process or in worker processes.

    An episode begins with ``reset(seed=task_seed mod 2^31)``, and this seed decides everything
    about it. `yamame_envs.adapters.spaces` and `yamame_envs.adapters.actions` describe observations
    and actions. Entries of a ``Dict`` observation are entries of the root. One of them may be
    ``trial_start`` (``MultiBinary(1)``), where an episode has several attempts at its task.

    The time limit is a finite, visible horizon (``time``): an episode that reaches it is
    terminated. Without a limit, or before it is reached, the environment's own truncation is passed
    on.

    An environment fails if it raises, if an observation or reward is not finite or not in its
    space, if a flag is neither true nor false, if an action is out of bounds, or if its worker
    process dies or does not answer. A failure is an error or, with ``on_error="continue"``, the end
    of the env's episode: the last observation is repeated with reward 0, ``truncated`` and
    ``aborted``. The next episode of the env has the next task seed and a new environment.

    `state_dict` holds the task seeds and the actions of all running episodes, which
    `load_state_dict` replays.

    Args:
        make: Makes the environment of one env. With worker processes it must be picklable.
        num_envs: Number of envs N.
        time_limit: Steps after which an episode is over. None: only the environment ends it.
        success: Key of success in the info of a step, which is then shown. None: there is none.
            ``auto``: ``success`` or ``is_success``, if one of them is in the info of a first step.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.
        bounds: Handling of observed numbers that are finite, but out of the bounds of their
            ``Box`` by more than rounding (1e-5 of the bound, of 1 for smaller bounds): ``warn``
            keeps them and prints a line about the first one of each entry; ``clip`` makes them the
            bounds; ``raise``: they are failures. In files of data, ``clip`` makes actions
            out of bounds the bounds as well, and the others refuse them.

    Raises:
        ArgumentError: A value is out of its range, or a space cannot be converted to tensors.
    """

    _generic = False
    """True for spaces that were not made for this package, see `read_observation`."""
    _checks_repeats = False
    """True if episodes may depend on more than their seeds, which is then checked once."""
    _counts_attempts = False
    """True if seeds include the attempt at a task, see `yamame_envs.adapters.task`."""
    _novelty: str | None = None
    """Description of what is new on the other side of a split, if there is one."""

    @check_bounds
    def __init__(
        self,
        make: Make,
        *,
        num_envs: PositiveInt,
        time_limit: PositiveInt | None = None,
        success: str | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
        bounds: Outside = "warn",
    ) -> None:
        require_choice(self.label, "bounds", bounds, get_args(Outside))
        self._workers = workers
        self._make_env = make
        self._bounds: Outside = bounds
        # Entries with a value outside of its bounds, which are reported once.
        self._remarked: set[int] = set()
        self._spaces = self._read(success)
        self._current = Timestep(self._spaces, time_limit)
        self._failures = FailureCount(workers)
        # Envs whose episode ends at their next step.
        self._aborting: dict[int, Failure] = {}
        # Made at the first reset: processes are not started for an env that is never played.
        self._player: InProcessEnvs | Pool | None = None
        observations = observation_specs(self._spaces.observations, device)
        observations["aborted"] = Binary(n=1, dtype=torch.bool, device=device)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=action_spec(self._spaces.action),
            observations=observations,
            tells_success=self._spaces.success_key is not None,
            seed=seed,
            device=device,
        )
        self._history = History(num_envs)
        # Earlier attempts at the current task of each env.
        self._attempts = np.zeros(num_envs, np.int64)
        self._tasks = np.zeros(num_envs, np.int64)

    @property
    def spaces(self) -> Spaces:
        """Description of the Gymnasium spaces, which converts their values to entries and back."""
        return self._spaces

    @property
    def novelty(self) -> str | None:
        """See `ContextEnv.novelty`."""
        return self._novelty

    def task_hashes(self) -> Tensor | None:
        """Return the hashes of the current tasks, see `ContextEnv.task_hashes`.

        Environments report them by a method ``played_task_hash()``.
        """
        player = self._play()
        hashes = player.task_hashes()
        self._report(dict(player.interrupted), "while its task was asked for")
        self._abort_interrupted()
        known = [task_hash for task_hash in hashes if task_hash is not None]
        return torch.tensor(known) if len(known) == len(hashes) else None

    @property
    def num_aborted(self) -> int:
        """Number of episodes that ended because their environment failed."""
        return self._failures.aborted

    def _read(self, success: str | None) -> EnvSpaces:
        if self._workers.num_processes > 0:
            self._check_picklable()
        return read_spaces(
            self._make_env,
            owner=self.label,
            generic=self._generic,
            success=success,
            outside=self._bounds,
            # In worker processes an environment may hang or crash without harm, and here not.
            checks_repeats=self._checks_repeats and self._workers.num_processes == 0,
        )

    def _check_picklable(self) -> None:
        """Raise unless the environment can be made in worker processes."""
        make = self._make_env
        error = packing_error(make)
        condition = "be picklable to be used in worker processes"
        remedy = f"give a function of a module, or a functools.partial of one ({error})"
        require(self.label, "make", make, error is None, condition, remedy=remedy)

    def _play(self) -> InProcessEnvs | Pool:
        if self._player is None:
            num_envs = self.batch_size[0]
            if self._workers.num_processes == 0:
                self._player = InProcessEnvs(self._make_env, num_envs, self._spaces)
            else:
                self._player = Pool(self._make_env, num_envs, self._spaces, self._workers)
        return self._player

    @contextlib.contextmanager
    def _reset_after_errors(self) -> Iterator[None]:
        """Require a reset of all envs after an error in the block, in which some went ahead."""
        try:
            yield
        except BaseException:
            self._current.clear()
            self._aborting.clear()
            raise

    @property
    def current_timestep(self) -> Mapping[str, Any]:
        """See `ContextEnv.current_timestep`."""
        return self._current.tensors

    def restart(self, streams: Tensor) -> None:
        """See `ContextEnv.restart`."""
        self._seeds = TaskSeeds(streams)

    def begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        """See `ContextEnv.begin_again`."""
        request = self._wrap({"task_seed": task_seed})
        attempts = self._attempts + self._counts_attempts
        self.begin_episodes(begins, request, attempts=attempts)

    def begin_episodes(
        self, begins: Tensor, tensordict: TensorDictBase | None, *, attempts: Array | None = None
    ) -> None:
        """See `ContextEnv.begin_episodes`."""
        chosen = self.requested_seeds(tensordict)
        chosen_seeds = None if chosen is None else chosen[begins].tolist()
        env_ids = begins.nonzero().squeeze(-1).tolist()
        self._attempts[env_ids] = 0 if attempts is None else attempts[env_ids]
        for env_id in env_ids:
            self._aborting.pop(env_id, None)
        with self._reset_after_errors():
            outcome = self._start(env_ids, chosen_seeds)
        self._history.begin(env_ids)

        count = len(env_ids)
        steps = np.zeros(count, np.int64)
        aborted = np.zeros(count, np.bool_)
        action = np.zeros((count, self.action_encoding.encoded_size), np.float32)
        arrays = self._current.build(outcome, action, steps, aborted, starts=True)
        self._current.replace(arrays, env_ids, self.device)

    def _start(self, env_ids: list[int], chosen: list[int] | None) -> Outcome:
        """Begin episodes. Where that fails, try the env's next one, or a chosen task again."""
        player = self._play()
        outcome: Outcome | None = None
        waiting = env_ids
        while True:
            positions = [env_ids.index(env_id) for env_id in waiting]
            if chosen is None:
                seeds = self._seeds.take(waiting)
            else:
                seeds = [chosen[position] for position in positions]
            self._tasks[waiting] = seeds
            begun = player.reset(waiting, reset_seeds(seeds, self._attempts[waiting]))
            self._report_outside(begun, waiting, "at the start")
            if outcome is None:
                outcome = begun
            else:
                for leaf, part in zip(outcome.leaves, begun.leaves, strict=True):
                    leaf[positions] = part
            self._abort_interrupted()
            if not begun.failures:
                return outcome
            failed = {waiting[position]: failure for position, failure in begun.failures.items()}
            # Raises when there are too many, so the loop ends.
            self._report(failed, "at the start")
            waiting = sorted(failed)

    def _abort_interrupted(self) -> None:
        """Let episodes end at their next step that were lost with the process of another env."""
        player = self._play()
        self._aborting |= player.interrupted
        player.interrupted.clear()

    def _report(self, failures: Mapping[int, Failure], when: str | None = None) -> None:
        def place(env_id: int) -> str:
            return self._place(env_id, when)

        self._failures.add(self.label, failures, place)

    def _place(self, env_id: int, when: str | None) -> str:
        """Describe where and when something happened, by default at the current step."""
        moment = when or f"at step {self._current.column('step_index')[env_id]}"
        return f"in env {env_id} {moment} of task_seed {self._tasks[env_id]}"

    def _report_outside(
        self, outcome: Outcome, env_ids: Sequence[int], when: str | None = None
    ) -> None:
        """Print the first value of each entry outside of its bounds."""
        for number, (position, text) in outcome.remarks.items():
            # Each worker process finds a first one.
            if number not in self._remarked:
                self._remarked.add(number)
                print_once(
                    f"{self.label}: {self._place(env_ids[position], when)}: {text}; such values "
                    "are kept and not reported again (env.bounds=clip makes them the bounds, "
                    "env.bounds=raise ends the run)",
                    subject=f"{self.label}: bounds of entry {number}",
                )

    def advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """See `ContextEnv.advance`."""
        actions = self._spaces.action
        current = self._current
        self.check_action_size(action)
        batch = action.detach().cpu().numpy().astype(actions.dtype)
        over = current.column("done")
        wrong = actions.wrong(batch)
        is_any_wrong = bool(wrong.any())
        if is_any_wrong:
            # The action of an env whose episode is over has no effect.
            self._refuse_actions(batch, wrong & ~over)
            batch[wrong] = actions.least
        with self._reset_after_errors():
            outcome, aborted = self._step_envs(batch, over, wrong)
        self._failures.aborted += int(aborted.sum())
        self._history.add(batch)

        encoded = self.action_encoding.encode(torch.from_numpy(batch)).numpy()
        if is_any_wrong:
            encoded[wrong] = 0.0
        steps = current.column("step_index") + ~over
        if self.time_limit is not None:
            # The horizon is visible, so reaching it terminates: there is no value beyond it.
            is_late = (steps >= self.time_limit) & ~(over | aborted)
            outcome.terminated |= is_late
            outcome.truncated &= ~is_late
        aborted |= over & current.column("aborted")
        arrays = current.build(outcome, encoded, steps, aborted, starts=False)
        current.replace(arrays, range(len(over)), self.device)
        # The reward is a tensor of its own, because transforms may change it in place.
        return current.tensors, current.tensors["prev_reward"].clone()

    def _refuse_actions(self, batch: Array, wrong: Array) -> None:
        """Raise for actions out of bounds, or count them as failures."""
        env_ids = wrong.nonzero()[0].tolist()
        if env_ids and self._failures.raises:
            steps = torch.from_numpy(self._current.arrays["step_index"])
            self.check_action(torch.from_numpy(batch).to(self.device), steps)
        failures = {}
        for env_id in env_ids:
            failures[env_id] = Failure(f"action {batch[env_id].tolist()} is out of bounds")
        self._report(failures)

    def _step_envs(self, batch: Array, over: Array, wrong: Array) -> tuple[Outcome, Array]:
        """Step the envs that can be stepped; the others keep their observation.

        Args:
            batch: ``[N, ...]``, actions.
            over: ``[N]`` bool, envs whose episode is over.
            wrong: ``[N]`` bool, envs whose action is out of bounds.

        Returns:
            The outcome of all envs, and the envs ``[N]`` bool whose episode is aborted here.
        """
        player = self._play()
        count = len(batch)
        waits = over | wrong
        waits[list(self._aborting)] = True
        if waits.any():
            stepped = (~waits).nonzero()[0].tolist()
            outcome = player.step(stepped, batch[stepped])
        else:
            # The usual case needs no copy of the actions.
            stepped = list(range(count))
            outcome = player.step(stepped, batch)
        self._report_outside(outcome, stepped)
        if outcome.late_key is not None:
            print_once(
                f"{self.label}: infos have {outcome.late_key!r} where episodes end, but not at "
                f"their first step, so no success is shown: set env.success={outcome.late_key}"
            )
        # Interrupted envs were not stepped, so they are over or aborted here.
        player.interrupted.clear()
        self._aborting.clear()
        if len(stepped) == count and not outcome.failures:
            return outcome, np.zeros(count, np.bool_)

        failures = {}
        for position, failure in outcome.failures.items():
            failures[stepped[position]] = failure
        self._report(failures)
        return self._merge(outcome, stepped, over)

    def _merge(self, outcome: Outcome, stepped: list[int], over: Array) -> tuple[Outcome, Array]:
        """Merge the outcome of the stepped envs with the unchanged timestep of all others."""
        positions = [i for i in range(len(stepped)) if i not in outcome.failures]
        env_ids = [stepped[position] for position in positions]
        current = self._current
        aborted = ~over
        aborted[env_ids] = False
        merged = Outcome(
            leaves=[current.arrays[key].copy() for key in current.keys],
            reward=np.zeros(len(over), np.float32),
            terminated=over & current.column("terminated"),
            truncated=(over & current.column("truncated")) | aborted,
            success=over & current.column("success"),
            failures={},
            has_success_key=outcome.has_success_key,
        )
        for leaf, part in zip(merged.leaves, outcome.leaves, strict=True):
            leaf[env_ids] = part[positions]
        merged.reward[env_ids] = outcome.reward[positions]
        merged.terminated[env_ids] = outcome.terminated[positions]
        merged.truncated[env_ids] = outcome.truncated[positions]
        merged.success[env_ids] = outcome.success[positions]
        return merged, aborted

    def render(self, env_id: int = 0) -> Array:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        Raises:
            NotImplementedError: The environment cannot be drawn.
        """
        is_reset = bool(self.current_timestep) and 0 <= env_id < self.batch_size[0]
        require(self.label, "env_id", env_id, is_reset, "be an env that was reset")
        player = self._play()
        picture = player.render(env_id)
        self._report(dict(player.interrupted), "while it was drawn")
        self._abort_interrupted()
        if isinstance(picture, Failure):
            reason = picture.describe(f"{self.label}: env {env_id} cannot be drawn")
            raise NotImplementedError(str(reason)) from picture.error()
        return picture

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that decides how all envs continue, also mid-episode."""
        state: dict[str, Any] = {
            "streams": self._seeds.streams.clone(),
            "episodes": torch.from_numpy(self._seeds.episodes.copy()),
            "num_failures": self._failures.count,
            "num_aborted": self._failures.aborted,
        }
        if self.current_timestep:
            lengths = self._episode_lengths()
            actions = self._history.of(lengths, self._spaces.action.nothing(len(lengths)))
            state["task_seed"] = torch.from_numpy(self._tasks.copy())
            state["actions"] = torch.from_numpy(actions)
            state["attempts"] = torch.from_numpy(self._attempts.copy())
            state["aborting"] = sorted(self._aborting)
            state["timestep"] = self._current.save()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a `state_dict` of an environment with the same settings, by replaying episodes.

        `present` returns the restored timestep. Episodes that come out differently are aborted at
        their next step.

        Raises:
            ArgumentError: The state has another number of envs.
        """
        num_envs = self.batch_size[0]
        saved_envs = len(state_dict["streams"])
        is_same = saved_envs == num_envs
        require(self.label, "state_dict", f"{saved_envs} envs", is_same, f"hold {num_envs} envs")
        self._current.clear()
        self._aborting = {}
        self._seeds = TaskSeeds(state_dict["streams"], state_dict["episodes"])
        self._failures.count = int(state_dict["num_failures"])
        self._failures.aborted = int(state_dict["num_aborted"])
        if "timestep" not in state_dict:
            # It was saved before the first reset.
            return

        self._current.load(state_dict["timestep"], self.device)
        self._tasks = state_dict["task_seed"].cpu().numpy().copy()
        self._attempts = state_dict["attempts"].cpu().numpy().copy()
        actions = state_dict["actions"].cpu().numpy()
        self._history.restore(actions, self._episode_lengths())

        lost = state_dict["aborting"]
        ended = {*self._current.column("done").nonzero()[0].tolist(), *lost}
        running = [env_id for env_id in range(num_envs) if env_id not in ended]
        seeds = reset_seeds(self._tasks[running].tolist(), self._attempts[running])
        with self._reset_after_errors():
            self._aborting = replay_episodes(self._play(), running, seeds, actions, self._current)
        for env_id in lost:
            self._aborting[env_id] = Failure("its episode was lost before")

    def _episode_lengths(self) -> Array:
        """Return the steps of each env's running episode, ``[N]``; 0 where it is over."""
        return np.where(self._current.column("done"), 0, self._current.column("step_index"))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close all environments and end the worker processes."""
        super().close(raise_if_closed=raise_if_closed)
        if self._player is not None:
            self._player.close()
            self._player = None
        self._current.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HostedEnv":
        super()._apply(fn, recurse)
        self._current.make_tensors(self.device)
        return self
