"""Settings by which runs are compared, named, resumed and grouped.

A name stands for the dotted key and for all keys below it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from yamame.checks import UsageError
from yamame.files.config import flatten

BOOKKEEPING = (
    *("run", "resume", "checkpoint", "replay.keep", "expected", "trust"),
    *("hydra", "launcher", "sweeper", "logger", "callbacks", "given"),
)
"""Settings of storage, logging and trust. No computed number depends on them.

``given`` has the values of settings as they were composed, where the configuration itself has what
was made of them (`computed`).
"""
LENGTH = ("budget",)
"""Settings of the end of a run."""
REPETITION = ("seed",)
"""Settings that differ between repetitions of a run."""
UNSEEN = (
    *("workers", "evaluation.video_frames", "evaluation.num_envs"),
    *("collector.num_workers", "collector.address"),
    *("collector.resources", "collector.timeout"),
)
"""Settings of processes and videos, which change neither learning nor measuring."""
TOLERANCE = ("env.bounds",)
"""Settings of values that would end a run, so that none has occurred before another is set."""
MACHINE = (
    *("device", "float32_matmul_precision", "packing", "encoder.checkpoint_layers"),
    *("encoder.compiled", "collector.compile_policy"),
    *("schedule.autocast", "schedule.cuda_graph", "schedule.compile"),
    *("collector.autocast", "collector.cuda_graph", "collector.compile"),
)
"""Settings of precision and speed: the same experiment with other rounding.

``encoder.compiled`` and ``collector.compile_policy`` are settings of earlier versions.
"""

_PRECISION = ("schedule.autocast", "collector.autocast")
_PROCESSES = "processes"
"""Entry of the configuration of a run in several processes, which is no setting."""

ADDED = {
    "float32_matmul_precision": "highest",
    "agent.probability_clip": None,
    "packing.row_multiple": 1,
    "packing.length_multiple": 1,
    "schedule.average_decay": None,
    "schedule.anneal_lr_from": None,
    "schedule.learning_starts_episodes": 0,
    "schedule.regulator": None,
    "schedule.batch_timesteps": None,
    "replay.held_out": 16,
    "exploration.anneal": 0.25,
    "timestep_encoder.images": "bytes",
    "encoder.expansion": 1,
    "encoder.positive": False,
    "encoder.memory_resolution": None,
    "schedule.compile": False,
    "collector.compile": False,
    "evaluation.in_budget": True,
    "env.split": "all",
    "env.observable": False,
    "env.split_by": "walls_and_goals",
    "env.position": True,
    "env.bounds": "raise",
}
"""Settings that earlier versions lacked, with the values that they behaved like.

``env.split_by`` and ``timestep_encoder.images`` depend on the environment, see `added`.
"""
_ANY_SPACE = ("Gym", "GymGoals")
"""Environments of this project whose observations may be of any space."""
AUTO_TIMESTEP_ENCODERS = (
    "yamame.timestep.make_timestep_encoder",
    "yamame.timestep.auto.make_timestep_encoder",
)
"""Classes with the setting ``timestep_encoder.images``."""
_ABSENT = "(absent)"
_SPLIT_BY = {
    "PackageDelivery": "roads_and_goals",
    "DarkKeyDoor": "rooms_and_starts",
    "MetaFrozenLake": "lakes_and_actions",
}


def added(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `ADDED` with the values of settings that depend on the environment.

    >>> added({"env": {"_target_": "yamame_envs.DarkKeyDoor"}})["env.split_by"]
    'rooms_and_starts'
    """
    env = flatten(config.get("env") or {})
    name = str(env.get("_target_")).rpartition(".")[2]
    split_by = _SPLIT_BY.get(name, ADDED["env.split_by"])
    if name == "MetaFrozenLake" and not env.get("hard"):
        split_by = "lakes"  # actions were never swapped
    values = {**ADDED, "env.split_by": split_by}
    is_own = str(env.get("_target_")).startswith("yamame_envs.")
    if is_own and name not in _ANY_SPACE:
        values["timestep_encoder.images"] = "all"  # all images are of bytes
    return values


