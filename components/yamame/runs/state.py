"""State of a run, for callbacks and for the functions that restore a run and write its results."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torchrl.envs import EnvBase

from yamame import distributed
from yamame.agent import InContextPolicy
from yamame.cli.sections import AnyConfig
from yamame.files.checkpoint import Checkpointer
from yamame.system.budget import Budget
from yamame.system.messages import print_stderr
from yamame.tracking.costs import CostMeter
from yamame.tracking.tracker import Tracker
from yamame.training.guard import NonFiniteGuard
from yamame.training.progress import Progress


class RunState(ABC):
    """State of a run; `yamame.runs.run.Run` adds the steps from its beginning to its end.

    Attributes:
        cfg: Composed configuration of the recipe.
        config: The same as plain data, as it is saved.
        name: Name of the run.
        path: Directory of the run.
        resumed: Whether the run continues from a checkpoint.
        resumed_at: Environment steps and updates at which this session has resumed the run; None
            if it has begun it.
        progress: Counters, saved with every checkpoint.
        budget: Limits that end the run.
        guard: Skips updates with NaN or Inf, and stores the evidence.
        regulator: Factor on the updates per environment step, such as
            `yamame.training.OverfittingRegulator`; None: they are constant.
        curriculum: Chooses the tasks of training (`yamame.curriculum.Curriculum`); None without.
        tracker: Receives parameters, metrics and files.
        checkpoints: Writes and reads checkpoints.
        exits: Closed when the run ends, last in, first out.
        extra: Further plain data for ``summary.json``.
        objective: Score of the last evaluation, once the run has finished.
        policy: Policy that is evaluated; since `Run.begin`, like all that follow.
        held_out: Environment of the held-out tasks.
        novelty: Description of what is new in these tasks (`yamame.runs.novelty`).
        components: Parts that a checkpoint holds, by name.
        costs: CPU-seconds and wall-clock seconds so far.
        advises: Whether to print advice at the end, if the agent has hardly learned.
    """

    cfg: AnyConfig
    config: dict[str, Any]
    name: str
    path: Path
    resumed: bool
    resumed_at: tuple[int, int] | None = None
    progress: Progress
    budget: Budget
    guard: NonFiniteGuard
    regulator: Any
    curriculum: Any = None
    tracker: Tracker
    checkpoints: Checkpointer
    exits: ExitStack
    extra: dict[str, Any]
    objective: float | None
    advises: bool = True

    policy: InContextPolicy
    held_out: EnvBase
    novelty: str
    components: dict[str, Any]
    costs: CostMeter

    @property
    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Content of ``summary.json``; empty before the end of the run."""

    @abstractmethod
    def log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Log metrics, at the present step unless a different one is given."""

    def stop(self, reason: str) -> None:
        """End the run after this iteration, as if its budget were spent.

        Args:
            reason: Reason, printed once and stored in the summary.
        """
        if self.progress.stopped is None:
            print_stderr(f"{self.name}: stopped: {reason}")
        self.progress.stopped = reason

    def is_spent(self, *, env_steps: int, updates: int) -> bool:
        """Return whether the budget is spent after these steps and updates; False except on rank 0.

        The clock of rank 0 decides for all, because clocks differ.

        Args:
            env_steps: Number of environment steps; 0 to disregard their limit.
            updates: Number of updates.
        """
        if not distributed.is_rank0():
            return False
        ended = self.budget.ended(env_steps=env_steps, updates=updates)
        return self.progress.stopped is not None or ended is not None
