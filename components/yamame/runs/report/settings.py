"""What distinguishes runs: their settings, the differences between two of them, the command that repeats them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from yamame.runs.report.history import RunHistory

COMMAND_TAG = "command"
"""Tag of a run with the command line that started it."""
NOT_A_SETTING = ("seed", "resume", "run", "logger", "hydra", "checkpoint", "expected", "workers")
"""Parameters, with all below them, that change neither what is learned nor how it is measured."""
_NOT_A_SETTING_EITHER = ("evaluation.film_frames", "evaluation.num_envs")
_OF_ONE_RUN = ("seed=", "resume=", "run.name=", "run.overwrite=", "run.root=")
_AS_WRITTEN = (
    *("seed=", "experiment=", "resume=", "run.", "logger", "checkpoint.", "expected", "device=", "workers."),
    *(f"{key}=" for key in _NOT_A_SETTING_EITHER),
    *(f"{part}.{key}=" for part in ("schedule", "collector") for key in ("autocast", "cuda_graph")),
)
"""How arguments begin that leave an experiment what it is: its names and places, and how a machine computes it."""
_MAY_CHANGE = "budget."
_TARGET = "._target_"
_ABSENT = "(absent)"


class Difference(NamedTuple):
    """A parameter with two values. A part that is another class altogether counts as one parameter."""

    parameter: str
    before: str
    after: str


def settings(run: RunHistory) -> dict[str, str]:
    """The parameters that make a run what it is; the seed is none of them.

    Parameters stay those that a run began with; the budget with which it was continued is in its tags.
    """
    budget = {key: value for key, value in run.tags.items() if key.startswith(_MAY_CHANGE)}
    return {
        key: value
        for key, value in {**run.params, **budget}.items()
        if key.split(".")[0] not in NOT_A_SETTING and key not in _NOT_A_SETTING_EITHER
    }


def environment(run: RunHistory) -> dict[str, str]:
    """The settings of the environment that is played."""
    below = ("env.", "trials.", "evaluation.env")
    return {key: value for key, value in settings(run).items() if key.startswith(below)}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    """What differs between two settings, in alphabetical order.

    >>> before = {"encoder._target_": "a.Transformer", "encoder.num_heads": "8", "lr": "1"}
    >>> differences(before, {"encoder._target_": "a.GRU", "lr": "1"})
    [Difference(parameter='encoder', before='Transformer', after='GRU')]
    """
    differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    replaced = sorted(key.removesuffix(_TARGET) for key in differing if key.endswith(_TARGET))
    found: dict[str, Difference] = {}
    for key in sorted(differing):
        part = next((name for name in replaced if key == name or key.startswith(f"{name}.")), None)
        if part is None:
            found[key] = Difference(key, before.get(key, _ABSENT), after.get(key, _ABSENT))
        elif part not in found:
            found[part] = Difference(part, _kind(before, part), _kind(after, part))
    return [found[key] for key in sorted(found)]


def _kind(values: Mapping[str, str], part: str) -> str:
    target = values.get(part + _TARGET, values.get(part, _ABSENT))
    return target.rpartition(".")[2]


def experiment_of(run: RunHistory) -> str | None:
    """The choice of the group ``experiment`` on the command line, where that is known."""
    for argument in arguments_of(run) or ():
        name, _, value = argument.lstrip("+").partition("=")
        if name == "experiment":
            return value
    return None


def arguments_of(run: RunHistory) -> list[str] | None:
    """The command line of a run as words; None where it was not recorded."""
    try:
        return shlex.split(run.tags[COMMAND_TAG]) if COMMAND_TAG in run.tags else None
    except ValueError:  # a quotation mark is not closed: the tag is no command
        return None


def recipe_of(run: RunHistory) -> str | None:
    """The recipe that made a run, as ``train``, where that is known."""
    scripts = (PurePath(word) for word in arguments_of(run) or ())
    return next((path.stem for path in scripts if path.suffix == ".py"), None)


def num_overrides(run: RunHistory) -> int | None:
    """How many arguments of the command make another experiment of it; None where the command is not known."""
    arguments = arguments_of(run)
    if arguments is None:
        return None
    return sum(
        ("=" in word or word.startswith("~")) and not word.lstrip("+~").startswith(_AS_WRITTEN)
        for word in arguments
    )


def tells_what_to_expect(run: RunHistory) -> bool:
    """Whether the command itself says what should come out."""
    return any(word.lstrip("+").startswith("expected") for word in arguments_of(run) or ())


def command_for(runs: Sequence[RunHistory]) -> str | None:
    """A command that repeats runs that differ in their seed alone; None where the first one's is not known."""
    arguments = arguments_of(runs[0])
    if arguments is None:
        return None
    seeds = [run.seed for run in runs]
    kept = [
        word for word in arguments if word not in ("-m", "--multirun") and not word.startswith(_OF_ONE_RUN)
    ]
    return shlex.join([*kept, *(["-m"] if len(seeds) > 1 else []), f"seed={','.join(seeds)}"])
