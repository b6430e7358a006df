"""Names of runs whose name is not set."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from yamame.files.identity import key_of, makes_another_name

_NAMED_AFTER = ("env", "encoder")
_LONGEST_NAME = 80
_UNUSUAL = re.compile(r"[^A-Za-z0-9._=,+-]")


def run_name(cfg: DictConfig, hydra_config: Any = None) -> str:
    """Return the name of a run: the setting, or one made of recipe, environment, encoder, other
    overrides and seed.

    Equal command lines get equal names, and different runs different ones. Overrides that do not
    change the experiment, such as the budget, are left out.

    Args:
        cfg: The composed configuration.
        hydra_config: Hydra's own part of it; None: that of the run that Hydra is running.
    """
    if cfg.run.name:
        return str(cfg.run.name)
    if hydra_config is None:
        hydra_config = HydraConfig.get()
    chosen = hydra_config.runtime.choices
    # Not every recipe has both groups.
    groups = [group for group in _NAMED_AFTER if group in chosen]
    group_overrides = tuple(f"{group}=" for group in groups)

    others = []
    for text in hydra_config.overrides.task:
        if makes_another_name(key_of(text)) and not text.startswith(group_overrides):
            others.append(text)
    names = [str(chosen[group]) for group in groups]

    # Runs of `train` are the common ones; a prefix tells the others apart.
    recipe = hydra_config.job.config_name
    prefix = "" if recipe == "train" else f"{recipe}-"
    return prefix + file_name([*names, *sorted(others)], end=f"-seed={cfg.seed}")


def file_name(parts: Sequence[str], *, end: str = "") -> str:
    """Join texts to the name of a file. A long name is cut and ends in a hash of all of them.

    >>> file_name(["env=maze", "size=[9, 9]"], end="-seed=0")
    'env=maze-size=-9,-9--seed=0'
    """
    whole = "-".join(parts)
    name = _UNUSUAL.sub("-", whole)
    end = _UNUSUAL.sub("-", end)
    if len(name + end) > _LONGEST_NAME:
        # Different long names must not become the same one.
        digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
        end = f"-{digest}{end}"
    return name[: _LONGEST_NAME - len(end)] + end
