"""Differences between the sessions of a run.

A session is one process, from the start or a resume to its end. MLflow keeps the parameters of the
first session and the tags of the last. A run directory therefore has a file that describes every
session, so that a reader of the store can recognise a run whose sessions were all alike.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yamame.checks import UsageError
from yamame.files.atomic import read_json, write_json
from yamame.files.identity import LENGTH, is_a_setting, is_one_of

SESSIONS_FILE = "sessions.json"
_ABSENT = "none"


def note_session(
    directory: Path, made_by: Mapping[str, str], params: Mapping[str, Any], *, resumed: bool
) -> str:
    """Add a session to the file of a run directory.

    Args:
        directory: The run directory.
        made_by: Versions, machine and revision of this session.
        params: Flat configuration of this session.
        resumed: Whether there were sessions before.

    Returns:
        Differences between the sessions, each with all values in order; empty if they are alike.
    """
    session = dict(made_by)
    for key, value in params.items():
        # No number depends on other settings. A run that is extended is a run with that budget.
        if is_a_setting(key) and not is_one_of(key, LENGTH):
            session[key] = str(value)

    sessions = _read_sessions(directory / SESSIONS_FILE) if resumed else []
    if session not in sessions:
        sessions.append(session)
        write_json(directory / SESSIONS_FILE, {"sessions": sessions})

    if {} in sessions:
        return "unknown settings: an earlier version started the run and did not record them"

    names: set[str] = set()
    for each in sessions:
        names.update(each)
    changed = []
    for name in sorted(names):
        values: list[str] = []
        for each in sessions:
            value = str(each.get(name, _ABSENT))
            if value not in values:
                values.append(value)
        if len(values) > 1:
            changed.append(f"{name}: {' | '.join(values)}")
    return "; ".join(changed)


def _read_sessions(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return [{}]  # sessions of earlier versions left no file
    sessions = read_json(path).get("sessions")
    if not isinstance(sessions, list) or not all(isinstance(each, dict) for each in sessions):
        raise UsageError(
            f"{path} must hold a list of sessions, got {type(sessions).__name__}",
            remedy="delete the file",
        )
    return sessions