def complete_timestep_encoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved configuration in which ``timestep_encoder.images`` is given.

    >>> node = {"_target_": "yamame.timestep.make_timestep_encoder"}
    >>> complete_timestep_encoder({"timestep_encoder": node})["timestep_encoder"]["images"]
    'bytes'
    """
    node = config.get("timestep_encoder")
    completed = dict(config)
    if isinstance(node, Mapping) and node.get("_target_") in AUTO_TIMESTEP_ENCODERS:
        images = added(config)["timestep_encoder.images"]
        completed["timestep_encoder"] = {"images": images, **node}
    return completed


def computed(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a configuration with the value that was computed for a setting.

    The composed value is kept below ``given``, so that a resumed run, whose configuration is
    composed again, is not mistaken for a different one.

    Args:
        config: Configuration in plain data.
        key: Dotted key of the setting, in a section.
        value: Computed value.

    >>> computed({"agent": {"gammas": "auto"}}, "agent.gammas", [0.9])
    {'agent': {'gammas': [0.9]}, 'given': {'agent': {'gammas': 'auto'}}}
    """
    section, _, name = key.partition(".")
    former = config[section][name]
    given = dict(config.get("given") or {})
    given[section] = {**given.get(section, {}), name: former}
    return {**config, section: {**config[section], name: value}, "given": given}


def is_one_of(key: str, names: Sequence[str]) -> bool:
    """Return whether a key is one of some names, or below one.

    >>> [is_one_of(key, ["run", "budget"]) for key in ("run", "run.name", "runs")]
    [True, True, False]
    """
    return any(key == name or key.startswith(f"{name}.") for name in names)


def key_of(override: str) -> str:
    """Return the key that an override sets, adds or removes.

    >>> [key_of(text) for text in ("seed=1", "+ablation@_global_=no_memory", "~trials")]
    ['seed', 'ablation', 'trials']
    """
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def leaves_what_was_done(key: str) -> bool:
    """Return whether the results so far stay valid if a run continues with another value."""
    settings = BOOKKEEPING + LENGTH + UNSEEN + TOLERANCE + MACHINE
    return is_one_of(key, settings) or "workers" in key.split(".")


def may_change_on_resume(key: str) -> bool:
    """Return whether a run may be continued with another value."""
    return leaves_what_was_done(key) or is_one_of(key, ("evaluation",))


def makes_another_name(key: str) -> bool:
    """Return whether the generated name of a run contains the setting."""
    return not is_one_of(key, BOOKKEEPING + LENGTH + REPETITION + ("evaluation",))


def is_a_setting(key: str) -> bool:
    """Return whether a parameter may change learning or measuring, so that runs differ by it."""
    return not is_one_of(key, BOOKKEEPING + REPETITION + UNSEEN) and "workers" not in key.split(".")


def makes_another_experiment(key: str) -> bool:
    """Return whether another value makes another experiment, to which no verdict applies."""
    return is_a_setting(key) and not is_one_of(key, (*MACHINE, "experiment"))


def belongs_to_a_machine(key: str) -> bool:
    """Return whether a setting concerns precision or speed, so that only rounding depends on it."""
    return is_one_of(key, MACHINE)


def is_of_one_run(key: str) -> bool:
    """Return whether a setting belongs to a single run and is left out to repeat its command."""
    return is_one_of(key, ("resume", "run", *REPETITION))


