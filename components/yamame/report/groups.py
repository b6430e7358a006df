"""Groups of runs that differ only in their seed, and sections of groups in one environment."""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from yamame.checks import SettingError
from yamame.evaluation.result import described
from yamame.files.identity import is_one_of, makes_another_experiment
from yamame.report.expected import Expected
from yamame.report.frames import RunMetrics
from yamame.report.settings import Command, differences, environment, identity, override, settings
from yamame.system.messages import one_line
from yamame.tracking.history import RunHistory, is_named

# A space at which a browser breaks no line.


class LeftOut(NamedTuple):
    """A run that does not count, and the reason."""

    run: RunHistory
    reason: str


@dataclass(frozen=True)
class Group:
    """Runs with the same settings, one per seed, in the order of their seeds.

    Attributes:
        letter: Short name in the section.
        label: Overrides that distinguish it from the other groups of the section.
        runs: At least one run.
    """

    letter: str
    label: str
    runs: tuple[RunHistory, ...]

    @property
    def seeds(self) -> list[str]:
        """Seeds of the runs."""
        return [run.seed for run in self.runs]

    # Cached, because a data frame of a hundred thousand rows takes milliseconds to make.
    @cached_property
    def metrics(self) -> RunMetrics:
        """Metrics of the runs."""
        return RunMetrics(self.runs)

    @property
    def evaluated(self) -> set[str]:
        """Metrics of evaluations that a run has logged, without ``eval/``."""
        names = self.metrics.names
        return {name.removeprefix("eval/") for name in names if name.startswith("eval/")}

    @property
    def settings(self) -> dict[str, str]:
        """Settings that all runs share."""
        return settings(self.runs[0])

    @property
    def commands(self) -> list[Command]:
        """Command lines of the runs, without runs of which none was recorded."""
        commands = []
        for run in self.runs:
            command = Command.of(run)
            if command is not None:
                commands.append(command)
        return commands

    @property
    def command(self) -> str | None:
        """A command that repeats all runs; None if the first run has none."""
        first = Command.of(self.runs[0])
        return None if first is None else first.with_seeds(self.seeds)

    def override(self, parameter: str) -> str:
        """Return the command-line override that sets a parameter to its value."""
        given = self.commands[0].overrides if self.commands else {}
        return override(parameter, self.settings, given)

    @property
    def experiment(self) -> str | None:
        """Experiment on the command line of a run."""
        for command in self.commands:
            if "experiment" in command.overrides:
                return command.overrides["experiment"]
        return None

    @property
    def recipe(self) -> str:
        """Recipe of the runs; ``train`` if it is unknown."""
        for command in self.commands:
            if command.recipe is not None:
                return command.recipe
        return "train"

    @property
    def section_key(self) -> tuple[object, ...]:
        """Recipe, experiment and environment: equal for groups that are compared."""
        return (self.recipe, self.experiment, *sorted(environment(self.runs[0]).items()))

    @property
    def title(self) -> str:
        """Experiment if known, environment, and recipe unless it is ``train``."""
        target = environment(self.runs[0]).get("env._target_", "environment")
        name = target.rpartition(".")[2]
        if self.recipe != "train":
            name = f"{name}, yamame {self.recipe}"
        return name if self.experiment is None else f"{self.experiment} ({name})"

    @property
    def num_changes(self) -> int:
        """Smallest number of overrides that change the experiment; 0 without a known command."""
        counts = []
        for command in self.commands:
            counts.append(sum(map(makes_another_experiment, command.overrides)))
        return min(counts, default=0)

    @property
    def expected(self) -> Expected | None:
        """Expected result of the experiment; None if the command or the recipe changes it."""
        # An expectation may be changed after the first runs.
        newest = max(self.runs, key=lambda run: run.started_ms)
        expected = Expected.from_params(newest.params)
        if self.num_changes == 0 and self.recipe == "train":
            return expected
        # A command line that changes the experiment may bring an expectation of its own.
        command = Command.of(newest)
        overrides = {} if command is None else command.overrides
        declares = any(is_one_of(key, ["expected"]) for key in overrides)
        return expected if declares else None

    @property
    def revisions(self) -> list[str]:
        """Revisions of the code, sorted."""
        return sorted({run.tags.get("mlflow.source.git.commit", "unknown") for run in self.runs})

    @property
    def started_ms(self) -> int:
        """Start of the first run, in milliseconds since 1970."""
        return min(run.started_ms for run in self.runs)


@dataclass(frozen=True)
class Section:
    """Groups of one recipe and environment; the first is the base of all comparisons."""

    groups: tuple[Group, ...]

    @property
    def base(self) -> Group:
        """Group that the others are compared with."""
        return self.groups[0]

    @property
    def title(self) -> str:
        """Title of the base."""
        return self.base.title

    @property
    def expected(self) -> Expected | None:
        """Expected result of the base; None without an expectation, as for an ablation."""
        return self.base.expected

    @property
    def details(self) -> str:
        """Settings of the environment as text."""
        texts = []
        for key, value in sorted(environment(self.base.runs[0]).items()):
            is_class = key.endswith(("_target_", "_partial_"))
            # A setting without a value describes nothing.
            if not is_class and value not in ("None", "{}"):
                texts.append(f"{key.removeprefix('env.')}={value}")
        return ", ".join(texts)

    @property
    def evaluated_on(self) -> str | None:
        """Description of the tasks of evaluations; None if no run recorded one."""
        texts = set()
        for group in self.groups:
            for run in group.runs:
                texts.add(run.tags.get("evaluated_on", ""))
        texts.discard("")
        return "; ".join(sorted(texts)) or None

    @property
    def evaluated_with(self) -> str | None:
        """Numbers of episodes and tasks of the last evaluations, and the unit of intervals."""
        texts = set()
        for group in self.groups:
            logged = group.metrics.last_of(
                ["eval/num_episodes", "eval/num_tasks", "eval/intervals_over_tasks"]
            )
            for episodes, tasks, over_tasks in logged.itertuples(index=False):
                if pd.isna(episodes):
                    continue
                text = described(int(episodes), None if pd.isna(tasks) else int(tasks))
                unit = "episodes" if pd.isna(over_tasks) or over_tasks == 0 else "tasks"
                texts.add(f"{text}, with intervals over {unit}")
        return "; ".join(sorted(texts)) or None


