"""Suites of tasks that are trained with the same settings: plan, runs, and their table."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yamame.checks import UsageError, at_source, require_setting
from yamame.cli.failures import is_reported, report
from yamame.cli.names import file_name
from yamame.cli.nodes import plain
from yamame.cli.settings import LeaderboardConfig, SuiteTask, SuiteTier
from yamame.cli.validation import validated
from yamame.files.atomic import read_json
from yamame.files.identity import is_a_setting, key_of
from yamame.report.estimates import less_is_better
from yamame.report.scores import Anchors, ScoredRun, budget_label, read_scores, rescored
from yamame.runs import api
from yamame.runs.comparisons import compared_run
from yamame.runs.run import Run
from yamame.runs.several import train_or_resume
from yamame.system.messages import described, print_stderr
from yamame.system.user_code import formatted

COMMAND = "`yamame train ...`"
"""Column of the overrides of a run."""
NO_OTHER_LIMIT = ("budget.env_steps=null", "budget.minutes=null")
"""Overrides of runs that only their CPU-seconds end."""


@dataclass(frozen=True)
class PlannedRuns:
    """Runs of a task that differ only in their seed.

    Attributes:
        suite: Title of the suite in lower case.
        name: Name of the task.
        task: The task.
        budget: Limit in CPU-seconds; None for the limits of the settings.
        overrides: Overrides of `train`, without the seed.
        common: Those of them that all tasks have.
    """

    suite: str
    name: str
    task: SuiteTask
    budget: float | None
    overrides: tuple[str, ...]
    common: tuple[str, ...]

    @property
    def anchors(self) -> Anchors | None:
        """Results that score 0 and 1; None for a task without a score."""
        task = self.task
        if task.metric is None or task.random is None or task.best is None:
            return None
        return Anchors(random=task.random, best=task.best)

    def run_name(self, seed: int) -> str | None:
        """Return the name of a run; None for the one that `train` gives.

        That one leaves out the budget, by which these runs differ.
        """
        if self.budget is None:
            return None
        named = sorted(text for text in self.common if is_a_setting(key_of(text)))
        end = f"-cpu_s={self.budget:g}-seed={seed}"
        return file_name([self.suite, self.name, *named], end=end)

    def score(self, run: Run) -> ScoredRun | None:
        """Return the result of a finished run at its end; None without an evaluation."""
        # The costs of a run that was finished before are only there.
        summary = read_json(run.path / "summary.json")
        return self.scored(run.progress.curve, summary, seed=int(run.cfg.seed), name=run.name)

    def scored(
        self,
        curve: Sequence[Mapping[str, float]],
        costs: Mapping[str, Any],
        *,
        seed: int,
        name: str,
    ) -> ScoredRun | None:
        """Return the result of a run of any learner; None without an evaluation.

        Args:
            curve: Summaries of its evaluations.
            costs: ``env_steps``, ``updates`` and ``cpu_s``.
            seed: Seed of the run.
            name: Name of the run, for messages.
        """
        if not curve:
            print_stderr(f"{name}: not evaluated, so it has no result")
            return None
        last = curve[-1]
        metric = self.task.metric
        if metric is None:
            metric = "success_mean" if "success_mean" in last else "return_mean"
        if metric not in last:
            known = ", ".join(last)
            with at_source(f"suite.tasks.{self.name}"):
                raise UsageError(f"evaluations have {known}, got {metric}", key="metric")
        values = [evaluation[metric] for evaluation in curve]
        anchors = self.anchors
        return ScoredRun(
            suite=self.suite,
            task=self.name,
            seed=seed,
            budget=self.budget,
            metric=metric,
            value=last[metric],
            score=None if anchors is None else anchors.score(last[metric]),
            env_steps=int(costs["env_steps"]),
            updates=int(costs["updates"]),
            cpu_s=float(costs["cpu_s"]),
            best=min(values) if less_is_better(metric) else max(values),
        )


def tier_name(cfg: LeaderboardConfig) -> str:
    """Return the name of the tier: the setting, or the first of the suite."""
    return cfg.tier or next(iter(cfg.suite.tiers))


def page_of(cfg: LeaderboardConfig) -> Path:
    """Return the page that is written: the setting, or one named by suite, tier and overrides."""
    if cfg.page is not None:
        return Path(cfg.page)
    named = sorted(text for text in cfg.overrides if is_a_setting(key_of(text)))
    parts = [f"{cfg.suite.title.lower()}-{tier_name(cfg)}", *named]
    return Path("leaderboard", file_name(parts, end=".md"))


def csv_file(page: Path, compared: str | None = None) -> Path:
    """Return the CSV file beside a page: that of the agent, or of a learner of ``compare``."""
    end = "" if compared is None else f"-{compared}"
    return page.with_name(f"{page.stem}{end}.csv")


def plan(cfg: LeaderboardConfig) -> list[PlannedRuns]:
    """Return the runs of a suite, in the order of its tasks.

    Raises:
        UsageError: A task, a tier or the choice of tasks is wrong.
    """
    tasks: dict[str, SuiteTask] = {}
    for name, node in cfg.suite.tasks.items():
        tasks[name] = _section(SuiteTask, node, f"suite.tasks.{name}")
        _check_anchors(tasks[name], f"suite.tasks.{name}")
    key = f"suite.tiers.{tier_name(cfg)}"
    tier = _section(SuiteTier, cfg.suite.tiers[tier_name(cfg)], key)
    of_tier = list(tasks) if tier.tasks is None else tier.tasks
    _check_names(f"{key}.tasks", of_tier, list(tasks))
    chosen = of_tier if cfg.tasks is None else cfg.tasks
    _check_names("tasks", chosen, of_tier)

    limits = cfg.cpu_s if cfg.cpu_s is not None else tier.cpu_s
    budgets: list[float | None] = [None]
    if limits is not None:
        budgets = list(dict.fromkeys(limits))
    require_setting("cpu_s", limits, len(budgets) > 0, "have at least one limit, or be null")
    for text in cfg.overrides:
        key = key_of(text)
        is_set_here = key == "seed" or (limits is not None and key.split(".")[0] == "budget")
        condition = "leave out seed and budget, which seeds and cpu_s set"
        require_setting("overrides", text, not is_set_here, condition)
    of_all = tier.overrides or []
    planned = []
    for name in chosen:
        for budget in budgets:
            limit = () if budget is None else (f"budget.cpu_s={budget:g}", *NO_OTHER_LIMIT)
            overrides = (*of_all, *tasks[name].overrides, *limit, *cfg.overrides)
            common = (*of_all, *cfg.overrides)
            suite = cfg.suite.title.lower()
            planned.append(PlannedRuns(suite, name, tasks[name], budget, overrides, common))
    return planned


def baseline_of(cfg: LeaderboardConfig, planned: list[PlannedRuns]) -> list[ScoredRun]:
    """Return the runs to compare with, scored by the present anchors; none without a file.

    Raises:
        UsageError: The file cannot be read, has none of the planned tasks, or is that of this call.
    """
    if cfg.baseline is None:
        return []
    page = page_of(cfg)
    written = [csv_file(page), *(csv_file(page, name) for name in cfg.compare)]
    is_other = Path(cfg.baseline).resolve() not in [file.resolve() for file in written]
    condition = "be a file that this command does not write"
    require_setting("baseline", cfg.baseline, is_other, condition)
    anchors = {}
    for runs in planned:
        if runs.anchors is not None:
            anchors[runs.name] = (str(runs.task.metric), runs.anchors)
    stored = read_scores(Path(cfg.baseline))
    found = rescored(stored, planned[0].suite, anchors)
    pairs = {(runs.name, runs.budget) for runs in planned}
    found = [run for run in found if (run.task, run.budget) in pairs]
    condition = f"have runs of the suite {planned[0].suite} with the same tasks and limits"
    require_setting("baseline", cfg.baseline, len(found) > 0, condition)
    return found


def _section(model: type[Any], node: Any, key: str) -> Any:
    require_setting(key, node, isinstance(node, Mapping), "be a mapping")
    data = plain(node)
    with at_source(key):
        # As if the command line had set all keys, so that a misspelt one is refused.
        return validated(model, data, overridden=list(data))


def _check_anchors(task: SuiteTask, key: str) -> None:
    if task.metric is None:
        return
    for name in ("random", "best"):
        value = task[name]
        require_setting(f"{key}.{name}", value, value is not None, "be given for the metric")
    holds = task.random != task.best
    require_setting(f"{key}.best", task.best, holds, "differ from random")


def _check_names(key: str, names: Sequence[str], known: Sequence[str]) -> None:
    require_setting(key, names, 0 < len(names) == len(set(names)), "be different names of tasks")
    for name in names:
        require_setting(key, name, name in known, f"be some of {', '.join(known)}")


def train_planned(
    cfg: LeaderboardConfig, runs: PlannedRuns, seed: int, reported: set[str]
) -> ScoredRun | None:
    """Train a run, or the rest of it, and return its result; None if it has failed.

    An error is printed, unless it is in ``reported``, to which it is added: runs share mistakes.
    """
    extra = [f"logger.{key}='{value}'" for key, value in plain(cfg.store).items()]
    name = runs.run_name(seed)
    if name is not None:
        extra.append(f"run.name='{name}'")

    def train() -> ScoredRun | None:
        return runs.score(train_or_resume(*runs.overrides, f"seed={seed}", *extra))

    return _reporting(train, f"{' '.join(runs.overrides)} seed={seed}", reported)


def compare_planned(
    cfg: LeaderboardConfig, name: str, runs: PlannedRuns, seed: int, reported: set[str]
) -> ScoredRun | None:
    """Let a learner of ``compare`` learn the task of a run, and return its result.

    Args:
        cfg: Settings.
        name: Name of the learner.
        runs, seed, reported: As for `train_planned`.
    """

    def compare() -> ScoredRun | None:
        composed = api.compose(*runs.overrides, f"seed={seed}")
        report = compared_run(composed, name, cfg.compare[name])
        return runs.scored(report["curve"], report, seed=seed, name=name)

    return _reporting(compare, f"{name}: {' '.join(runs.overrides)} seed={seed}", reported)


def _reporting(
    run: Callable[[], ScoredRun | None], label: str, reported: set[str]
) -> ScoredRun | None:
    """Return the result of a run; print an error, unless it is in ``reported``."""
    try:
        return run()
    except Exception as error:
        reason = described(error)
        if reason in reported:
            return None
        reported.add(reason)
        # Only a defect of this package needs a traceback.
        text = "; ".join(report(error)) if is_reported(error) else formatted(error)
        print_stderr(f"leaderboard: {label}: {text}")
        return None


def table_of(
    cfg: LeaderboardConfig,
    planned: Sequence[PlannedRuns],
    results: Sequence[ScoredRun],
    compared: Mapping[str, Sequence[ScoredRun]],
) -> str:
    """Return the marked table of the runs; `write_tables` fills in their other numbers.

    Args:
        cfg: Settings.
        planned: Runs, a row each.
        results: Their results.
        compared: Results of other learners, a column each. Verdicts are about the first.
    """
    suite = plain(cfg.suite)
    published = suite["published"]
    against = next(iter(compared), suite["against"])
    has_scores = any(runs.anchors is not None for runs in planned)
    typed = [*(["score", "random", "best known"] if has_scores else []), *compared, *published]
    metric = ["metric"] if has_scores else []
    verdict = ["best", "verdict"] if against else []
    head = ["task", COMMAND, *metric, "at the end", *verdict, *typed, "CPU-s", "steps"]
    lines = [head, ["---"] * len(head)]
    for runs in planned:
        row = dict.fromkeys(head, "")
        row["task"] = ", ".join(filter(None, [runs.name, budget_label(runs.budget)]))
        row[COMMAND] = f"`{' '.join(runs.overrides)}`"
        if runs.anchors is not None:
            row["metric"] = str(runs.task.metric)
            row["score"] = _mean_score(runs, results)
            row["random"] = f"{runs.anchors.random:.4g}"
            row["best known"] = f"{runs.anchors.best:.4g}"
        for name, found in compared.items():
            row[name] = _best_of(runs, found)
        for name, column in published.items():
            row[name] = _published(column, runs.name)
        lines.append(list(row.values()))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)

    options = [f"seeds={','.join(map(str, cfg.seeds))}"]
    if typed:
        options.append(f"typed={','.join(typed)}")
    if against:
        options.append(f"against={against}")
    return f"<!-- runs: {'; '.join(options)} -->\n\n{table}\n\n<!-- end of runs -->"


def _of_task(runs: PlannedRuns, results: Sequence[ScoredRun]) -> list[ScoredRun]:
    """Return the results of the task and the budget of some runs."""
    key = (runs.name, runs.budget)
    return [result for result in results if (result.task, result.budget) == key]


def _best_of(runs: PlannedRuns, results: Sequence[ScoredRun]) -> str:
    """Format the best evaluations of a learner: mean, and standard deviation over seeds."""
    values = [result.best for result in _of_task(runs, results) if result.best is not None]
    if len(values) > 1:
        return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
    return f"{values[0]:.3f}" if values else ""


def _mean_score(runs: PlannedRuns, results: Sequence[ScoredRun]) -> str:
    scores = [result.score for result in _of_task(runs, results) if result.score is not None]
    return f"{sum(scores) / len(scores):.3f}" if scores else ""


def _published(column: dict[str, Any], task: str) -> str:
    """Format a published number; in parentheses if it has other rules; empty without one."""
    value = column["values"].get(task)
    if value is None:
        return ""
    text = f"{value[0]:.3f} ± {value[1]:.3f}" if isinstance(value, list) else f"{value:.3f}"
    return f"({text})" if task.startswith(tuple(column["changed"])) else text


def notes_of(cfg: LeaderboardConfig, planned: Sequence[PlannedRuns]) -> str:
    """Return the sources of the numbers that were not measured by these runs."""
    notes = []
    if any(runs.anchors is not None for runs in planned):
        notes.append(f"- *random*: {cfg.suite.random_source or 'unknown'}")
        sources = {runs.name: runs.task.best_source for runs in planned if runs.anchors is not None}
        for name, source in sources.items():
            notes.append(f"- *best known*, {name}: {source or 'unknown'}")
    for name, node in cfg.compare.items():
        target = node["_target_"].rpartition(".")[2]
        notes.append(
            f"- *{name}*: {target}, best evaluation, mean and standard deviation over the seeds; "
            "same tasks, limits and evaluations"
        )
    for name, column in plain(cfg.suite)["published"].items():
        notes.append(f"- *{name}*: {column['source']}")
    return "\n".join(notes)
