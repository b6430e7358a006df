"""One HTML page of a report that needs nothing else: style and images are inside it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources

from yamame.runs.report import markup
from yamame.runs.report.content import Content, SectionResult, describe
from yamame.runs.report.groups import Group, LeftOut
from yamame.runs.report.markup import count, interval, number, table, text
from yamame.runs.report.pictures import Plot, first_frame
from yamame.runs.report.tables import ablations, final, key, results
from yamame.runs.report.verdicts import UNKNOWN, Verdict

LARGEST_FILM = 3_000_000
"""Bytes up to which a film is inside the page; a larger one lies beside it."""
_SIGNS = {"reached": "✓", "below": "▼", "above": "▲", UNKNOWN: "?"}
Images = Mapping[str, Mapping[str, bytes]]


def render(content: Content, images: Images) -> str:
    """The page.

    Args:
        content: What it says.
        images: Name of a plot to theme (``light``, ``dark``) to PNG.
    """
    style = resources.files("yamame.runs.report").joinpath("page.css").read_text("utf-8")
    sections = "".join(
        _section(number_, result, images, content.resampling.confidence)
        for number_, result in enumerate(content.sections, start=1)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Report of runs</title>\n<style>\n{style}</style></head>\n<body>\n"
        f"<header><h1>Report of runs</h1>\n{_summary(content)}</header>\n<main>\n{sections}"
        f"{_left_out(content.left_out)}{_notes(content)}</main>\n</body></html>\n"
    )


def _summary(content: Content) -> str:
    rows = []
    for index, result in enumerate(content.sections, start=1):
        ours = result.results[0].finals[result.metric]
        rows.append(
            [
                f'<a href="#section-{index}">{text(result.section.title)}</a>',
                text(len(result.results)),
                final(ours, result.section.base),
                _word(result.verdict),
            ]
        )
    rows += [
        [text(verdict.section), "0", markup.cell(markup.DASH, "no run counts"), _word(verdict)]
        for verdict in content.unmeasured
    ]
    headers = ["experiment", "groups", "base group", "verdict"]
    return _counted(content) + (table("Every experiment, by its base group", headers, rows) if rows else "")


def _counted(content: Content) -> str:
    runs = [run for result in content.sections for entry in result.results for run in entry.group.runs]
    if not runs:
        return "<p>No run can be counted; those that there are stand below with the reason.</p>\n"
    first, last = min(run.started_ms for run in runs), max(run.started_ms for run in runs)
    groups = sum(len(result.results) for result in content.sections)
    return (
        f"<p>{count(len(runs), 'run')} in {count(groups, 'group')}, started from {_day(first)} to {_day(last)} (UTC). "
        "Runs of one group differ in their seed alone.</p>\n"
    )


def _word(verdict: Verdict | None) -> str:
    if verdict is None:
        return '<span class="soft">nothing expected</span>'
    low_high = interval(verdict.expected.interval)
    return f'<span class="word {verdict.outcome}">{_SIGNS[verdict.outcome]} {verdict.outcome}</span>' + (
        f"<small>expected {text(low_high)}</small>"
    )


def _section(index: int, result: SectionResult, images: Images, confidence: float) -> str:
    parts = [
        f'<section aria-labelledby="section-{index}">\n<h2 id="section-{index}">{text(result.section.title)}</h2>\n',
        f'<p class="soft">{text(result.section.details)}</p>\n' if result.section.details else "",
        _verdict(result),
        f"<h3>Results</h3>\n{results(result, confidence)}",
        _figures("Learning curves", result.learning, images),
        _figures("In-context curve", result.trials, images),
        ablations(result, confidence),
        _films(index, result),
        _figures("Training", result.training, images, folded=True),
        f"<h3>How to repeat it</h3>\n{''.join(_repeat(entry.group, i) for i, entry in enumerate(result.results))}",
    ]
    return "".join(parts) + "</section>\n"


def _verdict(result: SectionResult) -> str:
    verdict = result.verdict
    if verdict is None:
        return ""
    expected = verdict.expected
    place = {
        "reached": "inside",
        "below": "below",
        "above": "above",
        UNKNOWN: "unknown: no run measured it. It should lie in",
    }[verdict.outcome]
    value = (
        ""
        if verdict.mean is None
        else f" {number(verdict.mean)} (mean of {count(verdict.num_seeds, 'seed')})"
    )
    origin = f" Source: {text(expected.source)}." if expected.source else ""
    cpu_s, wall_s = (markup.seconds(result.results[0].costs[name]) for name in ("cpu_s", "wall_s"))
    cost = f" Cost: {cpu_s} CPU-s and {wall_s} wall-s per seed"
    cost += f", expected: {text(expected.cost)}." if expected.cost else "."
    return (
        f'<p class="verdict {verdict.outcome}"><strong>{_SIGNS[verdict.outcome]} {verdict.outcome.capitalize()}.'
        f"</strong> {text(describe(expected.metric).capitalize())}:{value} is {place} "
        f"{text(interval(expected.interval))}."
        f"{origin}{cost}</p>\n"
    )


def _figures(title: str, plots: list[Plot], images: Images, *, folded: bool = False) -> str:
    if not plots:
        return ""
    figures = "".join(f"<figure>{_plot(plot, images)}</figure>\n" for plot in plots)
    body = f'<div class="grid">\n{figures}</div>\n'
    if folded:
        summary = f"{count(len(plots), 'picture')} of what was logged while learning"
        body = f"<details><summary>{summary}</summary>{body}</details>"
    return f"<h3>{text(title)}</h3>\n{body}"


def _plot(plot: Plot, images: Images) -> str:
    light, dark = (markup.data_uri(images[plot.name][theme], "png") for theme in ("light", "dark"))
    return markup.picture(light, [("(prefers-color-scheme: dark)", dark)], plot.alt())


def _films(section: int, result: SectionResult) -> str:
    figures = []
    for index, entry in enumerate(result.results):
        if entry.film is None:
            continue
        content, seed = entry.film
        caption = f"{key(entry.group.letter, index)}{text(entry.group.label)}, seed {text(seed)}"
        if len(content) > LARGEST_FILM:
            name = film_name(section, entry.group)
            size = f"{len(content) / 1e6:.1f} MB"
            figures.append(
                f'<figure><figcaption>{caption}: <a href="{name}">film of {size}</a></figcaption></figure>\n'
            )
            continue
        still = first_frame(content)
        media = [("(prefers-reduced-motion: reduce)", markup.data_uri(still, "png"))] if still else []
        alt = f"Film of the trained agent of group {entry.group.letter} on held-out tasks"
        image = markup.picture(markup.data_uri(content, "gif"), media, alt)
        figures.append(f'<figure class="film">{image}<figcaption>{caption}</figcaption></figure>\n')
    if not figures:
        return ""
    body = f'<div class="grid">\n{"".join(figures)}</div>\n'
    summary = "Close to stop the films; each shows the seed with the best last evaluation"
    return f"<h3>Films</h3>\n<details open><summary>{summary}</summary>{body}</details>"


def film_name(section: int, group: Group) -> str:
    """Name of the file of a film."""
    return f"section-{section}-film-{group.letter}.gif"


def _repeat(group: Group, index: int) -> str:
    command = group.command
    shown = (
        f"<pre><code>{text(command)}</code></pre>\n"
        if command
        else "<p>The command was not recorded; the whole configuration is the artifact config.yaml of each run.</p>\n"
    )
    revisions = sorted({run.tags.get("mlflow.source.git.commit", "unknown") for run in group.runs})
    warning = " The runs are of different revisions." if len(revisions) > 1 else ""
    runs = "".join(
        f"<li>seed {text(run.seed)}: {text(run.name)} <code>{text(run.run_id)}</code></li>"
        for run in group.runs
    )
    return (
        f'<div class="repeat">{key(group.letter, index)}{text(group.label)}\n{shown}'
        f"<details><summary>Runs and revision</summary><p>Revision {text(', '.join(revisions))}.{warning}</p>"
        f"<ul>{runs}</ul></details></div>\n"
    )


def _left_out(entries: list[LeftOut]) -> str:
    if not entries:
        return ""
    rows = [
        [
            text(entry.run.name),
            text(entry.run.seed),
            text(_day(entry.run.started_ms)),
            f"<code>{text(entry.run.run_id)}</code>",
            text(entry.reason),
        ]
        for entry in entries
    ]
    headers = ["run", "seed", "started (UTC)", "id", "not counted because"]
    body = table("No number above comes from them", headers, rows)
    return f"<section>\n<h2>Runs that are not counted</h2>\n{body}</section>\n"


def _notes(content: Content) -> str:
    resampling = content.resampling
    return (
        "<section>\n<h2>How to read this</h2>\n"
        "<p>An interval over seeds is a percentile bootstrap of the mean over whole runs "
        f"({resampling.confidence:.0%}, {resampling.num_resamples:,} resamples). With few seeds it is narrower than "
        "it says; n is their number. With one seed there is none, and the band of a curve is the interval over its "
        "episodes. An interval over episodes says how well the held-out tasks of these runs were measured, nothing "
        "of other seeds.</p>\n"
        "<p>A thick line is the mean of the runs of a group where all of them are known, thin lines are the runs. "
        "CPU seconds count all processes of a run; both kinds of seconds depend on the machine and what else it "
        "did.</p>\n<p>The in-context curve averages every trial over the episodes that had it.</p>\n"
        "<p>A verdict compares the mean of the base group with the interval that the experiment declares, where that "
        "group is the experiment as written: nothing is expected of one whose command changes it.</p>\n</section>\n"
    )


def _day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")
