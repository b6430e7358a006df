"""What is new to an agent in the tasks of an evaluation, and whether the data it learns from spoil that."""

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torchrl.envs import EnvBase

from yamame import ranks
from yamame.cli.nodes import plain, target_of
from yamame.cli.validation import parameters_of
from yamame.failures import tell_aside
from yamame.replay.disk.files import read_manifests
from yamame.runs.earlier import complete_env

NOTHING = "new seeds; training may meet the same tasks"
"""What is said of evaluations of which nothing else is known to be new."""
IN_DATA, RELABELLED = "unless its data have met them", "unless relabelling has met them"
_SETTINGS = ("split", "split_by")


def what_is_new(
    cfg: DictConfig,
    env: EnvBase,
    *,
    trained: Mapping[str, Any] | None = None,
    replay: Path | None = None,
    is_older: bool = False,
) -> str:
    """What is new in the tasks of an evaluation to an agent trained on those of training, in a few words.

    An environment says it in its attribute ``novelty``, a text such as ``"new mazes"`` (`yamame_envs.ContextEnv`). That
    holds if training plays another side of its ``split``, told by the same ``split_by``.

    Args:
        cfg: The configuration; ``evaluation.env`` changes its environment in evaluations.
        env: The environment of the evaluation.
        trained: Settings of the environment in training, if they are not ``cfg.env``.
        replay: Folder of the trajectories of the run, if it is known.
        is_older: Whether a version began the run that did not reject held-out instructions when relabelling.
    """
    novelty = getattr(env, "novelty", None)
    played = plain(cfg.env) | plain(cfg.evaluation.env)
    trained = plain(cfg.env) if trained is None else trained
    known = parameters_of(target_of(cfg.env))
    (side, by), (other_side, other_by) = (
        [node.get(name, known[name].default) if name in known else None for name in _SETTINGS]
        for node in (trained, played)
    )
    is_apart = side is None or (side not in ("all", other_side) and by == other_by)
    if not isinstance(novelty, str) or not is_apart or other_splits(cfg):
        return NOTHING
    may_leak = "world_hash" in env.observation_spec.keys() and (is_older or lacks_worlds(replay, env))
    if may_leak and OmegaConf.select(cfg, "relabel.strategy") != "none":
        novelty = f"{novelty}, {RELABELLED}"
    return f"{novelty}, {IN_DATA}" if _is_of_unknown_tasks(cfg) else novelty


def lacks_worlds(replay: Path | None, env: EnvBase) -> bool:
    """Whether stored trajectories lack the hashes that ``env`` writes, as those of earlier versions do."""
    if replay is None or "world_hash" not in env.observation_spec.keys():
        return False
    try:
        manifests = read_manifests(replay)
    except ValueError:  # it holds something else
        return False
    stored = [name for (name, *_), *_ in manifests[0]["fields"]] if manifests else []
    return bool(stored) and "world_hash" not in stored


def tell_other_splits(cfg: DictConfig) -> None:
    """Prints one line if trajectories of other runs, that are learned from, are of another split."""
    if (others := other_splits(cfg)) and ranks.is_first():
        own = _text({name: cfg.env[name] for name in _SETTINGS if name in cfg.env})
        tell_aside(
            f"data: {'; '.join(others)}; this run has {own}, so what is learned from may hold tasks of its evaluations"
        )


def other_splits(cfg: DictConfig) -> list[str]:
    """The runs of ``data=runs`` that split the tasks of the same environment otherwise, with how they do."""
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
    """Whether nothing tells which tasks the data are of."""
    if _source(cfg) is None:
        return False
    found = list(_sources(cfg))
    env = cfg.env["_target_"]
    return not found or any(config is None or config["env"].get("_target_") != env for _, config in found)


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
    folders = [name for pattern in patterns for name in sorted(glob.glob(os.path.expanduser(pattern)))]
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
            return config if isinstance(config, dict) and isinstance(config.get("env"), dict) else None
    return None


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"env.{name}={value}" for name, value in settings.items())
