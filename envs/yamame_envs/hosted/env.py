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

from yamame_envs.context import ContextEnv
from yamame_envs.hosted.episodes import History, TaskSeeds
from yamame_envs.hosted.failures import Failures
from yamame_envs.hosted.reading import check_picklable, read_layout
from yamame_envs.hosted.replay import replay
from yamame_envs.hosted.rows import Fault, Layout, Make, Outcome, Rows
from yamame_envs.hosted.spaces import Array
from yamame_envs.hosted.specs import batched_actions, observation_specs
from yamame_envs.hosted.timestep import Timestep
from yamame_envs.hosted.workers import Pool, Workers

_SEEDS = 2**31 - 1  # Gymnasium environments take non-negative seeds, some of them of 32 bits only


class HostedEnv(ContextEnv):
    """Plays N Gymnasium environments, one per row, in this process or in worker processes.

    An episode begins with ``reset(seed=task_seed mod 2^31)``: its seed decides everything about it. What is
    observed and done is told in `yamame_envs.hosted.spaces` and `yamame_envs.hosted.actions`; entries of a
    ``Dict`` observation are entries of the root. One of them may be ``trial_start`` (``MultiBinary(1)``), where
    an episode has several attempts at its task.

    The time limit is a finite, visible horizon (``time``): an episode that reaches it is terminated. Where there
    is none, or before it is reached, the environment's own truncation is passed on.

    An environment that fails (an exception, an observation or reward that is not finite or not of its space, an
    action out of bounds, a worker process that dies or does not answer) is an error or, as ``workers`` say, the
    end of the row's episode: it shows the last observation again, reward 0, ``truncated`` and ``aborted``. The
    row's next episode has the next task seed and an environment that is made anew.

    `state_dict` holds the task seeds and the actions of all running episodes: `load_state_dict` plays them
    again. A row that then does not come out the same is aborted at its next step.

    Args:
        make: Makes the environment of one row; with worker processes it must be picklable.
        num_envs: Rows, at least 1.
        time_limit: Steps after which an episode is over, at least 1; None: only the environment ends it.
        tells_success: Whether ``success`` is shown: the ``success`` of the environment's info.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.
        workers: Where rows are played, and what becomes of their failures.

    Raises:
        ValueError: If a value is out of its range, or a space cannot be turned into tensors.
    """

    _generic = False
    """Whether spaces are read without a meaning in their names and whole numbers (`read_observation`)."""

    def __init__(
        self,
        make: Make,
        *,
        num_envs: int,
        time_limit: int | None = None,
        tells_success: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
    ) -> None:
        self._workers, self._make_row = workers, make
        self._layout = self._read(tells_success)
        reader = batched_actions(self._layout.actions)  # on the CPU, where actions are taken apart
        self._encode, self._check = reader.encode, reader.check
        self._now = Timestep(self._layout, time_limit)
        self._failures = Failures(workers)
        self._doomed: dict[int, Fault] = {}  # rows that are aborted at their next step
        self._player: Rows | Pool | None = None
        observations = observation_specs(self._layout.leaves, device)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            actions=batched_actions(self._layout.actions),
            observations={**observations, "aborted": Binary(n=1, dtype=torch.bool, device=device)},
            tells_success=tells_success,
            seed=seed,
            device=device,
        )
        self._history = History(num_envs)
        self._tasks = np.zeros(num_envs, np.int64)

    @property
    def label(self) -> str:
        """What errors call this environment."""
        return type(self).__name__

    @property
    def num_aborted(self) -> int:
        """Episodes that ended because their environment failed."""
        return self._failures.aborted

    def _read(self, tells_success: bool) -> Layout:
        if self._workers.num_processes > 0:
            check_picklable(self._make_row, owner=self.label)
        return read_layout(
            self._make_row, owner=self.label, generic=self._generic, tells_success=tells_success
        )

    def _play(self) -> Rows | Pool:
        if self._player is None:
            rows, workers = self.batch_size[0], self._workers
            if workers.num_processes == 0:
                self._player = Rows(self._make_row, rows, self._layout)
            else:
                self._player = Pool(self._make_row, rows, self._layout, workers)
        return self._player

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What was interrupted half-way cannot be gone on from: all rows must be reset."""
        try:
            yield
        except BaseException:
            self._now.forget()
            self._doomed.clear()
            raise

    @property
    def _present(self) -> Mapping[str, Any]:
        return self._now.shown

    def _restart(self, streams: Tensor) -> None:
        self._seeds = TaskSeeds(streams)

    def _begin_episodes(self, rows: Tensor, tensordict: TensorDictBase | None) -> None:
        chosen = self._chosen_tasks(rows, tensordict)
        numbers = rows.tolist()
        for row in numbers:
            self._doomed.pop(row, None)
        with self._whole():
            outcome = self._start(numbers, None if chosen is None else chosen.tolist())
        self._history.begin(numbers)
        steps, never = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.bool_)
        action = np.zeros((len(numbers), self._actions.encoded_size), np.float32)
        arrays = self._now.build(outcome, action, steps, never, starts=True)
        self._now.replace(arrays, numbers, self.device)

    def _start(self, rows: list[int], chosen: list[int] | None) -> Outcome:
        """Begins episodes; where that fails, the row's next ones, but chosen tasks once more."""
        player, waiting = self._play(), rows
        whole: Outcome | None = None
        while True:
            seeds = self._seeds.take(waiting) if chosen is None else [chosen[rows.index(r)] for r in waiting]
            self._tasks[waiting] = seeds
            begun = player.reset(waiting, [seed & _SEEDS for seed in seeds])
            if whole is None:
                whole = begun
            else:
                positions = [rows.index(row) for row in waiting]
                for array, part in zip(whole.leaves, begun.leaves, strict=True):
                    array[positions] = part
            self._doom_lost()
            if not begun.faults:
                return whole
            failed = {waiting[position]: fault for position, fault in begun.faults.items()}
            self._report(failed, "at the start")
            waiting = sorted(failed)

    def _doom_lost(self) -> None:
        """Episodes lost with a worker process that failed over other rows end at their next step."""
        lost = self._play().lost
        if lost:
            self._doomed |= lost
            lost.clear()

    def _report(self, faults: Mapping[int, Fault], when: str | None = None) -> None:
        def place(row: int) -> str:
            moment = when or f"at step {self._now.column('step_index')[row]}"
            return f"in row {row} {moment} of task {self._tasks[row]}"

        self._failures.add(self.label, faults, place)

    def _advance(self, action: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        layout, now = self._layout.actions, self._now
        batch = action.detach().cpu().numpy().astype(layout.dtype)
        over, wrong = now.column("done"), layout.wrong(batch)
        refused = bool(wrong.any())
        if refused:
            self._refuse(batch, wrong & ~over)
            batch[wrong] = layout.least
        with self._whole():
            outcome, aborted = self._step_rows(batch, over, wrong)
        self._history.add(batch)
        encoded = self._encode(torch.from_numpy(batch)).numpy()
        if refused:
            encoded[wrong] = 0.0
        self._failures.aborted += int(aborted.sum())
        steps = now.column("step_index") + ~over
        if self._time_limit is not None:
            reached = (steps >= self._time_limit) & ~(over | aborted)
            outcome.terminated |= reached
            outcome.truncated &= ~reached
        aborted |= over & now.column("aborted")
        now.replace(now.build(outcome, encoded, steps, aborted, starts=False), range(len(over)), self.device)
        return now.shown, now.shown["prev_reward"].clone()

    def _refuse(self, batch: Array, wrong: Array) -> None:
        """Actions out of bounds are an error of who acts, or counted as a failure."""
        rows = wrong.nonzero()[0].tolist()
        if rows and self._failures.raises:
            steps = torch.from_numpy(self._now.arrays["step_index"])
            self._check(self.label, torch.from_numpy(batch), steps)
        self._report({row: Fault(f"action {batch[row].tolist()} is out of bounds") for row in rows})

    def _step_rows(self, batch: Array, over: Array, wrong: Array) -> tuple[Outcome, Array]:
        """Steps the rows that can be stepped.

        The others stay where they are; those of them that are not over are aborted: ``[N]`` bool.
        """
        player, count = self._play(), len(batch)
        still = over | wrong
        still[list(self._doomed)] = True
        if not still.any():
            outcome, went = player.step(range(count), batch), list(range(count))
        else:
            went = (~still).nonzero()[0].tolist()
            outcome = player.step(went, batch[went])
        player.lost.clear()  # rows that were not asked are over or aborted
        self._doomed.clear()
        if len(went) == count and not outcome.faults:
            return outcome, np.zeros(count, np.bool_)
        self._report({went[position]: fault for position, fault in outcome.faults.items()})
        positions = [position for position in range(len(went)) if position not in outcome.faults]
        return self._merged(outcome, positions, [went[position] for position in positions], over)

    def _merged(
        self, outcome: Outcome, positions: list[int], rows: list[int], over: Array
    ) -> tuple[Outcome, Array]:
        """Where all rows are when only some of them, at these positions of an outcome, have gone on."""
        now = self._now
        aborted = ~over
        aborted[rows] = False
        whole = Outcome(
            leaves=[now.arrays[key].copy() for key in now.keys],
            reward=np.zeros(len(over), np.float32),
            terminated=over & now.column("terminated"),
            truncated=(over & now.column("truncated")) | aborted,
            success=over & now.column("success"),
            faults={},
        )
        for array, part in zip(whole.leaves, outcome.leaves, strict=True):
            array[rows] = part[positions]
        for name in ("reward", "terminated", "truncated", "success"):
            getattr(whole, name)[rows] = getattr(outcome, name)[positions]
        return whole, aborted

    def render(self, row: int = 0) -> Array:
        """Draws one row: ``[H, W, 3]`` uint8 RGB.

        Raises:
            NotImplementedError: If its environment cannot be drawn.
        """
        here = bool(self._present) and 0 <= row < self.batch_size[0]
        self._require("row", row, here, "be a row that was reset")
        picture = self._play().render(row)
        lost = dict(self._play().lost)
        self._doom_lost()
        self._report(lost, "while it was drawn")
        if isinstance(picture, Fault):
            reason = f"{self.label}: row {row} cannot be drawn: {picture.summary}"
            raise NotImplementedError(reason) from picture.error()
        return picture

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on in the middle of episodes, in an environment of the same settings."""
        state: dict[str, Any] = {
            "streams": self._seeds.streams.clone(),
            "episodes": torch.from_numpy(self._seeds.episodes.copy()),
            "num_failures": self._failures.count,
            "num_aborted": self._failures.aborted,
        }
        if self._present:
            over, steps = self._now.column("done"), self._now.column("step_index")
            actions = self._history.of(np.where(over, 0, steps), self._layout.actions.nothing(len(over)))
            state["task_seed"] = torch.from_numpy(self._tasks.copy())
            state["actions"] = torch.from_numpy(actions)
            state["doomed"] = sorted(self._doomed)
            state["shown"] = self._now.save()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken: plays the running episodes again.

        The timestep to go on from is `present`. Rows that come out differently are aborted at their next step.

        Raises:
            ValueError: If the state is of another number of rows.
        """
        rows, own = len(state_dict["streams"]), self.batch_size[0]
        self._require("state_dict", f"{rows} rows", rows == own, f"hold {own} rows")
        self._now.forget()
        self._doomed = {}
        self._seeds = TaskSeeds(state_dict["streams"], state_dict["episodes"])
        self._failures.count = int(state_dict["num_failures"])
        self._failures.aborted = int(state_dict["num_aborted"])
        if "shown" not in state_dict:
            return
        self._now.load(state_dict["shown"], self.device)
        self._tasks = state_dict["task_seed"].cpu().numpy().copy()
        actions = state_dict["actions"].cpu().numpy()
        self._history.restore(actions)
        ended = {*self._now.column("done").nonzero()[0].tolist(), *state_dict["doomed"]}
        running = [row for row in range(rows) if row not in ended]
        seeds = [int(self._tasks[row]) & _SEEDS for row in running]
        with self._whole():
            self._doomed = replay(self._play(), running, seeds, actions, self._now)
        self._doomed |= {row: Fault("its episode was lost before") for row in state_dict["doomed"]}

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes all environments and ends the worker processes."""
        super().close(raise_if_closed=raise_if_closed)
        if self._player is not None:
            self._player.close()
            self._player = None
        self._now.forget()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HostedEnv":
        super()._apply(fn, recurse)
        self._now.show(self.device)
        return self
