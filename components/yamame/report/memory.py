"""Pictures of diagnoses of memory: recall density and probes.

A diagnosis is written by recipes/evaluate.py with ``diagnose=``. It maps the name of each method to
numbers and lists.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from yamame.evaluation.intervals import Array, Resampling
from yamame.report.figures import learning_curve
from yamame.report.groups import Section
from yamame.report.plots import Plot, group_lines, mean_curve

FILE = "diagnosis.json"
"""Name of the artifact with the latest diagnosis of a run."""


class Picture(NamedTuple):
    """A picture of the lists ``x`` and ``y`` in a part of a diagnosis."""

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


def line_of(diagnosis: Mapping[str, Any], picture: Picture) -> tuple[Array, Array] | None:
    """Return the points of a picture; None if a diagnosis has none."""
    part = diagnosis.get(picture.diagnosis, {}).get(picture.part)
    # A diagnosis may be of recall alone, and a probe of too few episodes has no points.
    if not part or not part[picture.x]:
        return None
    x = np.asarray(part[picture.x], float)
    y = np.asarray(part[picture.y], float)
    return x, y


def check_diagnosis(diagnosis: object) -> None:
    """Check that every picture of a diagnosis can be drawn.

    Raises:
        ValueError: It is no mapping, or a list is missing or malformed.
    """
    if not isinstance(diagnosis, Mapping):
        raise ValueError("it must be a mapping")
    for picture in PICTURES:
        lists = f"{picture.diagnosis}.{picture.part} must have numbers {picture.x} and {picture.y}"
        try:
            line = line_of(diagnosis, picture)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(lists) from error
        if line is None:
            continue
        x, y = line
        if x.ndim != 1 or x.shape != y.shape:
            raise ValueError(f"{lists} of equal length, got shapes {x.shape} and {y.shape}")
        # Between points a line is interpolated, which takes ascending positions.
        if not np.isfinite(x).all() or not (np.diff(x) > 0).all():
            raise ValueError(f"{lists} with {picture.x} ascending")


def draw_memory(folder: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw ``recall.png`` and ``probes.png``, each with the lines of all runs.

    Args:
        folder: Folder of the files.
        runs: Name of a run to its diagnosis. A picture without a line is not written.
    """
    for name in ("recall", "probes"):
        pictures = [picture for picture in PICTURES if picture.diagnosis == name]
        lines = {}
        for run, diagnosis in runs.items():
            for picture in pictures:
                line = line_of(diagnosis, picture)
                if line is not None:
                    lines[f"{run}: {picture.title}"] = line
        if lines:
            labels = {"x_label": pictures[0].x_label, "y_label": pictures[0].y_label}
            learning_curve(folder / f"{name}.png", lines, **labels)


def memory_plots(
    section: Section,
    prefix: str,
    resampling: Resampling,
    diagnoses: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Plot]:
    """Return the plots of diagnoses, with one line per group.

    Args:
        section: The section.
        prefix: Beginning of the names of plots.
        resampling: Settings of intervals.
        diagnoses: Letter of a group to the diagnoses of its runs.
    """
    plots = []
    for picture in PICTURES:
        curves = []
        for group in section.groups:
            lines = []
            for diagnosis in diagnoses[group.letter]:
                line = line_of(diagnosis, picture)
                if line is not None:
                    lines.append(line)
            curves.append(mean_curve(lines, resampling))
        drawn = group_lines(section, curves)
        if drawn:
            name = f"{prefix}-{picture.diagnosis}-{picture.part}"
            plot = Plot(name, picture.title, picture.x_label, picture.y_label, drawn, whole=True)
            plots.append(plot)
    return plots
