"""Novelty of an evaluation's tasks to an agent, and checks of the data that it learns from."""

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.cli.nodes import plain, select, target_of
from yamame.cli.sections import AnyConfig
from yamame.cli.validation import parameters_of
from yamame.files.config import flatten
from yamame.files.paths import read_regular
from yamame.replay.disk.files import read_manifests
from yamame.runs.earlier import complete_env
from yamame.spaces.from_specs import env_attribute
from yamame.system.messages import print_stderr

NOTHING = "new seeds; training may meet the same tasks"
"""Text for evaluations in which nothing but seeds is known to be new."""
IN_DATA, RELABELLED = "unless its data have met them", "unless relabelling has met them"

_LARGEST_CONFIG = 2**22
"""Bytes of a configuration."""
_SPLIT = ("split", "split_by")
_NO_TASKS = ("seed", "num_envs", "device", "workers", "achieved")
"""Settings that change neither the tasks of an environment nor its rules."""


def what_is_new(
    cfg: AnyConfig,
    env: EnvBase,
    *,
    trained: Mapping[str, Any] | None = None,
    trained_trials: Mapping[str, Any] | None = None,
    replay: Path | None = None,
    is_older: bool = False,
) -> str:
    """Describe in a few words what is new in the tasks of an evaluation.

    The text is the attribute ``novelty`` of the environment, such as ``"new mazes"``
    (`yamame_envs.ContextEnv`), if training uses a different side of its ``split`` with the
    same ``split_by``, and all other settings are the same. Otherwise the settings that differ (a
    different size, more goals) are named: what is new in such tasks depends on the environment.

    Args:
        cfg: Composed configuration; ``evaluation.env`` changes its environment in evaluations.
        env: Environment of the evaluation.
        trained: Settings of the environment in training; None for those of ``cfg.env``.
        trained_trials: Settings of repeated trials in training; None for those of ``cfg.trials``.
        replay: Folder of the trajectories of the run, if it is known.
        is_older: Whether the run was begun by a version that did not reject held-out instructions
            when relabelling.
    """
    if trained is None:
        trained = plain(cfg.env)
    evaluated = _evaluated_env(cfg)
    changed = _changed_settings(cfg, "env", trained, evaluated)
    if trained_trials is not None:
        changed += _changed_settings(cfg, "trials", trained_trials, plain(cfg.trials))
    if changed:
        return f"another setting than in training: {', '.join(changed)}"

    novelty = env_attribute(env, "novelty")
    if not isinstance(novelty, str) or not _is_apart(cfg, trained) or other_splits(cfg):
        return NOTHING

    # Relabelled instructions are those of the split only if worlds are known by their hashes.
    has_worlds = "world_hash" in env.observation_spec.keys()
    lacks_hashes = is_older or lacks_worlds(replay, env)
    if has_worlds and lacks_hashes and select(cfg, "relabel.strategy") != "none":
        novelty = f"{novelty}, {RELABELLED}"
    if _has_unknown_data(cfg):
        novelty = f"{novelty}, {IN_DATA}"
    return novelty


def _evaluated_env(cfg: AnyConfig) -> dict[str, Any]:
    """Return the settings of the environment in evaluations."""
    env = OmegaConf.create(plain(cfg.env))
    changes = OmegaConf.create(plain(cfg.evaluation.env))
    return plain(OmegaConf.merge(env, changes))


def _is_apart(cfg: AnyConfig, trained: Mapping[str, Any]) -> bool:
    """Return whether evaluations and training use different sides of the split.

    An environment without a split has no tasks in common.
    """
    side, by = _split_of(cfg, trained)
    other_side, other_by = _split_of(cfg, _evaluated_env(cfg))
    if side is None:
        return True
    return side not in ("all", other_side) and by == other_by


