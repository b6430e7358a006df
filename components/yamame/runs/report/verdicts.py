"""Whether experiments came out as expected."""

from collections.abc import Sequence
from typing import NamedTuple

from yamame.runs.expected import Expected
from yamame.runs.report.estimates import Resampling, final, less_is_better
from yamame.runs.report.groups import Group, LeftOut, Section

UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """What became of an experiment.

    Attributes:
        section: Title of the section.
        expected: What it should reach.
        outcome: ``reached``, ``below``, ``above``, or ``unknown`` where the metric was never measured.
        mean: Mean over the seeds of the base group; None where unknown.
        num_seeds: How many seeds that are.
    """

    section: str
    expected: Expected
    outcome: str
    mean: float | None
    num_seeds: int

    def __str__(self) -> str:
        low, high = self.expected.interval
        seeds = f"{self.num_seeds} seed{'' if self.num_seeds == 1 else 's'}"
        measured = "not measured" if self.mean is None else f"{self.mean:.4g}, {seeds}"
        return f"{self.section}: {self.outcome} ({self.expected.metric} {measured}; expected {low:.4g} to {high:.4g})"


def verdict(section: Section, resampling: Resampling) -> Verdict | None:
    """Judges the mean over seeds of the section's base group; None where nothing is expected."""
    expected = section.expected
    if expected is None:
        return None
    reached = final(section.base, expected.metric, resampling)
    if reached is None:
        return Verdict(section.title, expected, UNKNOWN, None, 0)
    outcome = expected.judge(reached.mean)
    return Verdict(section.title, expected, outcome, reached.mean, len(reached.values))


def unmeasured(sections: Sequence[Section], left_out: Sequence[LeftOut]) -> list[Verdict]:
    """Verdicts of the experiments of which runs were started, but none counts."""
    measured = {group.place for section in sections for group in section.groups if group.expected is not None}
    lost: dict[tuple[object, ...], Verdict] = {}
    for entry in left_out:
        group = Group("", "", (entry.run,))
        if group.place not in measured and group.expected is not None:
            lost[group.place] = Verdict(group.title, group.expected, UNKNOWN, None, 0)
    return list(lost.values())


def falls_short(verdicts: Sequence[Verdict]) -> bool:
    """Whether any experiment came out worse than expected, or was not measured at all."""
    return any(
        entry.outcome in ("above" if less_is_better(entry.expected.metric) else "below", UNKNOWN)
        for entry in verdicts
    )
