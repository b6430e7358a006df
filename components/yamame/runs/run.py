"""One run from its first to its last step: all that recipes share besides their own loops."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torch import Tensor
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.agent import InContextPolicy
from yamame.checks import UsageError, at_key
from yamame.cli.jobs import is_part, mark_resumed, note_objective, resume_mode
from yamame.cli.names import run_name
from yamame.cli.nodes import instantiate, plain, select
from yamame.cli.sections import AnyConfig
from yamame.collectors import Episodes
from yamame.evaluation import EvaluationResult
from yamame.files.checkpoint import Checkpointer, LoadedCheckpoint
from yamame.files.run_directory import RunDirectory
from yamame.files.trust_record import record_run
from yamame.report.expected import Expected
from yamame.runs import machine, results, resuming, schedules
from yamame.runs.advice import advice
from yamame.runs.alerts import steps_of_evaluation
from yamame.runs.build import build_callbacks
from yamame.runs.callbacks import Callback, Callbacks
from yamame.runs.earlier import with_defaults
from yamame.runs.held_out import play_held_out, score
from yamame.runs.limits import with_minutes
from yamame.runs.novelty import what_is_new
from yamame.runs.state import RunState
from yamame.system import signals
from yamame.system.budget import Budget
from yamame.system.messages import add_note, begin_lines, end_lines, one_line, print_stderr
from yamame.system.user_code import blame, is_failure
from yamame.tracking.costs import CostMeter
from yamame.tracking.summary import run_status
from yamame.training import GlobalRNGState
from yamame.training.guard import NonFiniteGuard, require_finite
from yamame.training.progress import Progress

_PER_RANK = ("collector", "replay", "rng")
"""Components whose state differs between the ranks of torchrun."""


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

    Before `begin`, an error leaves the directory as it was, and a ``ValueError`` that no user code
    raised becomes a `UsageError`. From then on ``summary.json`` and the tracker have the status of
    the run, however it ends, and ``error.txt`` the traceback of an error.

    A session is the part of a run in one process. A signal to end it (`yamame.system.signals`)
    takes effect in `begin`, `ended`, `exit_if_received` and evaluations.

    Args:
        cfg: Composed configuration of a recipe.
        unit: Counter of intervals, metrics and checkpoints.
        callbacks: Called after the tracker, the progress bar and the callbacks of the
            configuration.

    Raises:
        UsageError: A setting is wrong; on entering, the directory cannot be opened, the
            configuration differs from that of the run to resume, or the checkpoints of a finished
            run are missing.
        AlreadyDone: On entering, with ``resume=auto``, nothing is left to do.
    """

    directory: RunDirectory
    """Directory of the run, once the run is entered."""
    on_saved: Callable[[], None]
    """Called when a checkpoint is on disk; set by `begin`."""

    def __init__(
        self,
        cfg: AnyConfig,
        *,
        unit: Literal["env_steps", "updates"] = "env_steps",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.costs = CostMeter(is_part=is_part())  # first, because it measures from here on
        cfg = with_minutes(with_defaults(cfg))  # before the configuration is copied and saved
        self.cfg = cfg
        self.config = plain(cfg)
        if distributed.world_size() > 1:
            # Saved, because a run must be resumed with the same number of processes.
            self.config["processes"] = distributed.world_size()
        machine.check_machine(cfg)
        self.name = run_name(cfg)
        self.path = Path(cfg.run.root) / self.name
        self.extra = {}
        self.exits = ExitStack()

        # Only a check: the report reads the expectation after the run, and a mistake in it must
        # not cost a run.
        Expected.from_config(self.config["expected"])
        with at_key("budget"):
            self.budget = Budget(**self.config["budget"], cpu_clock=self.costs.recent_cpu_s)
        self.progress = Progress(unit)
        # All ranks skip the same updates; one message is enough.
        warn = print_stderr if distributed.is_rank0() else lambda line: None
        with at_key("schedule"):
            self.guard = NonFiniteGuard(
                self.path, max_refused=cfg.schedule.max_refused, config=self.config, tell=warn
            )
        self.regulator = instantiate(select(cfg, "schedule.regulator"))
        self.tracker = instantiate(cfg.logger)
        # Callbacks print and write files, which only one process may do.
        is_rank0 = distributed.is_rank0()
        self.callbacks = build_callbacks(cfg, callbacks) if is_rank0 else Callbacks({})
        self.checkpoints = Checkpointer(
            self.path / "checkpoints", keep_last=cfg.checkpoint.keep, config=self.config
        )
        self.resumed = False
        self.objective = None
        # Environment steps and updates at the last checkpoint.
        self._saved: tuple[int, int] | None = None
        # The last evaluation, with the environment steps and updates at which it was made.
        self._last_evaluation: tuple[tuple[int, int], EvaluationResult] | None = None
        self._saved_s = time.monotonic()
        self._advice: list[str | None] = []

    def __enter__(self) -> Self:
        mode = resume_mode(self.cfg)
        with ExitStack() as claim:
            claim.enter_context(signals.handling(at_once=False))
            self.directory = resuming.open_directory(self, mode)
            claim.callback(self.directory.close)
            if self.directory.resumed:
                is_auto = mode == "auto"
                self.resumed = distributed.on_rank0(
                    lambda: resuming.can_resume(self, unless_done=is_auto)
                )
            if self.resumed:
                mark_resumed()
            # Closed after `exits`, at the end of the run: the directory first, then the handling of
            # signals.
            self._claim = claim.pop_all()
        begin_lines()
        return self

    def closing(self, env: EnvBase) -> EnvBase:
        """Return an environment, which is closed when the run ends."""
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
        """Restore the last checkpoint, or write the files of a new run, and start the tracker.

        If any of this fails, the files of a resumed run stay as they were.

        Args:
            components: Parts that a checkpoint holds, besides those of the run itself: all that
                the next step depends on.
            policy: Policy to evaluate; it shares the parameters that are learned.
            held_out: Environment of the held-out tasks.
            on_saved: Called when a checkpoint is on disk.
        """
        self.exit_if_received()  # building the parts may have taken minutes
        self.policy = policy
        self.held_out = held_out
        self.on_saved = on_saved
        replay = distributed.rank_dir(self.path / "replay")
        self.novelty = what_is_new(self.cfg, held_out, replay=replay)
        self.components = self._all_components(components)
        self.guard.kept = {"agent": components["agent"]}

        checkpoint = resuming.restore(self) if self.resumed else None
        self._saved = self.resumed_at
        if not self.progress.outcomes:  # no episode has ended yet
            has_success = "success" in held_out.observation_spec.keys()
            self.progress.outcome_name = "success" if has_success else "return"

        distributed.on_rank0(lambda: self._write_run_files(checkpoint))
        if not distributed.is_rank0():
            self.directory.begin()
        if distributed.is_rank0():
            schedules.warn_timed(self)
        self.budget.start()  # building the parts is not part of the time
        schedules.follow_budget(self)
        if self.progress.evaluating:  # the former session ended during an evaluation
            self.evaluate_and_save()

    def _all_components(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given components and those of the run itself."""
        components = {
            **given,
            "progress": self.progress,
            "budget": self.budget,
            "costs": self.costs,
            "rng": GlobalRNGState(),
            "guard": self.guard,
            **results.facts(self.held_out, self.config),
        }
        if self.regulator is not None:
            components["regulator"] = self.regulator
        if distributed.world_size() > 1:
            for name in _PER_RANK:
                components[name] = distributed.PerRank(components[name])
        return components

    def _write_run_files(self, checkpoint: LoadedCheckpoint | None) -> None:
        """Begin the directory, write the files of this session, and call ``on_begin``."""
        if checkpoint is None:
            self.directory.begin()
            results.write_config(self)
        self.callbacks.load_state_dict(self.progress.callbacks)
        self.callbacks.call(self, "on_begin")
        if checkpoint is not None:
            # A resumed run's files change last: until here, an error leaves them as they were.
            self.directory.begin()
            results.write_config(self)
            results.reopen_summary(self)
            results.warn_changes(self, checkpoint)
        record_run(self.path, self.config)
        (self.path / "error.txt").unlink(missing_ok=True)

    @property
    def _counts(self) -> tuple[int, int]:
        """Environment steps and updates so far."""
        return self.progress.env_steps, self.progress.updates

    def ended(self) -> bool:
        """Return whether the budget is spent.

        Call it where a checkpoint may be written: a signal ends the run here.
        """
        self.exit_if_received()
        self.costs.gather()
        return self._is_spent_on_any_rank()

    def is_last(self) -> bool:
        """Return whether the next update is the last one of the run or of this session."""
        # Without the environment steps: they change only in `collect`, and an iteration whose steps
        # have spent the budget still makes all its updates.
        is_spent = self.is_spent(env_steps=0, updates=self.progress.updates + 1)
        is_signalled = signals.received() is not None
        # Every branch depends only on `any_rank`, so all ranks make the same collective calls.
        if not distributed.any_rank(is_spent or is_signalled):
            return False
        if distributed.any_rank(is_spent):
            return True
        # A signal was received. It ends the session after this update, except in the last iteration
        # of a run, because no resumed run would make the other updates.
        return not self._is_spent_on_any_rank()

    def _is_spent_on_any_rank(self) -> bool:
        env_steps, updates = self._counts
        return distributed.any_rank(self.is_spent(env_steps=env_steps, updates=updates))

    def exit_if_received(self) -> None:
        """End the run if a signal was received, after saving a checkpoint of this state.

        Raises:
            Terminated: A signal was received.
        """
        if distributed.any_rank(signals.received() is not None):
            if self.directory.begun and self._saved != self._counts:
                self.save()
            raise signals.Terminated

    end_if_asked = exit_if_received
    """Former name, removed in the next version."""

    def end_within_iteration(self) -> None:
        """Call `exit_if_received` if a resumed run would finish the present iteration."""
        if not self._is_spent_on_any_rank():
            self.exit_if_received()

    def count(self, episodes: Episodes) -> Episodes:
        """Count the collected steps and episodes of all ranks, and return them."""
        # A rank whose environments hang must not be waited for as long as an evaluation.
        merged = Episodes.merged(distributed.all_gather(episodes, waits_long=False))
        self.progress.count(merged)
        self.callbacks.call(self, "on_collect", merged)
        return merged

    def updates_left(self) -> int:
        """Return the updates left of an iteration of ``schedule.updates_per_iteration``."""
        # A resumed run has made some of them before.
        made = len(self.progress.unlogged)
        return int(self.cfg.schedule.updates_per_iteration) - made

    def learned(self, metrics: Mapping[str, Tensor]) -> None:
        """Count an update and keep its metrics; a skipped update has none and does not count."""
        if not metrics:
            return
        self.progress.updates += 1
        self.progress.unlogged.append({key: value.float() for key, value in metrics.items()})
        self.callbacks.call(self, "on_update", metrics)

    def metrics(self, collector: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return the metrics since the last call.

        Args:
            collector: Metrics of the collector.

        Returns:
            Means of the updates' metrics, the mean outcome of recent episodes, and the collector's
            metrics, with prefixes.
        """
        metrics = schedules.pace_metrics(self)
        for key, value in self.progress.take_means().items():
            metrics[f"train/{key}"] = value
        if self.progress.outcome is not None:
            metrics["train/outcome"] = self.progress.outcome
        if self.progress.aborted:
            metrics["train/aborted_episodes"] = float(self.progress.aborted)
        if self.guard.num_refused:
            metrics["train/refused_updates"] = float(self.guard.num_refused)
        for key, value in (collector or {}).items():
            metrics[f"collector/{key}"] = value
        return metrics

    def log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Log metrics, at the present step unless a different one is given."""
        at = self.progress.step if step is None else step
        self.callbacks.call(self, "on_log", metrics, at)

    def evaluate_and_save(self) -> None:
        """Evaluate, and write a checkpoint, if they are due (`yamame.runs.schedules`)."""
        progress = self.progress
        result = None
        if progress.evaluating or schedules.evaluation_is_due(self):
            progress.evaluating = True
            result = self.evaluate()
            schedules.count_evaluation(self, result)
            progress.evaluating = False
        if result is not None or schedules.checkpoint_is_due(self, self._saved_s):
            self.save(result)

    def evaluate(self) -> EvaluationResult:
        """Evaluate on the held-out tasks, and append the summary to the curve.

        The same agent is evaluated once: a second call returns the same result.
        """
        now = self._counts
        if self._last_evaluation is not None and self._last_evaluation[0] == now:
            return self._last_evaluation[1]
        self.callbacks.call(self, "on_evaluating")
        try:
            max_steps = steps_of_evaluation(self)
            with schedules.timed_evaluation(self):
                result = play_held_out(self.cfg, self.policy, self.held_out, max_steps=max_steps)
        except signals.Terminated:
            # The checkpoint notes that an evaluation is due; the resumed run makes it.
            self.exit_if_received()
            raise

        progress = self.progress
        # A resumed run may evaluate at a step at which it was evaluated before.
        if progress.curve and progress.curve[-1][progress.unit] >= progress.step:
            progress.curve.pop()
        progress.curve.append({progress.unit: progress.step, **result.summary()})
        self._last_evaluation = (now, result)
        self.callbacks.call(self, "on_evaluate", result)
        return result

    def save(self, result: EvaluationResult | None = None) -> None:
        """Write a checkpoint.

        Args:
            result: Evaluation of this state; its score decides whether the checkpoint is the best.

        Raises:
            FloatingPointError: A parameter, a statistic or the optimizer's state is NaN or Inf.
        """
        require_finite(self.components)
        self.callbacks.call(self, "on_save")
        self.progress.callbacks = self.callbacks.state_dict()
        step = self.progress.step
        schedules.count_checkpoint(self)  # before the state is taken: it holds its own step
        metric = None if result is None else score(result)

        # All ranks take part in the state of a component that differs between them.
        components = {name: distributed.state_of(part) for name, part in self.components.items()}
        path = distributed.on_rank0(
            lambda: self.checkpoints.save(components, step=step, metric=metric)
        )
        self._saved = self._counts
        self._saved_s = time.monotonic()
        self.on_saved()
        self.callbacks.call(self, "on_saved", path)

    def finish(self) -> float:
        """Evaluate, save and log the artifacts; return the score."""
        idle = resuming.without_progress(self)
        result = self.evaluate()
        self.save(result)
        # From here on the run is finished, whatever happens to its pictures.
        self.objective = score(result)
        note_objective("return" if result.success is None else "success")
        self._advice = [idle, advice(self, result)]
        distributed.on_rank0(lambda: results.log_artifacts(self))
        return self.objective

    @property
    def summary(self) -> dict[str, Any]:
        """Content of ``summary.json``; empty before the end of the run."""
        return results.read_summary(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, signals.Terminated):
            self._report_signal(error)
        # Each step is made even if the one before it raises. Otherwise this process would keep the
        # claim on the directory and the handling of signals.
        try:
            self._close_and_summarize(kind, error, trace)
        finally:
            try:
                self._claim.close()
            finally:
                end_lines()
                for text in self._advice:  # beside the commands of the summary
                    if text is not None and distributed.is_rank0():
                        print_stderr(text)
                if self.directory.begun:
                    self._call_on_end()
        if self.directory.begun or isinstance(error, UsageError):
            return
        # A mistake, of a class that does not use yamame.checks.
        if isinstance(error, ValueError) and blame(error) is None:
            raise UsageError(one_line(error)) from error

    def _call_on_end(self) -> None:
        try:
            self.callbacks.call_all(self, "on_end")
        except BaseException as error:
            if distributed.is_rank0():
                results.write_traceback(self, error, of_part=blame(error) is not None)
            raise

    def _close_and_summarize(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the tracker and the environments, then write ``summary.json``."""
        failure = error
        try:
            self.exits.__exit__(kind, error, trace)  # the tracker first, then environments
        except BaseException as raised:
            # A further error while closing is a consequence of the failure before it: it replaces
            # neither the original error nor its status.
            is_consequence = error is not None and is_failure(error)
            is_finished = error is None and self.objective is not None
            if not (is_consequence or is_finished) or not is_failure(raised):
                failure = raised
                raise
            if is_finished:
                print_stderr(f"{self.name}: finished, but not closed: {one_line(raised)}")
        finally:
            if self.directory.begun and distributed.is_rank0():
                if failure is not None:
                    add_note(failure, "once that is fixed, resume=true continues the run")
                results.write_traceback(self, failure)
                # The disk may be full, which must not hide an earlier error.
                hidden = () if failure is None else (OSError,)
                with contextlib.suppress(*hidden):
                    results.write_summary(self, run_status(failure))

    def _report_signal(self, error: signals.Terminated) -> None:
        """Print which signal has ended the run, once."""
        if error.signal is None or not self.directory.begun:
            return
        error.reported = True
        if distributed.is_rank0():
            saved = f"{self.checkpoints.last} is saved"
            print_stderr(f"{error.signal.name}: {saved}; resume=true continues from it")