def differing(
    saved: Mapping[str, Any], current: Mapping[str, Any], *, but_for: Callable[[str], bool]
) -> list[str]:
    """List the keys with different values, with both values.

    A part that one of the two lacks is a single change.

    Args:
        saved: Configuration of an earlier session, perhaps of an earlier version.
        current: Configuration of this session.
        but_for: Predicate of keys to ignore.

    >>> saved = {"seed": 1, "run": {"name": "a"}}
    >>> differing(saved, {"seed": 2, "run": {}}, but_for=may_change_on_resume)
    ['seed: 1 -> 2']
    >>> before = computed({"agent": {"gammas": "auto"}}, "agent.gammas", [0.9])
    >>> differing(before, {"agent": {"gammas": "auto"}}, but_for=may_change_on_resume)
    []
    >>> packing = {"_target_": "yamame.replay.SequencePacking", "row_multiple": 1}
    >>> differing({"packing": packing}, {"packing": None}, but_for=may_change_on_resume)
    []
    >>> differing({"packing": packing}, {"packing": None}, but_for=lambda key: False)
    ['packing: SequencePacking -> null']
    """
    all_after = flatten(current)
    all_before = flatten(saved)
    for key, value in added(saved).items():
        # A part that is None has no settings, so none of them was added to it.
        is_part_none = key.rpartition(".")[0] in all_before
        # The settings of a part that is a class stand below its key.
        target = f"{key}._target_"
        is_given = key in all_after or target in all_after
        if is_given and target not in all_before and not is_part_none:
            all_before.setdefault(key, value)
    for key, value in flatten(saved.get("given") or {}).items():
        if all_after.get(key) == value:
            all_before[key] = value
    before = _with_whole_parts(all_before, all_after)
    after = _with_whole_parts(all_after, all_before)

    changes = []
    for key in sorted(before.keys() | after.keys()):
        old = before.get(key, _ABSENT)
        new = after.get(key, _ABSENT)
        if old != new and not but_for(key):
            changes.append(f"{key}: {_format(old)} -> {_format(new)}")
    return changes


class _Part(str):
    """Name of a class, in place of all settings of its node."""


def _with_whole_parts(flat: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the settings of each node that is None in ``other`` by the name of its class."""
    settings = dict(flat)
    for key, value in other.items():
        target = flat.get(f"{key}._target_")
        if value is not None or target is None:
            continue
        for name in flat:
            if name.startswith(f"{key}."):
                settings.pop(name, None)
        settings[key] = _Part(str(target).rpartition(".")[2])
    return settings


def _format(value: Any) -> str:
    """Return a value as a message shows it."""
    if value is None:
        return "null"
    if isinstance(value, _Part):
        return str(value)
    return repr(value)


def compare_config(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that a run may continue with a configuration.

    Args:
        saved: The configuration of the checkpoint.
        current: The configuration of this process.

    Raises:
        UsageError: Some keys differ that must not. The message has both values of each.

    >>> compare_config({"seed": 1, "budget": {"minutes": 5}}, {"seed": 1, "budget": {"minutes": 9}})
    """
    others = differing(saved, current, but_for=may_change_on_resume)
    if not others:
        return
    # Precision may change, but the command that restores all defaults of the run restores it, too.
    precision = differing(saved, current, but_for=lambda key: not is_one_of(key, _PRECISION))

    # The default of a setting may have changed since the run began, so its former value is shown as
    # an override.
    former = added(saved) | flatten(saved)
    are_settings = [text.partition(":")[0] for text in others] != [_PROCESSES]
    remedies = ["give the former values"] if are_settings else []
    overrides = []
    for text in [*others, *precision]:
        key = text.partition(":")[0]
        if key == _PROCESSES or key not in former or f"{key}._target_" in former:
            continue
        value = former[key]
        if value is None:
            overrides.append(f"{key}=null")
        elif isinstance(value, str | int | float):
            overrides.append(f"{key}={value}")
        elif isinstance(value, list) and all(isinstance(item, int | float) for item in value):
            # Quoted, because brackets are patterns in some shells.
            overrides.append(f"'{key}=[{','.join(map(str, value))}]'")
    if overrides:
        remedies.append(" ".join(overrides))
    number = saved.get(_PROCESSES, 1)
    if number != current.get(_PROCESSES, 1):
        words = "without torchrun" if number == 1 else f"as {number} processes of torchrun or srun"
        remedies.append(f"start it {words}")
    remedies.append("or another run.name")
    message = f"a resumed run must keep its configuration, got {'; '.join(others)}"
    raise UsageError(message, key="resume", remedy=", ".join(remedies))
