"""The tables of a page: what came out, and how groups compare with their base."""

from yamame.runs.report import markup
from yamame.runs.report.content import GroupResult, SectionResult, describe
from yamame.runs.report.estimates import Final, Passed, less_is_better
from yamame.runs.report.groups import Group
from yamame.runs.report.markup import cell, count, interval, number, table, text
from yamame.runs.report.pictures import COLOURS

_MOST_DIFFERENCES = 6


def key(letter: str, index: int) -> str:
    """The letter of a group on its colour."""
    return f'<span class="key" style="--key:var(--c{index % len(COLOURS["light"])})">{text(letter)}</span>'


def final(end: Final | None, group: Group) -> str:
    """A cell with the end of a metric and its intervals."""
    if end is None:
        return cell(markup.DASH, "no finite value")
    missing = len(group.runs) - len(end.values)
    seeds = f"{interval(end.over_seeds)} n={len(end.values)}" if end.over_seeds else f"n={len(end.values)}"
    episodes = f"episodes {interval(end.over_episodes)}" if end.over_episodes else ""
    lost = f"{missing} of {count(len(group.runs), 'seed')} without a finite value" if missing else ""
    return cell(number(end.mean), f"seeds {seeds}", episodes, lost)


def results(result: SectionResult, confidence: float) -> str:
    """What every group of a section reached, when and at what cost."""
    metrics = list(result.results[0].finals)
    shown = [metric for metric in metrics if any(entry.finals[metric] for entry in result.results)]
    headers = ["group", "seeds", "env steps", "CPU-s", "wall-s", *map(describe, shown)]
    side = "below" if less_is_better(result.metric) else "above"
    headers += [f"first evaluation at or {side}"] if result.results[0].passed else []
    rows = []
    for index, entry in enumerate(result.results):
        group, costs = entry.group, entry.costs
        rows.append(
            [
                key(group.letter, index) + text(group.label),
                cell(", ".join(run.seed for run in group.runs), f"n={len(group.runs)}"),
                text(number(costs["env_steps"])),
                *(text(markup.seconds(costs[name])) for name in ("cpu_s", "wall_s")),
                *(final(entry.finals[metric], group) for metric in shown),
                *(["".join(map(_passed, entry.passed))] if entry.passed else []),
            ]
        )
    caption = (
        "Last evaluation: mean over seeds, below it the interval over seeds and the one over episodes "
        f"({confidence:.0%}). Environment steps and seconds are means over seeds; first evaluations are medians over "
        f"seeds, thresholds are in {describe(result.metric)}."
    )
    return table(caption, headers, rows)


def _passed(entry: Passed) -> str:
    reached = f"{len(entry.env_steps)} of {count(entry.num_runs, 'seed')}"
    steps, cpu = entry.median()
    if not entry.env_steps:
        when = "never"
    elif steps == float("inf"):
        when = f"earliest {number(min(entry.env_steps))} steps"
    else:
        when = f"{number(steps)} steps" + (f", {markup.seconds(cpu)} CPU-s" if cpu < float("inf") else "")
    return f"<div>{text(f'{entry.threshold:.4g}')}: {text(when)}<small>{text(reached)}</small></div>"


def ablations(result: SectionResult, confidence: float) -> str:
    """Every group beside the base; empty where there is only one."""
    compared = [
        (index, entry) for index, entry in enumerate(result.results) if entry is not result.results[0]
    ]
    if not compared:
        return ""
    headers = ["group", "differs in", describe(result.metric), "difference to the base", "P(base is better)"]
    base = result.results[0]
    rows = [
        [
            key(base.group.letter, 0) + text(base.group.label),
            cell("the base"),
            final(base.finals[result.metric], base.group),
            *[cell(markup.DASH)] * 2,
        ]
    ]
    rows += [_ablation(index, entry, base, result.metric) for index, entry in compared]
    caption = (
        "Every group beside the base. P is the probability that a run of the base does better than one of the group"
        f"{' (less is better)' if less_is_better(result.metric) else ''}; 0.5 says nothing. "
        f"Intervals ({confidence:.0%}) resample runs."
    )
    return f"<h3>Ablations</h3>\n{table(caption, headers, rows)}"


def _ablation(index: int, entry: GroupResult, base: GroupResult, metric: str) -> list[str]:
    group, comparison = entry.group, entry.comparison
    name = key(group.letter, index) + text(group.label)
    value = final(entry.finals[metric], group)
    if comparison is None:
        return [name, cell(markup.DASH), value, cell(markup.DASH), cell(markup.DASH)]
    lines = [f"{item.parameter}: {item.before} → {item.after}" for item in comparison.differing]
    more = len(lines) - _MOST_DIFFERENCES
    differing = "<br>".join(map(text, lines[:_MOST_DIFFERENCES])) + (
        f"<small>and {more} more</small>" if more > 0 else ""
    )
    ours, theirs = entry.finals[metric], base.finals[metric]
    runs = f"n={len(theirs.values) if theirs else 0} and {len(ours.values) if ours else 0}"
    better, gap = comparison.base_better, comparison.difference
    return [
        name,
        differing,
        value,
        cell(markup.signed(gap.value), f"{interval(gap[1:])} {runs}"),
        cell(number(better.value), f"{interval(better[1:])} {runs}"),
    ]
