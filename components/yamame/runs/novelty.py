"""Novelty of an evaluation's tasks to an agent, and checks of the data that it learns from."""

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.cli.nodes import plain, target_of
from yamame.cli.validation import parameters_of
from yamame.files.config import flatten
from yamame.replay.disk.files import read_manifests
from yamame.runs.earlier import complete_env
from yamame.system.messages import print_stderr

NOTHING = "new seeds; training may meet the same tasks"
"""Text for evaluations in which nothing but seeds is known to be new."""
IN_DATA, RELABELLED = "unless its data have met them", "unless relabelling has met them"
_SETTINGS = ("split", "split_by")
_NO_TASKS = ("seed", "num_envs", "device", "workers")
"""Settings that do not change which tasks an environment has, nor how they are played."""


def what_is_new(
    cfg: DictConfig,
    env: EnvBase,
    *,
    trained: Mapping[str, Any] | None = None,
    trained_trials: Mapping[str, Any] | None = None,
    replay: Path | None = None,
    is_older: bool = False,
) -> str:
    """Describes in a few words what the tasks of an evaluation have that those of training lack.

    An environment says it in its attribute ``novelty``, a text such as ``"new mazes"``
    (`yamame_envs.ContextEnv`). The text holds if training plays another side of its ``split`` with
    the same ``split_by``, and all other settings are the same. With other settings (another size,
    more goals) they are named instead: what is known or new in such tasks depends on the
    environment.

    Args:
        cfg: The configuration; ``evaluation.env`` changes its environment in evaluations.
        env: The environment of the evaluation.
        trained: Settings of the environment in training, if they are not ``cfg.env``.
        trained_trials: Settings of repeated trials in training, if they are not ``cfg.trials``.
        replay: Folder of the trajectories of the run, if it is known.
        is_older: Whether a version began the run that did not reject held-out instructions when
            relabelling.
    """
    novelty = getattr(env, "novelty", None)
    trained = plain(cfg.env) if trained is None else trained
    changed = _changed_settings(cfg, "env", trained, _played(cfg))
    if trained_trials is not None:
        changed += _changed_settings(cfg, "trials", trained_trials, plain(cfg.trials))
    if changed:
        return f"another setting than in training: {', '.join(changed)}"
    if not isinstance(novelty, str) or not _is_apart(cfg, trained) or other_splits(cfg):
        return NOTHING
    may_leak = "world_hash" in env.observation_spec.keys() and (
        is_older or lacks_worlds(replay, env)
    )
    if may_leak and OmegaConf.select(cfg, "relabel.strategy") != "none":
        novelty = f"{novelty}, {RELABELLED}"
    return f"{novelty}, {IN_DATA}" if _is_of_unknown_tasks(cfg) else novelty


def _played(cfg: DictConfig) -> dict[str, Any]:
    """Settings of the environment in evaluations."""
    merged = OmegaConf.merge(
        OmegaConf.create(plain(cfg.env)), OmegaConf.create(plain(cfg.evaluation.env))
    )
    return plain(merged)


def _is_apart(cfg: DictConfig, trained: Mapping[str, Any]) -> bool:
    """Return whether evaluations play another side of the split than training; true of an
    environment without one.
    """
    known = parameters_of(target_of(cfg.env))
    (side, by), (other_side, other_by) = (
        [node.get(name, known[name].default) if name in known else None for name in _SETTINGS]
        for node in (trained, _played(cfg))
    )
    return side is None or (side not in ("all", other_side) and by == other_by)


