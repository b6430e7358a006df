"""Settings of runs, their differences, and the commands that started them."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import PurePath
from typing import NamedTuple, Self

from yamame.files.identity import is_a_setting, is_of_one_run, is_one_of, key_of
from yamame.system.installed import conf_dir
from yamame.tracking.history import COMMAND_TAG, RunHistory

_ABSENT = "(absent)"
_CONSOLE = "yamame"
_TARGET = "._target_"
# All runs have the same hundred keys, and a report asks a thousand times for each of them.
_is_a_setting = lru_cache(maxsize=10_000)(is_a_setting)


class Difference(NamedTuple):
    """A parameter with two values. A part of another class counts as one parameter."""

    parameter: str
    before: str
    after: str


def settings(run: RunHistory) -> dict[str, str]:
    """Return the parameters that affect the result of a run, without its seed."""
    values = dict(run.params)
    # Parameters stay those of the start. The budget of a resumed run is in its tags.
    for key, value in run.tags.items():
        if key.startswith("budget."):
            values[key] = value
    return {key: value for key, value in values.items() if _is_a_setting(key)}


def environment(run: RunHistory) -> dict[str, str]:
    """Return the settings of the environment."""
    below = ("env", "trials", "evaluation.env")
    return {key: value for key, value in settings(run).items() if is_one_of(key, below)}


def identity(values: Mapping[str, str]) -> str:
    """Return a short hash, equal for equal settings."""
    text = json.dumps(sorted(values.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    """Return the differences of two settings, in alphabetical order.

    >>> before = {"encoder._target_": "a.Transformer", "encoder.num_heads": "8", "lr": "1"}
    >>> differences(before, {"encoder._target_": "a.GRU", "lr": "1"})
    [Difference(parameter='encoder', before='Transformer', after='GRU')]
    """
    differing = []
    replaced = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        differing.append(key)
        if key.endswith(_TARGET):
            replaced.append(key.removesuffix(_TARGET))
    replaced.sort()  # an enclosing part precedes the parts in it

    result: dict[str, Difference] = {}
    for key in differing:
        part = _enclosing(key, replaced)
        if part is None:
            result[key] = Difference(key, before.get(key, _ABSENT), after.get(key, _ABSENT))
        else:
            # Arguments of two classes have nothing to do with each other.
            result[part] = Difference(part, _class_of(before, part), _class_of(after, part))
    return [result[part] for part in sorted(result)]


def _enclosing(key: str, parts: Sequence[str]) -> str | None:
    """Return the first of some parts that a key lies in."""
    for part in parts:
        if is_one_of(key, [part]):
            return part
    return None


def _class_of(values: Mapping[str, str], part: str) -> str:
    """Return the name of the class of a part, as on the command line if it has one there."""
    target = values.get(part + _TARGET)
    if target is None:
        target = values.get(part, _ABSENT)
    return choice_of(part, target) or target.rpartition(".")[2]


@cache
def choice_of(part: str, target: str) -> str | None:
    """Return the choice on the command line for a class; None if no configuration file has it.

    >>> choice_of("encoder", "yamame.trajectory.GRUEncoder")
    'gru'
    """
    folder = conf_dir().joinpath(*part.split("."))
    for file in sorted(folder.glob("*.yaml")):
        if f"_target_: {target}" in file.read_text().splitlines():
            return file.stem
    return None


def override(parameter: str, settings: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Return the command-line override that sets a parameter to its value in some settings.

    Args:
        parameter: A parameter, or a part with a class.
        settings: Settings with the value.
        given: Overrides of the command line; the choice of a part is taken from there.

    >>> gru = {"encoder._target_": "yamame.trajectory.GRUEncoder"}
    >>> override("encoder", gru, {}), override("encoder", gru, {"encoder": "gru_selective"})
    ('encoder=gru', 'encoder=gru_selective')
    >>> override("encoder", {"encoder._target_": "mylab.Encoder"}, {}), override("lr", {}, {})
    ('encoder._target_=mylab.Encoder', '~lr')
    """
    target = settings.get(parameter + _TARGET)
    if target is None:
        value = settings.get(parameter)
        if value is None:
            return f"~{parameter}"
        # Parameters are text; on the command line None is null.
        text = "null" if value == "None" else value
        return shlex.quote(f"{parameter}={text}")
    group = parameter.replace(".", "/")
    choice = given.get(group) or choice_of(parameter, target)
    return f"{group}={choice}" if choice else f"{parameter}{_TARGET}={target}"


@dataclass(frozen=True)
class Command:
    """The command line that started a run, as words."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, run: RunHistory) -> Self | None:
        """Return the command of a run; None if it was not recorded or is malformed."""
        text = run.tags.get(COMMAND_TAG)
        if text is None:
            return None
        try:
            return cls(tuple(shlex.split(text)))
        except ValueError:  # a quotation mark is not closed
            return None

    @property
    def overrides(self) -> dict[str, str]:
        """Keys that it sets or removes, with their values."""
        given = {}
        for word in self.words:
            if "=" in word or word.startswith("~"):
                given[key_of(word)] = word.partition("=")[2]
        return given

    @property
    def recipe(self) -> str | None:
        """Name of the recipe, such as ``train``."""
        script = self._script
        if script is not None:
            return PurePath(self.words[script]).stem
        is_console = self.words[:1] == (_CONSOLE,) and len(self.words) > 1
        return self.words[1] if is_console else None

    @property
    def _script(self) -> int | None:
        """Position of the script of the recipe; None without one."""
        for position, word in enumerate(self.words):
            if PurePath(word).suffix == ".py":
                return position
        return None

    def with_seeds(self, seeds: Sequence[str]) -> str:
        """Return a command line that repeats it once per seed, as of an installed package."""
        start = [_CONSOLE, self.recipe] if self.recipe is not None else []
        script = self._script
        given = self.words[len(start) if script is None else script + 1 :]
        words = []
        for word in given:
            is_multirun = word in ("-m", "--multirun")
            names_one_run = "=" in word and is_of_one_run(key_of(word))
            if not is_multirun and not names_one_run:
                words.append(word)
        if len(seeds) > 1:
            # Hydra takes options only in front of all overrides.
            words.insert(0, "-m")
        return shlex.join([*start, *words, f"seed={','.join(seeds)}"])
