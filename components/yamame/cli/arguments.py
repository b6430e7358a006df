"""The command line before Hydra parses it.

Hydra parses ``=`` and ``,`` as parts of its own language and takes new keys only with a ``+``.
Names of runs and instructions have such characters in them, and the settings of an environment are
known only once a run was read.
"""

import re
import typing
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any

from yamame.cli.sections import LARGEST_INTEGER, Config, Section, Verbatim
from yamame.cli.validation import fields_of, is_section

_QUOTED_OR_NESTED = ("'", '"', "{", "null", "???")
"""Beginnings of values that Hydra parses as they are."""
_PLAIN = re.compile("(?!(?:true|false|null|inf|nan)$)[a-z_][a-z0-9_./-]*", re.IGNORECASE)
"""Texts that Hydra reads as such without quotes. Printed commands are easier to read without."""
_POWER = r"\d+(?:\.\d+)?e\+?\d{1,2}"
_POWERS = re.compile(rf"\[?{_POWER}(?:,{_POWER})*\]?", re.IGNORECASE)
"""Numbers such as 1e6, alone, in a list or in a sweep, which Hydra reads as floats."""


def ease(arguments: Sequence[str], model: type[Config] | None) -> list[str]:
    """Quote values that are taken as they are, add the plus of new keys, replace 1e6 by an integer,
    and take the first word as the value of a key.

    Args:
        arguments: The command line.
        model: Model of the settings, whose fields say which values and keys these are; None: the
            command line is returned as it is.

    >>> from yamame.cli.settings import EvaluateConfig, LeaderboardConfig, TrainConfig
    >>> ease(["run=runs/seed=0", "env.size=13", "seed=1"], EvaluateConfig)
    ["run='runs/seed=0'", '++env.size=13', 'seed=1']
    >>> ease(["env.size=13", "env.settings.speed=2"], TrainConfig)
    ['env.size=13', '++env.settings.speed=2']
    >>> ease(["run=[a,b=1,2]"], EvaluateConfig)
    ["run=[a,'b=1','2']"]
    >>> ease(["popgym", "tier=cpu"], LeaderboardConfig)
    ['suite=popgym', 'tier=cpu']
    >>> ease(["budget.updates=1e3", "replay.capacity=1.5e3,2e3", "optimizer.lr=1e-3"], TrainConfig)
    ['budget.updates=1000', 'replay.capacity=1500,2000', 'optimizer.lr=1e-3']
    """
    if model is None:
        return list(arguments)
    eased = list(arguments)
    # Only the very first argument can be meant: a later word may be the value of a flag.
    if model.first_word and eased and not eased[0].startswith("-") and "=" not in eased[0]:
        eased[0] = f"{model.first_word}={eased[0]}"
    # In a sweep, commas separate the values of several jobs.
    is_sweep = "-m" in eased or "--multirun" in eased
    verbatim = set() if is_sweep else set(verbatim_keys(model))
    for index, argument in enumerate(eased):
        key, equals, value = argument.partition("=")
        if _POWERS.fullmatch(value) and key not in verbatim:
            value = re.sub(_POWER, _integer, value, flags=re.IGNORECASE)
            eased[index] = argument = f"{key}={value}"
        is_open = any(key.startswith(f"{group}.") for group in model.open_keys)
        if equals and is_open:
            # Two plusses add a key or override it, whichever applies.
            eased[index] = f"++{argument}"
        elif equals and key in verbatim:
            eased[index] = f"{key}={_quoted(value)}"
    return eased


def _integer(number: re.Match[str]) -> str:
    value = Decimal(number.group())
    is_integer = value == int(value) and value <= LARGEST_INTEGER
    return str(int(value)) if is_integer else number.group()


def verbatim_keys(model: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of strings that are taken as they are.

    >>> from yamame.cli.settings import ProbeConfig
    >>> list(verbatim_keys(ProbeConfig))
    ['run.name', 'probe.settings']
    """
    for name, hint in fields_of(model).items():
        if is_section(hint):
            yield from verbatim_keys(hint, f"{prefix}{name}.")
        elif _is_verbatim(hint):
            yield f"{prefix}{name}"


def _is_verbatim(hint: Any) -> bool:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        return any(isinstance(each, Verbatim) for each in arguments)
    return any(_is_verbatim(each) for each in arguments)


def _quoted(value: str) -> str:
    """Return a value in quotes where it needs them; of a list in brackets, each item."""
    # Python's None is refused where the command line is checked, instead of taken as a name.
    if value.startswith(_QUOTED_OR_NESTED) or value in ("", "None"):
        return value
    if value.startswith("[") and value.endswith("]"):
        items = []
        for item in value[1:-1].split(","):
            if item.strip():
                items.append(_quoted(item.strip()))
        return f"[{','.join(items)}]"
    if _PLAIN.fullmatch(value):
        return value
    # A backslash before a quote escapes it in Hydra's grammar, so it must be doubled itself.
    escaped = value.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"'{escaped}'"
