"""The command line as people type it, before Hydra reads it.

Hydra reads ``=`` and ``,`` as parts of its own language and takes new keys only with a ``+``. Names
of runs and instructions have such signs in them, and the settings of an environment are known only
once a run was read.
"""

from collections.abc import Collection, Sequence
from typing import Any

_PLAYED_IN = ("env", "trials")
_NAMED: dict[str, Any] = {"texts": ("run.name",)}
EASED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("train", "offline", "ppo", "distill", "doctor"), _NAMED),
    "evaluate": {"texts": ("run", "against", "output", "diagnose_twin"), "below": _PLAYED_IN},
    "export": {"texts": ("run", "path")},
    "leaderboard": {"first": "suite", "texts": ("page", "overrides")},
    "play": {"texts": ("run", "instruction", "output"), "below": _PLAYED_IN},
    "probe": {"texts": ("probe.settings", "run.name")},
    "replay_batch": {"texts": ("bundle",)},
    "report": {"texts": ("runs", "base", "directory", "metric", "tables")},
    "reproduce": {"first": "reproduce", "texts": ("root", "overrides")},
    "sync": {"texts": ("run",)},
}
"""What `ease` is told, by the name of the main YAML file."""
_OPEN = ("'", '"', "{", "null", "???")


def ease(
    arguments: Sequence[str],
    *,
    texts: Collection[str] = (),
    below: Collection[str] = (),
    first: str | None = None,
) -> list[str]:
    """Quotes the values of some keys, lets keys be added below others, and takes a first word as
    the value of a key.

    Args:
        arguments: The command line.
        texts: Keys whose value is a text, or a list of texts in brackets. Not quoted in a sweep.
        below: Keys below which anything may be set.
        first: The key whose value the first argument is, where that has no key.

    >>> ease(["run=runs/seed=0", "env.size=13", "seed=1"], texts=["run"], below=["env"])
    ["run='runs/seed=0'", '++env.size=13', 'seed=1']
    >>> ease(["run=[a,b=1]"], texts=["run"])
    ["run=['a','b=1']"]
    >>> ease(["popgym", "tier=cpu"], first="suite")
    ['suite=popgym', 'tier=cpu']
    """
    if first and arguments and not arguments[0].startswith("-") and "=" not in arguments[0]:
        arguments = [f"{first}={arguments[0]}", *arguments[1:]]
    sweep = bool({"-m", "--multirun"} & set(arguments))
    eased = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.partition(".")[0] in below and "." in key:
            argument = f"++{argument}"
        elif equals and key in texts and not sweep:
            argument = f"{key}={_quoted(value)}"
        eased.append(argument)
    return eased


def _quoted(value: str) -> str:
    if value.startswith(_OPEN) or not value:
        return value
    if value.startswith("[") and value.endswith("]"):
        items = [item.strip() for item in value[1:-1].split(",")]
        return f"[{','.join(_quoted(item) for item in items if item)}]"
    escaped = value.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"'{escaped}'"