def _changed_settings(
    cfg: DictConfig, part: str, trained: Mapping[str, Any], played: Mapping[str, Any]
) -> list[str]:
    """Names the settings of a part, ``env`` or ``trials``, that evaluations change, with both
    values.

    A setting that one side leaves to the class has the default of its constructor.
    """
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(target_of(cfg[part])).items()
        if parameter.default is not parameter.empty and name not in _NO_TASKS
    }
    # An empty mapping has no keys: settings.size=9 beside it is one change, not two.
    before, after = (
        {key: value for key, value in flatten({**defaults, **node}).items() if value != {}}
        for node in (trained, played)
    )
    texts = []
    for key in sorted(before.keys() | after.keys()):
        if key.split(".")[0] in (*_SETTINGS, *_NO_TASKS) or before.get(key) == after.get(key):
            continue
        was = f"trained with {before[key]}" if key in before else "not set in training"
        value = after.get(key, "(not set)")
        texts.append(f"{part}.{key}={value} ({was})")
    return texts


def lacks_worlds(replay: Path | None, env: EnvBase) -> bool:
    """Return whether stored trajectories lack the hashes that ``env`` writes, as those of earlier
    versions do.
    """
    if replay is None or "world_hash" not in env.observation_spec.keys():
        return False
    try:
        manifests = read_manifests(replay)
    except ValueError:  # it holds something else
        return False
    stored = [name for (name, *_), *_ in manifests[0]["fields"]] if manifests else []
    return bool(stored) and "world_hash" not in stored


def tell_other_splits(cfg: DictConfig) -> None:
    """Warns of data of other runs with another split, where evaluations are said to play new
    tasks.
    """
    own = plain(cfg.env)
    claims_new_tasks = _is_apart(cfg, own) and not _changed_settings(cfg, "env", own, _played(cfg))
    if not claims_new_tasks or not distributed.is_rank0():
        return
    if others := other_splits(cfg):
        split = _text({name: own[name] for name in _SETTINGS if name in own})
        print_stderr(
            f"data: {'; '.join(others)}; this run has {split}, so the training data may contain evaluation tasks"
        )


def other_splits(cfg: DictConfig) -> list[str]:
    """The runs of ``data=runs`` that split the tasks of the same environment otherwise, with how
    they do.
    """
    env, known, others = plain(cfg.env), parameters_of(target_of(cfg.env)), []
    for folder, config in _sources(cfg):
        if config is None or config["env"].get("_target_") != env["_target_"]:
            continue
        theirs = complete_env(config, known)
        split_all = env.get("split") == theirs.get("split") == "all"
        differing = [name for name in _SETTINGS if name in env and theirs.get(name) != env[name]]
        if differing and not split_all:
            others.append(f"{folder} has {_text({name: theirs.get(name) for name in differing})}")
    return others


def _is_of_unknown_tasks(cfg: DictConfig) -> bool:
    """Return whether the tasks of the data are unknown."""
    if _source(cfg) is None:
        return False
    found = list(_sources(cfg))
    env = cfg.env["_target_"]
    return not found or any(
        config is None or config["env"].get("_target_") != env for _, config in found
    )


def _source(cfg: DictConfig) -> Any:
    return OmegaConf.select(cfg, "data.source")


def _sources(cfg: DictConfig) -> list[tuple[str, dict[str, Any] | None]]:
    """The folders of ``data=runs``, each with the configuration of its run if that is there."""
    node = _source(cfg)
    source = None if node is None else plain(node)
    if source is None or source["_target_"] != "yamame.data.runs":
        return []
    paths = source["path"]
    patterns = [paths] if isinstance(paths, str) else paths or []
    folders = [
        name for pattern in patterns for name in sorted(glob.glob(os.path.expanduser(pattern)))
    ]
    return [(folder, _config_of(Path(folder))) for folder in folders]


def _config_of(folder: Path) -> dict[str, Any] | None:
    """The configuration of the run that a folder is, or is inside of."""
    folder = folder.absolute()
    for place in (folder, *list(folder.parents)[:2]):
        if (file := place / "config.yaml").is_file():
            try:
                config: Any = OmegaConf.to_container(
                    OmegaConf.load(file)
                )  # interpolations of a file are not resolved
            except Exception:  # whatever a damaged file makes the parser raise
                return None
            return (
                config if isinstance(config, dict) and isinstance(config.get("env"), dict) else None
            )
    return None


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"env.{name}={value}" for name, value in settings.items())
