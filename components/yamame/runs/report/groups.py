"""Which runs belong together: groups that differ in their seed alone, sections that share an environment."""

import fnmatch
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from yamame.runs.errors import UsageError
from yamame.runs.expected import Expected
from yamame.runs.report import settings as of
from yamame.runs.report.history import RunHistory


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
        return of.settings(self.runs[0])

    @property
    def command(self) -> str | None:
        """A command that repeats it."""
        return of.command_for(self.runs)

    @property
    def experiment(self) -> str | None:
        """The experiment that one of its runs was started as."""
        return next((name for run in self.runs if (name := of.experiment_of(run)) is not None), None)

    @property
    def recipe(self) -> str:
        """The recipe that made it; ``train`` where that is not known."""
        return next((name for run in self.runs if (name := of.recipe_of(run)) is not None), "train")

    @property
    def place(self) -> tuple[object, ...]:
        """What it shares with the groups that it is compared with: recipe, experiment and environment."""
        return (self.recipe, self.experiment, *sorted(of.environment(self.runs[0]).items()))

    @property
    def title(self) -> str:
        """Names the experiment where that is known, the environment, and the recipe unless it is ``train.py``."""
        name = of.environment(self.runs[0]).get("env._target_", "environment").rpartition(".")[2]
        name += "" if self.recipe == "train" else f", {self.recipe}.py"
        return name if self.experiment is None else f"{self.experiment} ({name})"

    @property
    def num_overrides(self) -> int | None:
        """How far it is from the experiment as written; None where no command is known."""
        return min((n for run in self.runs if (n := of.num_overrides(run)) is not None), default=None)

    @property
    def expected(self) -> Expected | None:
        """What is expected of it: what the experiment declares, unless command or recipe make another one of it."""
        newest = max(self.runs, key=lambda run: run.started_ms)
        another = bool(self.num_overrides) or self.recipe != "train"
        if another and not of.tells_what_to_expect(newest):
            return None
        return Expected.from_params(newest.params)

    @property
    def started_ms(self) -> int:
        """When its first run began."""
        return min(run.started_ms for run in self.runs)


@dataclass(frozen=True)
class Section:
    """Groups of one recipe and environment; the first one is the base that the others are compared with.

    Attributes:
        title: That of the base.
        details: The settings of the environment, in words.
        groups: The base first.
        expected: What the base should reach; None where nothing is expected of it, as of an ablation.
    """

    title: str
    details: str
    groups: tuple[Group, ...]
    expected: Expected | None = None

    @property
    def base(self) -> Group:
        """The group that the others are compared with."""
        return self.groups[0]


def make_sections(
    runs: Sequence[RunHistory], *, base: str | None = None
) -> tuple[list[Section], list[LeftOut]]:
    """Sorts runs into sections and groups; what cannot be counted is named.

    A run counts when it ended by itself and was evaluated. Of several with equal settings and seed the latest counts.

    Args:
        runs: Oldest first.
        base: Name, or pattern of names, of runs of the base groups. None chooses in every section the group with the
            fewest overrides on its command line, then the one that differs least from all others, then the first one.

    Raises:
        UsageError: The pattern matches no run that counts.
    """
    left_out = [LeftOut(run, reason) for run in runs if (reason := _why_not(run)) is not None]
    excluded = {entry.run.run_id for entry in left_out}
    latest: dict[tuple[tuple[tuple[str, str], ...], str], RunHistory] = {}
    for run in (run for run in runs if run.run_id not in excluded):
        key = (tuple(sorted(of.settings(run).items())), run.seed)
        if key in latest:
            left_out.append(LeftOut(latest[key], f"the later run {run.run_id} has its settings and its seed"))
        latest[key] = run
    if base is not None and not any(_named(run, base) for run in latest.values()):
        raise UsageError(f"base: must match the name of a run that counts, got {base!r}")
    grouped: dict[tuple[tuple[str, str], ...], list[RunHistory]] = {}
    for (same, _), run in latest.items():
        grouped.setdefault(same, []).append(run)
    places: dict[tuple[object, ...], list[Group]] = {}
    for members in grouped.values():
        group = Group("", "", tuple(sorted(members, key=lambda run: (len(run.seed), run.seed))))
        places.setdefault(group.place, []).append(group)
    return [_section(groups, base) for groups in places.values()], left_out


def _why_not(run: RunHistory) -> str | None:
    if run.status != "FINISHED":
        return {"RUNNING": "it has not ended"}.get(run.status, f"it ended as {run.status}")
    if not any(name.startswith("eval/") for name in run.metrics):
        return "it was never evaluated"
    return None


def _named(run: RunHistory, pattern: str) -> bool:
    return run.name == pattern or fnmatch.fnmatchcase(run.name, pattern)


def _section(groups: list[Group], base: str | None) -> Section:
    first, *others = sorted(groups, key=lambda group: _rank(group, groups, base))
    others.sort(key=lambda group: group.started_ms)
    ordered = [
        replace(group, letter=_letter(index), label=label)
        for index, (group, label) in enumerate(zip([first, *others], _labels([first, *others]), strict=True))
    ]
    env = of.environment(first.runs[0])
    details = ", ".join(
        f"{key.removeprefix('env.')} {value}"
        for key, value in sorted(env.items())
        if not key.endswith(("_target_", "_partial_")) and value not in ("None", "{}")
    )
    return Section(first.title, details, tuple(ordered), first.expected)


def _rank(group: Group, groups: list[Group], base: str | None) -> tuple[bool, int, int, int]:
    distance = sum(len(of.differences(group.settings, other.settings)) for other in groups)
    chosen = base is not None and any(_named(run, base) for run in group.runs)
    return (not chosen, group.num_overrides or 0, distance, group.started_ms)


def _labels(groups: list[Group]) -> list[str]:
    """What sets every group apart, the base first."""
    base, *others = groups
    if not others:
        return [_kind_of(base)]
    apart = [of.differences(base.settings, other.settings) for other in others]
    varying = {difference.parameter: difference.before for found in apart for difference in found}
    own = [f"{parameter}={value}" for parameter, value in varying.items()]
    labels = [own[0] if len(own) == 1 else "base"]
    labels += [
        ", ".join(f"{difference.parameter}={difference.after}" for difference in found) for found in apart
    ]
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    return [
        f"{label} ({_letter(index)})" if label in repeated else label for index, label in enumerate(labels)
    ]


def _kind_of(group: Group) -> str:
    encoder = group.settings.get("encoder._target_", "")
    return f"encoder={encoder.rpartition('.')[2]}" if encoder else "all runs"


def _letter(index: int) -> str:
    """A to Z, then AA, AB, ...

    >>> _letter(0), _letter(25), _letter(26)
    ('A', 'Z', 'AA')
    """
    rest, last = divmod(index, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_uppercase[last]