def make_sections(
    runs: Sequence[RunHistory], *, base: str | None = None
) -> tuple[list[Section], list[LeftOut]]:
    """Sort runs into sections and groups.

    A run counts if it has finished by itself and was evaluated. If several have equal settings and
    the same seed, the latest counts.

    Args:
        runs: Runs, oldest first.
        base: Name, or pattern of names, of runs of the base groups. None chooses in every section
            the group with the fewest overrides on its command line; among these the one that
            differs least from all others; then the first one.

    Returns:
        The sections, and the runs that do not count.

    Raises:
        UsageError: The pattern matches no run that counts.
    """
    left_out = []
    counted = []
    for run in runs:
        problem = _problem_of(run)
        if problem:
            run = replace(run, problem=problem)
        reason = _reason_not_to_count(run)
        if reason is None:
            counted.append(run)
        else:
            left_out.append(LeftOut(run, reason))

    rows = []
    for position, run in enumerate(counted):
        rows.append([position, identity(settings(run)), run.seed])
    table = pd.DataFrame(rows, columns=["position", "settings", "seed"])
    table["later"] = table.groupby(["settings", "seed"])["position"].shift(-1)
    superseded = table[table["later"].notna()].sort_values("later")
    for row in superseded.itertuples():
        later = counted[int(row.later)]
        reason = f"the later run {later.run_id} has its settings and its seed"
        left_out.append(LeftOut(counted[row.position], reason))

    # A group stays where its first run was, also if a later run supersedes that.
    sections: dict[tuple[object, ...], list[Group]] = {}
    is_base_named = False
    for _, members in table.groupby("settings", sort=False):
        latest = members.loc[members["later"].isna(), "position"]
        group_runs = [counted[position] for position in latest]
        group_runs.sort(key=lambda run: (len(run.seed), run.seed))  # "10" follows "9"
        group = Group("", "", tuple(group_runs))
        is_base_named = is_base_named or _is_named(group, base)
        # Only groups of one recipe, experiment and environment are compared.
        sections.setdefault(group.section_key, []).append(group)

    if base is not None and not is_base_named:
        raise SettingError("base", base, "match the name of a run that counts")
    return [_section(groups, base) for groups in sections.values()], left_out


def _problem_of(run: RunHistory) -> str:
    """Return the reason why a run cannot be read; empty for a good run.

    Everything that the report derives from a single run is derived here once, so that a malformed
    run is left out instead of ending the report.
    """
    if run.problem:
        return run.problem
    group = Group("", "", (run,))
    section = Section((group,))
    try:
        _ = (group.section_key, group.title, group.command, group.expected)
        _ = (group.metrics.costs(), section.details, section.evaluated_with, run.folder)
    except Exception as error:
        return one_line(error)
    return ""


def _reason_not_to_count(run: RunHistory) -> str | None:
    if run.problem:
        return f"it cannot be read: {run.problem}"
    if run.status == "RUNNING":
        return "it has not ended"
    if run.status != "FINISHED":
        return f"it ended as {run.status}"
    if not any(name.startswith("eval/") for name in run.metrics):
        return "it was never evaluated"
    return None


def _is_named(group: Group, pattern: str | None) -> bool:
    if pattern is None:
        return False
    return any(is_named(run.name, pattern) for run in group.runs)


def _section(groups: list[Group], base: str | None) -> Section:
    def rank(group: Group) -> tuple[bool, int, int, int]:
        distance = 0
        for other in groups:
            distance += len(differences(group.settings, other.settings))
        # False sorts before True.
        return (not _is_named(group, base), group.num_changes, distance, group.started_ms)

    first = min(groups, key=rank)
    others = [group for group in groups if group is not first]
    others.sort(key=lambda group: group.started_ms)

    labels = _labels(first, others)
    named = []
    for index, group in enumerate([first, *others]):
        letter = _letter(index)
        label = labels[index]
        if labels.count(label) > 1:
            label = f"{label} ({letter})"
        named.append(replace(group, letter=letter, label=label))
    return Section(tuple(named))


def _labels(base: Group, others: list[Group]) -> list[str]:
    """Return the overrides that distinguish each group, the base first; they may be equal."""
    if not others:
        return [base.override("encoder") if "encoder._target_" in base.settings else "all runs"]
    labels = []
    varying = set()
    for other in others:
        overrides = []
        for difference in differences(base.settings, other.settings):
            varying.add(difference.parameter)
            overrides.append(other.override(difference.parameter))
        labels.append(" ".join(overrides))
    # The base has a label of its own only if all groups differ in one parameter.
    of_base = base.override(varying.pop()) if len(varying) == 1 else "base"
    return [of_base, *labels]


def _letter(index: int) -> str:
    """Return A to Z, then AA, AB, ...

    >>> _letter(0), _letter(25), _letter(26)
    ('A', 'Z', 'AA')
    """
    rest, last = divmod(index, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_uppercase[last]
