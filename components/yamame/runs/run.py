"""One run from its first to its last step: what recipes share beside the loop that each of them has
on its page.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from omegaconf import DictConfig
from torch import Tensor
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.agent import InContextPolicy
from yamame.checks import UsageError
from yamame.cli.jobs import is_part, resume_mode, say
from yamame.cli.names import run_name
from yamame.cli.nodes import instantiate, plain
from yamame.collectors import Episodes
from yamame.evaluation import EvaluationResult
from yamame.files.checkpoint import Checkpointer, LoadedCheckpoint
from yamame.files.run_directory import RunDirectory
from yamame.report.expected import Expected
from yamame.runs import machine, outcome, resuming
from yamame.runs.build import build_callbacks
from yamame.runs.callbacks import Callback, Callbacks
from yamame.runs.earlier import write_out_split
from yamame.runs.held_out import play_held_out, score
from yamame.runs.novelty import what_is_new
from yamame.runs.state import RunState
from yamame.system import signals
from yamame.system.budget import Budget
from yamame.system.messages import OutsideError, print_stderr
from yamame.tracking.costs import CostMeter
from yamame.tracking.summary import run_status
from yamame.training import GlobalRNGState
from yamame.training.guard import NonFiniteGuard, require_finite
from yamame.training.progress import Progress

_OF_EACH_RANK = ("collector", "replay", "rng")
"""Components that differ between the processes of torchrun."""


class Run(RunState):
    """Configuration, directory, progress, tracker and checkpoints of one run. A context manager::

        with Run(cfg) as run:
            ...                      # build the parts
            run.begin(components, policy=policy, held_out=env)
            while not run.ended():
                ...                  # collect
                run.learned(learner.update(batch))
                run.log(run.metrics())
                run.evaluate_and_save()
            objective = run.finish()

    Until `begin` has succeeded nothing is decided: a ``ValueError`` of what is built is raised as a
    `UsageError`, and the directory is as it was before. From then on ``summary.json`` and the
    tracker say how the run ended, however it ends.

    A signal that asks the run to end (`yamame.system.signals`) is noted, and acted upon by `begin`,
    `ended`, `end_if_asked` and evaluations.

    Args:
        cfg: The composed configuration of a recipe.
        unit: The counter by which intervals, metrics and checkpoints go.
        callbacks: Are told what happens, after the tracker, the bar and those of the configuration.

    Raises:
        UsageError: The budget or what is expected cannot be, or the tracker refuses its settings.
            On entering, what `RunDirectory.open` and `compare_config` refuse, or a run is finished
            and its checkpoints are gone.
        AlreadyDone: On entering, ``resume`` is auto and nothing is left to do.
    """

    directory: RunDirectory  # since the run was entered
    on_saved: Callable[[], None]  # since `begin`

    def __init__(
        self,
        cfg: DictConfig,
        *,
        unit: Literal["env_steps", "updates"] = "env_steps",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.costs = CostMeter(is_part=is_part())
        write_out_split(cfg)
        self.cfg, self.config = cfg, plain(cfg)
        if distributed.world_size() > 1:
            self.config["processes"] = distributed.world_size()  # a run goes on with as many
        machine.check_machine(cfg)
        self.name = run_name(cfg)
        self.path = Path(cfg.run.root) / self.name
        self.extra = {}
        self.exits = ExitStack()
        Expected.from_config(self.config["expected"])
        self.budget = Budget(**self.config["budget"])
        self.progress = Progress(unit)
        try:
            share = cfg.schedule.max_refused
            tell = print_stderr if distributed.is_rank0() else lambda line: None
            self.guard = NonFiniteGuard(self.path, max_refused=share, config=self.config, tell=tell)
        except ValueError as error:
            raise UsageError(f"schedule.max_refused: {error}") from error
        self.tracker = instantiate(cfg.logger)
        self.callbacks = (
            build_callbacks(cfg, callbacks) if distributed.is_rank0() else Callbacks({})
        )
        kept = cfg.checkpoint.keep
        self.checkpoints = Checkpointer(
            self.path / "checkpoints", keep_last=kept, config=self.config
        )
        self.resumed = False
        self.objective = None
        self._saved: tuple[int, int] | None = None
        self._evaluated: tuple[tuple[int, int], EvaluationResult] | None = None

    def __enter__(self) -> Self:
        mode = resume_mode(self.cfg)
        with ExitStack() as entered:
            entered.enter_context(signals.handling(at_once=False))
            self.directory = resuming.claim(self, mode)
            entered.callback(self.directory.close)
            is_auto = mode == "auto"
            if self.directory.resumed and distributed.on_rank0(
                lambda: resuming.goes_on(self, unless_done=is_auto)
            ):
                self.resumed = True
                say("resumed")
            self._entered = entered.pop_all()  # closes the directory, then hears no signals
        return self

    def closing(self, env: EnvBase) -> EnvBase:
        """The environment, which is closed when the run ends."""
        self.exits.callback(lambda: None if env.is_closed else env.close())
        return env

    def begin(
        self,
        components: Mapping[str, Any],
        *,
        policy: InContextPolicy,
        held_out: EnvBase,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Restores the last checkpoint, or writes the configuration of a new run, and opens the
        tracker.

        A run that goes on stays as it was if any of this fails.

        Args:
            components: What a checkpoint holds beside what the run has itself: all that the next
                step depends on.
            policy: What is evaluated; it shares the parameters that are learned.
            held_out: Environment of the held-out tasks.
            on_saved: Called when a checkpoint is on disk.
        """
        self.end_if_asked()
        self.policy, self.held_out, self.on_saved = policy, held_out, on_saved
        self.novelty = what_is_new(
            self.cfg, held_out, replay=distributed.rank_dir(self.path / "replay")
        )
        own = {
            "progress": self.progress,
            "budget": self.budget,
            "costs": self.costs,
            "rng": GlobalRNGState(),
        }
        self.components = {**components, **own, "guard": self.guard, **outcome.facts(held_out)}
        for name in _OF_EACH_RANK if distributed.world_size() > 1 else ():
            self.components[name] = distributed.PerRank(self.components[name])
        self.guard.kept = {"agent": components["agent"]}
        before = None
        if self.resumed:
            before = resuming.restore(self)
            self._saved = (self.progress.env_steps, self.progress.updates)
        if not self.progress.outcomes:  # no episode has told which of the two it is
            tells_success = "success" in held_out.observation_spec.keys()
            self.progress.outcome_is = "success" if tells_success else "return"
        distributed.on_rank0(lambda: self._open(before))
        self.directory.begin()
        self.budget.start()
        if self.progress.evaluating:
            self.evaluate_and_save()

    def _open(self, before: LoadedCheckpoint | None) -> None:
        """Writes what the run is, and tells callbacks that it begins."""
        if before is None:
            self.directory.begin()
            outcome.write_config(self)
        self.callbacks.load_state_dict(self.progress.callbacks)
        self.callbacks.tell(self, "on_begin")
        self.directory.begin()
        if before is not None:
            outcome.write_config(self)
            outcome.reopen_summary(self)
            outcome.tell_changes(self, before)
        (self.path / "error.txt").unlink(missing_ok=True)

    def ended(self) -> bool:
        """Whether the budget is spent, where a checkpoint may be made; a run that was asked to ends
        here.
        """
        self.end_if_asked()
        return self._spent()

    def is_last(self) -> bool:
        """Whether no update may follow the next one, whatever steps there are to learn from."""
        spent = self.spends(env_steps=0, updates=self.progress.updates + 1)
        may = distributed.any_rank(spent or signals.received() is not None)
        # A run whose budget is spent makes the updates of its last iteration now: no resumed run
        # would.
        return may and (distributed.any_rank(spent) or not self._spent())

    def _spent(self) -> bool:
        return distributed.any_rank(
            self.spends(env_steps=self.progress.env_steps, updates=self.progress.updates)
        )

    def end_if_asked(self) -> None:
        """Ends the run if a signal has asked it to: saves a checkpoint, unless the last one holds
        this state.

        Raises:
            Terminated: It was asked to.
        """
        if distributed.any_rank(signals.received() is not None):
            if self.directory.begun and self._saved != (
                self.progress.env_steps,
                self.progress.updates,
            ):
                self.save()
            raise signals.Terminated

    def end_within_iteration(self) -> None:
        """As `end_if_asked`, where updates of an iteration are left that a resumed run would
        make.
        """
        if not self._spent():
            self.end_if_asked()

    def count(self, episodes: Episodes) -> Episodes:
        """Adds what all ranks collected to the counters, and returns it."""
        episodes = Episodes.merged(distributed.all_gather(episodes))
        self.progress.count(episodes)
        self.callbacks.tell(self, "on_collect", episodes)
        return episodes

    def updates_left(self) -> int:
        """Updates that an iteration of ``schedule.updates_per_iteration`` has left; fewer than all
        in a resumed run.
        """
        return int(self.cfg.schedule.updates_per_iteration) - len(self.progress.unlogged)

    def learned(self, metrics: Mapping[str, Tensor]) -> None:
        """Counts an update that was made, and keeps what it wrote; one that was refused wrote
        nothing.
        """
        if metrics:
            self.progress.updates += 1
            self.progress.unlogged.append({key: value.float() for key, value in metrics.items()})
            self.callbacks.tell(self, "on_update", metrics)

    def metrics(self, collector: Mapping[str, float] | None = None) -> dict[str, float]:
        """Means of what updates wrote since this was asked last, how episodes end, what a collector
        says of itself.
        """
        metrics = {f"train/{key}": value for key, value in self.progress.take_means().items()}
        if self.progress.outcome is not None:
            metrics["train/outcome"] = self.progress.outcome
        if self.progress.aborted:
            metrics["train/aborted_episodes"] = float(self.progress.aborted)
        if self.guard.num_refused:
            metrics["train/refused_updates"] = float(self.guard.num_refused)
        return metrics | {f"collector/{key}": value for key, value in (collector or {}).items()}

    def log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Tells callbacks metrics, of the present step unless another is given."""
        self.callbacks.tell(self, "on_log", metrics, self.progress.step if step is None else step)

    def evaluate_and_save(self) -> None:
        """Evaluates and checkpoints when their intervals have passed."""
        progress, result = self.progress, None
        if progress.step >= progress.evaluated_at + self.cfg.evaluation.interval:
            progress.evaluating = True
            result = self.evaluate()
            progress.evaluated_at, progress.evaluating = progress.step, False
        if result is not None or progress.step >= progress.saved_at + self.cfg.checkpoint.interval:
            self.save(result)

    def evaluate(self) -> EvaluationResult:
        """Plays the held-out tasks and keeps the summary as a point of the curve; once for the same
        agent.
        """
        curve, step = self.progress.curve, self.progress.step
        now = self.progress.env_steps, self.progress.updates
        if self._evaluated is not None and self._evaluated[0] == now:
            return self._evaluated[1]
        self.callbacks.tell(self, "on_evaluating")
        try:
            result = play_held_out(self.cfg, self.policy, self.held_out)
        except signals.Terminated:
            self.end_if_asked()
            raise
        summary = result.summary()
        if not curve or curve[-1][self.progress.unit] < step:
            curve.append({self.progress.unit: step, **summary})
        self._evaluated = now, result
        self.callbacks.tell(self, "on_evaluate", result)
        return result

    def save(self, result: EvaluationResult | None = None) -> None:
        """Makes a checkpoint; the result of an evaluation decides whether it is the best.

        Raises:
            FloatingPointError: A parameter, a statistic or the optimizer's state is not finite.
        """
        require_finite(self.components)
        self.callbacks.tell(self, "on_save")
        self.progress.callbacks = self.callbacks.state_dict()
        self.progress.saved_at = step = self.progress.step
        metric = None if result is None else score(result)
        components = {name: distributed.state_of(part) for name, part in self.components.items()}
        path = distributed.on_rank0(
            lambda: self.checkpoints.save(components, step=step, metric=metric)
        )
        self._saved = (self.progress.env_steps, self.progress.updates)
        self.on_saved()
        self.callbacks.tell(self, "on_saved", path)

    def finish(self) -> float:
        """Evaluates, saves and hands artifacts to the tracker; returns the score."""
        result = self.evaluate()
        self.save(result)
        distributed.on_rank0(lambda: outcome.log_artifacts(self))
        self.objective = score(result)
        return self.objective

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says: how the run ended, its last evaluation, what it has cost; empty
        before its end.
        """
        return outcome.read_summary(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = run_status(error)
        if (
            isinstance(error, signals.Terminated)
            and error.signal is not None
            and self.directory.begun
        ):
            error.reported = True
            if distributed.is_rank0():
                saved = f"{self.checkpoints.last} is saved"
                print_stderr(f"{error.signal.name}: {saved}; resume=true goes on from there")
        try:
            self.exits.__exit__(kind, error, trace)  # the tracker first, then environments
        except BaseException as raised:
            status = run_status(raised)
            if not (isinstance(error, OSError | OutsideError) and isinstance(raised, Exception)):
                raise  # what fails after the disk did is not the cause
        finally:
            if self.directory.begun and distributed.is_rank0():
                with contextlib.suppress(*([] if error is None else [OSError])):
                    outcome.keep_traceback(self, error)
                    outcome.write_summary(self, status)
            self._entered.close()
            if self.directory.begun:
                self.callbacks.tell_all(self, "on_end")
        if isinstance(error, ValueError) and not (
            self.directory.begun or isinstance(error, UsageError)
        ):
            raise UsageError(str(error)) from error
