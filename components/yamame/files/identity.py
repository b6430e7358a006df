"""What makes two runs the same: the one place that says which settings count, and for what.

Settings are told by their dotted keys; a name here stands for the key and for all below it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from yamame.checks import UsageError
from yamame.files.config import flatten

BOOKKEEPING = (
    *("run", "resume", "checkpoint", "replay.keep", "expected", "trust"),
    *("hydra", "launcher", "sweeper", "logger", "callbacks"),
)
"""Where a run is kept, how often, who is told of it, whom it trusts: nothing that it computes
depends on these.
"""
LENGTH = ("budget",)
"""When a run ends."""
REPETITION = ("seed",)
"""Which of several equal runs it is."""
UNSEEN = (
    *("workers", "evaluation.video_frames", "evaluation.num_envs"),
    *(f"collector.{key}" for key in ("num_workers", "address", "resources", "timeout")),
)
"""Who does the work and what is drawn as a video: neither what is learned nor how it is
measured.
"""
MACHINE = (
    *("device", "float32_matmul_precision", "packing", "encoder.checkpoint_layers"),
    *("encoder.compiled", "collector.compile_policy"),
    *(
        f"{part}.{key}"
        for part in ("schedule", "collector")
        for key in ("autocast", "cuda_graph", "compile")
    ),
)
"""How a machine computes, precision and speed: the same experiment to other bits. (Two are of
earlier versions.)
"""

ADDED = {
    "float32_matmul_precision": "highest",
    "packing.row_multiple": 1,
    "packing.length_multiple": 1,
    "schedule.average_decay": None,
    "schedule.compile": False,
    "collector.compile": False,
    "env.split": "all",
    "env.observable": False,
    "env.split_by": "walls_and_goals",
    "env.position": True,
}
"""Settings that earlier versions did not have, and what they did; of ``env.split_by`` see
`added`.
"""
_SPLIT_BY = {
    "PackageDelivery": "roads_and_goals",
    "DarkKeyDoor": "rooms_and_starts",
    "MetaFrozenLake": "lakes_and_actions",
}


def added(config: Mapping[str, Any]) -> dict[str, Any]:
    """`ADDED` with the value of ``env.split_by`` for the environment of a configuration.

    >>> added({"env": {"_target_": "yamame_envs.DarkKeyDoor"}})["env.split_by"]
    'rooms_and_starts'
    """
    env = flatten(config.get("env") or {})
    name = str(env.get("_target_")).rpartition(".")[2]
    split_by = _SPLIT_BY.get(name, ADDED["env.split_by"])
    if name == "MetaFrozenLake" and not env.get("hard"):  # actions were never swapped
        split_by = "lakes"
    return {**ADDED, "env.split_by": split_by}


def is_one_of(key: str, names: Sequence[str]) -> bool:
    """Whether a key is one of some names, or below one.

    >>> [is_one_of(key, ["run", "budget"]) for key in ("run", "run.name", "runs")]
    [True, True, False]
    """
    return any(key == name or key.startswith(f"{name}.") for name in names)


def key_of(override: str) -> str:
    """The key that an argument of a command line sets, adds or takes away.

    >>> [key_of(text) for text in ("seed=1", "+ablation@_global_=no_memory", "~trials")]
    ['seed', 'ablation', 'trials']
    """
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def leaves_what_was_done(key: str) -> bool:
    """Whether a run that continues with another value keeps its results so far."""
    return is_one_of(key, BOOKKEEPING + LENGTH + UNSEEN + MACHINE) or "workers" in key.split(".")


def may_change_on_resume(key: str) -> bool:
    """Whether a run may be continued with another value."""
    return leaves_what_was_done(key) or is_one_of(key, ("evaluation",))


def makes_another_name(key: str) -> bool:
    """Whether a run that is given no name shows the setting in the name that is made up for it."""
    return not is_one_of(key, BOOKKEEPING + LENGTH + REPETITION + ("evaluation",))


def is_a_setting(key: str) -> bool:
    """Whether a parameter may change what is learned or how it is measured, so that runs are
    compared by it.
    """
    return not is_one_of(key, BOOKKEEPING + REPETITION + UNSEEN) and "workers" not in key.split(".")


def makes_another_experiment(key: str) -> bool:
    """Whether an experiment with another value is no longer the one that was written, which a
    verdict is about.
    """
    return is_a_setting(key) and not is_one_of(key, (*MACHINE, "experiment"))


def belongs_to_a_machine(key: str) -> bool:
    """Whether a setting says how a machine computes, so that a run with another value does not
    reach the same bits.
    """
    return is_one_of(key, MACHINE)


def is_of_one_run(key: str) -> bool:
    """Whether a setting belongs to a single run, so that a command that repeats it does without."""
    return is_one_of(key, ("resume", "run", *REPETITION))


def differing(
    saved: Mapping[str, Any], current: Mapping[str, Any], *, but_for: Callable[[str], bool]
) -> list[str]:
    """Every key whose value is another one, with both values; a part that one of them lacks is one
    change.

    >>> differing({"seed": 1, "run": {"name": "a"}}, {"seed": 2, "run": {}}, but_for=may_change_on_resume)
    ['seed: 1 -> 2']
    >>> packing = {"_target_": "yamame.replay.SequencePacking", "row_multiple": 1}
    >>> differing({"packing": packing}, {"packing": None}, but_for=may_change_on_resume)
    []
    >>> differing({"packing": packing}, {"packing": None}, but_for=lambda key: False)
    ['packing: SequencePacking -> null']
    """
    after = flatten(current)
    before = flatten(saved)
    for key, value in added(saved).items():
        if (
            key in after and key.rpartition(".")[0] not in before
        ):  # a part that is None lacks no setting
            before.setdefault(key, value)
    before, after = _with_whole_parts(before, after), _with_whole_parts(after, before)
    absent = "(absent)"
    return [
        f"{key}: {_value(before.get(key, absent))} -> {_value(after.get(key, absent))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, absent) != after.get(key, absent) and not but_for(key)
    ]


class _Part(str):
    """The name of a class that stands for all settings of its node."""


def _with_whole_parts(flat: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which nodes that are None on the other side are one value: the name of their
    class.
    """
    kept = dict(flat)
    for key in [key for key, value in other.items() if value is None and f"{key}._target_" in flat]:
        kept = {name: value for name, value in kept.items() if not name.startswith(f"{key}.")}
        kept[key] = _Part(str(flat[f"{key}._target_"]).rpartition(".")[2])
    return kept


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, _Part) else repr(value)


def compare_config(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuses to continue a run under another configuration.

    Args:
        saved: The configuration of the checkpoint.
        current: The configuration of this process.

    Raises:
        UsageError: Names every key that differs and must not, with both values.

    >>> compare_config({"seed": 1, "budget": {"minutes": 5}}, {"seed": 1, "budget": {"minutes": 9}})
    """
    others = differing(saved, current, but_for=may_change_on_resume)
    if others:
        former = added(saved) | flatten(saved)
        # The default of a setting may have changed since the run began: these are values that
        # nobody has typed.
        values = {key: former.get(key) for key in (text.partition(":")[0] for text in others)}
        given = [
            f"{key}={value}"
            for key, value in values.items()
            if isinstance(value, str | int | float)
        ]
        raise UsageError(
            "compare_config: a resumed run must keep its configuration (give the former values"
            f"{', ' * bool(given)}{' '.join(given)}, or another run.name), got {'; '.join(others)}"
        )
