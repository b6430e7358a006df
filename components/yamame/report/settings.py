"""What distinguishes runs: their settings, the differences between two of them, the command that
started them.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import NamedTuple, Self

from yamame.files.identity import is_a_setting, is_of_one_run, is_one_of, key_of
from yamame.system.installed import conf_dir
from yamame.tracking.history import COMMAND_TAG, RunHistory

_ABSENT = "(absent)"
_TARGET = "._target_"


class Difference(NamedTuple):
    """A parameter with two values. A part that is another class altogether counts as one
    parameter.
    """

    parameter: str
    before: str
    after: str


def settings(run: RunHistory) -> dict[str, str]:
    """The parameters that make a run what it is; the seed is none of them.

    Parameters stay those that a run began with; the budget with which it was continued is in its
    tags.
    """
    budget = {key: value for key, value in run.tags.items() if key.startswith("budget.")}
    return {key: value for key, value in {**run.params, **budget}.items() if is_a_setting(key)}


def environment(run: RunHistory) -> dict[str, str]:
    """The settings of the environment that is played."""
    below = ("env", "trials", "evaluation.env")
    return {key: value for key, value in settings(run).items() if is_one_of(key, below)}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    """What differs between two settings, in alphabetical order.

    >>> before = {"encoder._target_": "a.Transformer", "encoder.num_heads": "8", "lr": "1"}
    >>> differences(before, {"encoder._target_": "a.GRU", "lr": "1"})
    [Difference(parameter='encoder', before='Transformer', after='GRU')]
    """
    differing = sorted(
        key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
    )
    replaced = sorted(key.removesuffix(_TARGET) for key in differing if key.endswith(_TARGET))
    result: dict[str, Difference] = {}
    for key in differing:
        part = next((name for name in replaced if is_one_of(key, [name])), key)
        values = [given.get(part + _TARGET, given.get(part, _ABSENT)) for given in (before, after)]
        if part in replaced:
            values = [choice_of(part, value) or value.rpartition(".")[2] for value in values]
        result[part] = Difference(part, *values)
    return [result[part] for part in sorted(result)]


@cache
def choice_of(part: str, target: str) -> str | None:
    """What chooses a class on the command line; None where no file of the configuration is of that
    class.

    >>> choice_of("encoder", "yamame.trajectory.GRUEncoder")
    'gru'
    """
    files = sorted(conf_dir().joinpath(*part.split(".")).glob("*.yaml"))
    return next(
        (file.stem for file in files if f"_target_: {target}" in file.read_text().splitlines()),
        None,
    )


def override(parameter: str, settings: Mapping[str, str], given: Mapping[str, str]) -> str:
    """What sets a parameter on the command line to its value in some settings; of a part, what was
    given there.

    >>> gru = {"encoder._target_": "yamame.trajectory.GRUEncoder"}
    >>> override("encoder", gru, {}), override("encoder", gru, {"encoder": "gru_selective"})
    ('encoder=gru', 'encoder=gru_selective')
    >>> override("encoder", {"encoder._target_": "mylab.Encoder"}, {}), override("lr", {}, {})
    ('encoder._target_=mylab.Encoder', '~lr')
    """
    target = settings.get(parameter + _TARGET)
    if target is None:
        value = settings.get(parameter)
        known = shlex.quote(f"{parameter}={'null' if value == 'None' else value}")
        return f"~{parameter}" if value is None else known
    group = parameter.replace(".", "/")
    choice = given.get(group) or choice_of(parameter, target)
    return f"{group}={choice}" if choice else f"{parameter}{_TARGET}={target}"


@dataclass(frozen=True)
class Command:
    """The command line that started a run, as words."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, run: RunHistory) -> Self | None:
        """That of a run; None where it was not recorded or is no command."""
        try:
            return (
                cls(tuple(shlex.split(run.tags[COMMAND_TAG]))) if COMMAND_TAG in run.tags else None
            )
        except ValueError:  # a quotation mark is not closed
            return None

    @property
    def overrides(self) -> dict[str, str]:
        """Key to value of what it sets or takes away."""
        given = (word for word in self.words if "=" in word or word[:1] == "~")
        return {key_of(word): word.partition("=")[2] for word in given}

    @property
    def recipe(self) -> str | None:
        """The recipe that it runs, as ``train``."""
        return next(
            (path.stem for word in self.words if (path := PurePath(word)).suffix == ".py"), None
        )

    def with_seeds(self, seeds: Sequence[str]) -> str:
        """The command line that repeats it once per seed."""
        kept = [
            word
            for word in self.words
            if word not in ("-m", "--multirun")
            and not ("=" in word and is_of_one_run(key_of(word)))
        ]
        if len(seeds) > 1:  # Hydra takes options in front of all overrides alone
            script = next((i for i, word in enumerate(kept) if word.endswith(".py")), 0)
            kept.insert(script + 1, "-m")
        return shlex.join([*kept, f"seed={','.join(seeds)}"])
