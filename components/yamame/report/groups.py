"""Which runs belong together: groups that differ in their seed alone, sections that share an
environment.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from yamame.checks import UsageError
from yamame.evaluation.result import described
from yamame.files.identity import is_one_of, makes_another_experiment
from yamame.report.expected import Expected
from yamame.report.settings import Command, differences, environment, override, settings
from yamame.tracking.history import RunHistory, is_named


class LeftOut(NamedTuple):
    """A run that no number of the report comes from, and why."""

    run: RunHistory
    reason: str


@dataclass(frozen=True)
class Group:
    """Runs of the same settings, one per seed, in the order of their seeds.

    Attributes:
        letter: Its short name in the section.
        label: What sets it apart from the other groups of the section.
        runs: At least one.
    """

    letter: str
    label: str
    runs: tuple[RunHistory, ...]

    @property
    def settings(self) -> dict[str, str]:
        """The settings that all its runs share."""
        return settings(self.runs[0])

    @property
    def commands(self) -> list[Command]:
        """The command lines of its runs, of those where it was recorded."""
        return [command for run in self.runs if (command := Command.of(run)) is not None]

    @property
    def command(self) -> str | None:
        """A command that repeats all its runs; None where that of the first one was not
        recorded.
        """
        first = Command.of(self.runs[0])
        return None if first is None else first.with_seeds([run.seed for run in self.runs])

    def override(self, parameter: str) -> str:
        """What sets a parameter to its value on the command line."""
        return override(
            parameter, self.settings, self.commands[0].overrides if self.commands else {}
        )

    @property
    def experiment(self) -> str | None:
        """The experiment that one of its runs was started as."""
        names = (command.overrides.get("experiment") for command in self.commands)
        return next((name for name in names if name is not None), None)

    @property
    def recipe(self) -> str:
        """The recipe that made it; ``train`` where that is not known."""
        return next(
            (command.recipe for command in self.commands if command.recipe is not None), "train"
        )

    @property
    def place(self) -> tuple[object, ...]:
        """What it shares with the groups that it is compared with: recipe, experiment and
        environment.
        """
        return (self.recipe, self.experiment, *sorted(environment(self.runs[0]).items()))

    @property
    def title(self) -> str:
        """Names the experiment where that is known, the environment, and the recipe unless it is
        ``train.py``.
        """
        name = environment(self.runs[0]).get("env._target_", "environment").rpartition(".")[2]
        name += "" if self.recipe == "train" else f", {self.recipe}.py"
        return name if self.experiment is None else f"{self.experiment} ({name})"

    @property
    def num_changes(self) -> int:
        """How many overrides make another experiment of it; 0 where no command is known."""
        return min(
            (sum(map(makes_another_experiment, each.overrides)) for each in self.commands),
            default=0,
        )

    @property
    def expected(self) -> Expected | None:
        """What is expected of it: what the experiment declares, unless command or recipe make
        another one of it.
        """
        newest = max(self.runs, key=lambda run: run.started_ms)
        command = Command.of(newest)
        as_written = self.num_changes == 0 and self.recipe == "train"
        itself_says = command is not None and any(
            is_one_of(key, ["expected"]) for key in command.overrides
        )
        return Expected.from_params(newest.params) if as_written or itself_says else None

    @property
    def revisions(self) -> list[str]:
        """The revisions of the code that made its runs."""
        return sorted({run.tags.get("mlflow.source.git.commit", "unknown") for run in self.runs})

    @property
    def started_ms(self) -> int:
        """When its first run began."""
        return min(run.started_ms for run in self.runs)


@dataclass(frozen=True)
class Section:
    """Groups of one recipe and environment; the first one is the base that the others are compared
    with.
    """

    groups: tuple[Group, ...]

    @property
    def base(self) -> Group:
        """The group that the others are compared with."""
        return self.groups[0]

    @property
    def title(self) -> str:
        """That of the base."""
        return self.base.title

    @property
    def expected(self) -> Expected | None:
        """What the base should reach; None where nothing is expected of it, as of an ablation."""
        return self.base.expected

    @property
    def details(self) -> str:
        """The settings of the environment, in words."""
        return ", ".join(
            f"{key.removeprefix('env.')}\u00a0{value}"
            for key, value in sorted(environment(self.base.runs[0]).items())
            if not key.endswith(("_target_", "_partial_")) and value not in ("None", "{}")
        )

    @property
    def evaluated_on(self) -> str | None:
        """What is new in the tasks of its evaluations; None where its runs do not tell."""
        told = (run.tags.get("evaluated_on") for group in self.groups for run in group.runs)
        return "; ".join(sorted({text for text in told if text})) or None

    @property
    def evaluated_with(self) -> str | None:
        """Numbers of episodes and tasks of its last evaluations, and the unit of their intervals,
        in words.
        """
        texts = set()
        for run in [run for group in self.groups for run in group.runs]:
            episodes, tasks = run.last("eval/num_episodes"), run.last("eval/num_tasks")
            if episodes is None:
                continue
            text = described(int(episodes), None if tasks is None else int(tasks))
            over_tasks = run.last("eval/intervals_over_tasks")
            texts.add(f"{text}, with intervals over {'tasks' if over_tasks else 'episodes'}")
        return "; ".join(sorted(texts)) or None


def make_sections(
    runs: Sequence[RunHistory], *, base: str | None = None
) -> tuple[list[Section], list[LeftOut]]:
    """Sorts runs into sections and groups; what cannot be counted is named.

    A run counts when it ended by itself and was evaluated. Of several with equal settings and seed
    the latest counts.

    Args:
        runs: Oldest first.
        base: Name, or pattern of names, of runs of the base groups. None chooses in every section
            the group with the fewest overrides on its command line, then the one that differs least
            from all others, then the first one.

    Raises:
        UsageError: The pattern matches no run that counts.
    """
    left_out = [LeftOut(run, reason) for run in runs if (reason := _why_not(run)) is not None]
    excluded = {entry.run.run_id for entry in left_out}
    grouped: dict[tuple[tuple[str, str], ...], dict[str, RunHistory]] = {}
    for run in (run for run in runs if run.run_id not in excluded):
        by_seed = grouped.setdefault(tuple(sorted(settings(run).items())), {})
        if run.seed in by_seed:
            reason = f"the later run {run.run_id} has its settings and its seed"
            left_out.append(LeftOut(by_seed[run.seed], reason))
        by_seed[run.seed] = run
    counted = [run for by_seed in grouped.values() for run in by_seed.values()]
    if base is not None and not any(is_named(run.name, base) for run in counted):
        raise UsageError(f"base: must match the name of a run that counts, got {base!r}")
    places: dict[tuple[object, ...], list[Group]] = {}
    for by_seed in grouped.values():
        group = Group(
            "", "", tuple(sorted(by_seed.values(), key=lambda run: (len(run.seed), run.seed)))
        )
        places.setdefault(group.place, []).append(group)
    return [_section(groups, base) for groups in places.values()], left_out


def _why_not(run: RunHistory) -> str | None:
    if run.status != "FINISHED":
        return "it has not ended" if run.status == "RUNNING" else f"it ended as {run.status}"
    if not any(name.startswith("eval/") for name in run.metrics):
        return "it was never evaluated"
    return None


def _section(groups: list[Group], base: str | None) -> Section:
    def rank(group: Group) -> tuple[bool, int, int, int]:
        distance = sum(len(differences(group.settings, other.settings)) for other in groups)
        chosen = base is not None and any(is_named(run.name, base) for run in group.runs)
        return (not chosen, group.num_changes, distance, group.started_ms)

    first = min(groups, key=rank)
    others = sorted(
        (group for group in groups if group is not first), key=lambda group: group.started_ms
    )
    labels = _labels(first, others)
    named = []
    for index, (group, label) in enumerate(zip([first, *others], labels, strict=True)):
        letter = _letter(index)
        unique = label if labels.count(label) == 1 else f"{label} ({letter})"
        named.append(replace(group, letter=letter, label=unique))
    return Section(tuple(named))


def _labels(base: Group, others: list[Group]) -> list[str]:
    """What sets every group apart, as overrides, the base first; two groups may have the same."""
    if not others:
        return [base.override("encoder") if "encoder._target_" in base.settings else "all runs"]
    apart = [
        [each.parameter for each in differences(base.settings, other.settings)] for other in others
    ]
    varying = {parameter for parameters in apart for parameter in parameters}
    theirs = [" ".join(map(other.override, own)) for other, own in zip(others, apart, strict=True)]
    return [base.override(varying.pop()) if len(varying) == 1 else "base", *theirs]


def _letter(index: int) -> str:
    """A to Z, then AA, AB, ...

    >>> _letter(0), _letter(25), _letter(26)
    ('A', 'Z', 'AA')
    """
    rest, last = divmod(index, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_uppercase[last]
