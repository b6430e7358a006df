"""Whether experiments came out as expected."""

from typing import NamedTuple

from yamame.runs.expected import Expected
from yamame.runs.report.estimates import Resampling, final
from yamame.runs.report.groups import Section

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


def falls_short(verdicts: list[Verdict]) -> bool:
    """Whether any experiment stayed below, or was not measured at all."""
    return any(entry.outcome in ("below", UNKNOWN) for entry in verdicts)
