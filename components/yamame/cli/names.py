"""The names of runs that are given none."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from yamame.files.identity import key_of, makes_another_name

_NAMED_AFTER = ("env", "encoder")
_LONGEST_NAME = 80


def run_name(cfg: DictConfig, hydra_config: Any = None) -> str:
    """The name a run is given, or one made of its recipe, its environment, encoder, other overrides
    and its seed.

    Equal command lines get equal names, different runs different ones: what is too long is cut, and
    then ends in a hash of all that was to stand there. Overrides that leave the run what it is (its
    budget, say) do not count.

    Args:
        cfg: The composed configuration.
        hydra_config: Hydra's own part of it; that of the run that Hydra is running when None.
    """
    if cfg.run.name:
        return str(cfg.run.name)
    hydra_config = HydraConfig.get() if hydra_config is None else hydra_config
    known = hydra_config.runtime.choices
    groups = [group for group in _NAMED_AFTER if group in known]
    overrides = [text for text in hydra_config.overrides.task if makes_another_name(key_of(text))]
    others = sorted(
        text for text in overrides if not text.startswith(tuple(f"{group}=" for group in groups))
    )
    prefix = "" if hydra_config.job.config_name == "train" else f"{hydra_config.job.config_name}-"
    return prefix + file_name(
        [*(str(known[group]) for group in groups), *others], end=f"-seed={cfg.seed}"
    )


def file_name(parts: Sequence[str], *, end: str = "") -> str:
    """Parts as one name of a file; what is too long is cut, and then ends in a hash of all of them.

    >>> file_name(["env=maze", "size=[9, 9]"], end="-seed=0")
    'env=maze-size=-9,-9--seed=0'
    """
    whole = "-".join(parts)
    name, end = (re.sub(r"[^A-Za-z0-9._=,+-]", "-", text) for text in (whole, end))
    if len(name + end) > _LONGEST_NAME:
        end = f"-{hashlib.sha256(whole.encode()).hexdigest()[:8]}{end}"
    return name[: _LONGEST_NAME - len(end)] + end
