"""Pictures of what diagnoses of memory found: recall density and probes.

A diagnosis is what recipes/evaluate.py writes with ``diagnose=``: of every name a mapping of
numbers and lists.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from yamame.evaluation.intervals import Array, Resampling
from yamame.report.figures import learning_curve
from yamame.report.groups import Group, Section
from yamame.report.plots import Plot, group_lines, mean_curve

FILE = "diagnosis.json"
"""The artifact of a run with its latest diagnosis."""


class Picture(NamedTuple):
    """What of a diagnosis is drawn: the lists ``x`` and ``y`` of its part."""

    diagnosis: str
    part: str
    x: str
    y: str
    title: str
    x_label: str
    y_label: str


_RECALL = ("lags", "density")
_RECALL_LABELS = ("steps before the decision", "share of the effect")
_PROBE = ("steps", "r2")
_PROBE_LABELS = ("timestep of the episode", "R²")
PICTURES = (
    Picture("recall", "all", *_RECALL, "recall density of all decisions", *_RECALL_LABELS),
    Picture("recall", "last", *_RECALL, "recall density of the last decision", *_RECALL_LABELS),
    Picture("probes", "context", *_PROBE, "hidden variables read from the context", *_PROBE_LABELS),
    Picture(
        "probes",
        "encoding",
        *_PROBE,
        "hidden variables read from the present timestep",
        *_PROBE_LABELS,
    ),
)


def line_of(found: Mapping[str, Any], picture: Picture) -> tuple[Array, Array] | None:
    """The points of a picture; None where a diagnosis has none."""
    part = found.get(picture.diagnosis, {}).get(picture.part)
    if not part or not part[picture.x]:
        return None
    return np.asarray(part[picture.x], float), np.asarray(part[picture.y], float)


def draw_memory(folder: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws ``recall.png`` and ``probes.png``, each with all lines of the runs that have them.

    Args:
        folder: Where the files go.
        runs: The diagnosis of every run by its name.
    """
    for name in dict.fromkeys(picture.diagnosis for picture in PICTURES):
        pictures = [picture for picture in PICTURES if picture.diagnosis == name]
        lines = {
            f"{run}: {picture.title}": line
            for run, found in runs.items()
            for picture in pictures
            if (line := line_of(found, picture)) is not None
        }
        if lines:
            labels = {"x_label": pictures[0].x_label, "y_label": pictures[0].y_label}
            learning_curve(folder / f"{name}.png", lines, **labels)


def memory_plots(
    section: Section,
    prefix: str,
    resampling: Resampling,
    artifact: Callable[[str, str], bytes | None],
) -> list[Plot]:
    """A plot per picture that any run of a section has, with a line per group."""
    found = {group.letter: _diagnoses(group, artifact) for group in section.groups}
    plots = []
    for picture in PICTURES:
        lines = (
            [line for one in found[group.letter] if (line := line_of(one, picture)) is not None]
            for group in section.groups
        )
        drawn = group_lines(section, (mean_curve(of_runs, resampling) for of_runs in lines))
        if drawn:
            name = f"{prefix}-{picture.diagnosis}-{picture.part}"
            plots.append(
                Plot(name, picture.title, picture.x_label, picture.y_label, drawn, whole=True)
            )
    return plots


def _diagnoses(group: Group, artifact: Callable[[str, str], bytes | None]) -> list[dict[str, Any]]:
    """Those of the runs that have one; a file of this name that is none counts for nothing."""
    found = []
    for run in group.runs:
        content = artifact(run.run_id, FILE)
        try:
            one = json.loads(content) if content is not None else None
        except ValueError:
            continue
        if isinstance(one, dict):
            found.append(one)
    return found