def _split_of(cfg: AnyConfig, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return ``split`` and ``split_by``, with the defaults of the class; None if it has none."""
    parameters = parameters_of(target_of(cfg.env))
    values = []
    for name in _SPLIT:
        known = name in parameters
        values.append(settings.get(name, parameters[name].default) if known else None)
    return values[0], values[1]


def _changed_settings(
    cfg: AnyConfig, part: str, trained: Mapping[str, Any], evaluated: Mapping[str, Any]
) -> list[str]:
    """Name the settings of ``env`` or ``trials`` that evaluations change, with both values.

    A setting that only one side gives has the default of the constructor on the other side.
    """
    defaults = {}
    for name, parameter in parameters_of(target_of(select(cfg, part))).items():
        if parameter.default is not parameter.empty and name not in _NO_TASKS:
            defaults[name] = parameter.default
    before = _flat_settings({**defaults, **trained})
    after = _flat_settings({**defaults, **evaluated})

    texts = []
    for key in sorted(before.keys() | after.keys()):
        name = key.split(".")[0]
        was, value = before.get(key), after.get(key)
        # NaN does not equal itself.
        is_same = was == value or (was != was and value != value)
        if name in (*_SPLIT, *_NO_TASKS) or is_same:
            continue
        former = f"trained with {was}" if key in before else "not set in training"
        shown = value if key in after else "(not set)"
        texts.append(f"{part}.{key}={shown} ({former})")
    return texts


def _flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    # An empty mapping has no keys: settings.size=9 beside it is one change, not two.
    return {key: value for key, value in flatten(settings).items() if value != {}}


def lacks_worlds(replay: Path | None, env: EnvBase) -> bool:
    """Return whether stored trajectories lack the hashes of worlds that ``env`` writes.

    Earlier versions did not store them.
    """
    if replay is None or "world_hash" not in env.observation_spec.keys():
        return False
    try:
        manifests = read_manifests(replay)
    except ValueError:  # the folder holds something else
        return False
    if not manifests:
        return False
    stored = [name for (name, *_), *_ in manifests[0]["fields"]]
    return bool(stored) and "world_hash" not in stored


def warn_other_splits(cfg: AnyConfig) -> None:
    """Warn of data of runs with a different split, if evaluations are described as new tasks."""
    own = plain(cfg.env)
    is_same = not _changed_settings(cfg, "env", own, _evaluated_env(cfg))
    if not (is_same and _is_apart(cfg, own)) or not distributed.is_rank0():
        return
    others = other_splits(cfg)
    if others:
        split = _text({name: own[name] for name in _SPLIT if name in own})
        print_stderr(
            f"data: {'; '.join(others)}; this run has {split}, so the training data may contain "
            "evaluation tasks"
        )


def other_splits(cfg: AnyConfig) -> list[str]:
    """Describe the runs of ``data=runs`` whose split of the same environment differs."""
    env = plain(cfg.env)
    parameters = parameters_of(target_of(cfg.env))
    others = []
    for folder, config in _runs_of_data(cfg):
        if config is None or config["env"].get("_target_") != env["_target_"]:
            continue
        theirs = complete_env(config, parameters)
        # Where neither run holds tasks out, the way to split them does not matter.
        split_all = env.get("split") == theirs.get("split") == "all"
        differing = {}
        for name in _SPLIT:
            if name in env and theirs.get(name) != env[name]:
                differing[name] = theirs.get(name)
        if differing and not split_all:
            others.append(f"{folder} has {_text(differing)}")
    return others


def _has_unknown_data(cfg: AnyConfig) -> bool:
    """Return whether there are data whose tasks are unknown."""
    if select(cfg, "data.source") is None:
        return False
    runs = _runs_of_data(cfg)
    if not runs:
        return True
    target = cfg.env["_target_"]
    return any(config is None or config["env"].get("_target_") != target for _, config in runs)


def _runs_of_data(cfg: AnyConfig) -> list[tuple[str, dict[str, Any] | None]]:
    """Return the folders of ``data=runs``, with the configurations of their runs if they exist."""
    node = select(cfg, "data.source")
    if node is None:
        return []
    source = plain(node)
    if source["_target_"] != "yamame.data.runs":
        return []
    patterns = source["path"] or []
    if isinstance(patterns, str):
        patterns = [patterns]
    runs = []
    for pattern in patterns:
        for folder in sorted(glob.glob(os.path.expanduser(pattern))):
            runs.append((folder, _config_of(Path(folder))))
    return runs


def _config_of(folder: Path) -> dict[str, Any] | None:
    """Return the configuration of a run from its directory, or from a folder in it."""
    folder = folder.absolute()
    # Trajectories are in <run>/replay, with several ranks one level below.
    for directory in (folder, *list(folder.parents)[:2]):
        file = directory / "config.yaml"
        if not os.path.lexists(file):
            continue
        try:
            text = read_regular(file, most=_LARGEST_CONFIG).decode()
            # A few aliases of aliases would become billions of values; none is ever written.
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
                return None
            # Interpolations of a file stay as they are: they could read the environment.
            config: Any = OmegaConf.to_container(OmegaConf.create(text))
        except Exception:  # a damaged file makes the parser raise almost anything
            return None
        is_run = isinstance(config, dict) and isinstance(config.get("env"), dict)
        return config if is_run else None
    return None


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"env.{name}={value}" for name, value in settings.items())
