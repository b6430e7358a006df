"""Artifacts of runs that a report shows: videos, and diagnoses of memory.

A file that cannot be read becomes a line of the report and does not end it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from yamame.report.groups import Group
from yamame.report.memory import FILE, check_diagnosis
from yamame.system.messages import one_line
from yamame.tracking.history import RunHistory

Artifact = Callable[[str, str], bytes | None]
"""Function of a run id and a name that returns the content of an artifact; None if missing."""
_VIDEO = "episodes.gif"
_GIF = (b"GIF87a", b"GIF89a")


class RunProblem(NamedTuple):
    """A run that counts, although some of its records cannot be read."""

    run: RunHistory
    text: str


class Video(NamedTuple):
    """A video (GIF) of the agent of one run, and the seed of that run."""

    content: bytes
    seed: str


def read_video(
    runs: Sequence[RunHistory], artifact: Artifact, problems: list[RunProblem]
) -> Video | None:
    """Return the video of the first run that has one.

    Args:
        runs: Runs, the best first.
        artifact: Reads artifacts.
        problems: A line is appended for each file that is no GIF.
    """
    for run in runs:
        content = artifact(run.run_id, _VIDEO)
        if content is None:
            continue
        # The page embeds it as an image; a browser would show another file as broken.
        if content.startswith(_GIF):
            return Video(content, run.seed)
        problems.append(RunProblem(run, f"{_VIDEO} is not a GIF"))
    return None


def read_diagnoses(
    group: Group, artifact: Artifact, problems: list[RunProblem]
) -> list[Mapping[str, Any]]:
    """Return the diagnoses of the runs of a group, of those that have one.

    Args:
        group: The group.
        artifact: Reads artifacts.
        problems: A line is appended for each file that is no diagnosis.
    """
    found = []
    for run in group.runs:
        content = artifact(run.run_id, FILE)
        if content is None:
            continue
        try:
            diagnosis = json.loads(content)
            check_diagnosis(diagnosis)
        except ValueError as error:  # also of JSON and of its encoding
            problems.append(RunProblem(run, f"{FILE} cannot be read: {one_line(error)}"))
        else:
            found.append(diagnosis)
    return found
