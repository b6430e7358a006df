"""The door to Hydra: one clear line for every mistake, and sweeps as nested runs.

A recipe is a function of the composed configuration, handed to `main`::

    def train(cfg: DictConfig) -> float: ...

    if __name__ == "__main__":
        main(train, config_name="train")

Nothing is written before the whole configuration was checked (`yamame.cli.nodes.check`). The main YAML file must keep
Hydra from writing anything itself, as conf/quiet.yaml does.
"""

import functools
import itertools
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from yamame import conf_dir
from yamame.checks import OutsideError, UsageError
from yamame.cli.explain import check_choices, explain, explain_outside
from yamame.cli.nodes import check
from yamame.cli.settings import SETTINGS
from yamame.cli.threads import share_threads
from yamame.files.identity import key_of, makes_another_name
from yamame.tracking.mlflow_store import check_store
from yamame.tracking.sweep import close_sweep
from yamame.training.signals import terminate_on_signal

_VERSION_BASE = "1.3"
_USAGE_STATUS, _OUTSIDE_STATUS = 2, 1
_LONGEST_NAME = 120


def main(
    task: Callable[[DictConfig], Any],
    *,
    config_name: str,
    config_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Runs a recipe from the command line.

    A mistake of the user (`UsageError`, or anything Hydra refuses) becomes one line on the standard error and
    exit status 2, before anything is written; the jobs of a sweep are all checked before the first one
    starts. SIGTERM raises `Terminated` inside the recipe. A failure of the outside world (``OSError``, `OutsideError`)
    becomes one line and exit status 1. Other errors keep their traceback.

    Args:
        task: The recipe.
        config_name: Name of the main YAML file, also shown before the message.
        config_dir: Directory of the YAML files; that of the package when None.
        settings: What settings may be, see `yamame.cli.settings`; those of the package's YAML files are known.
    """
    directory = str(Path(conf_dir() if config_dir is None else config_dir).resolve())
    if settings is None and config_dir is None:
        settings = SETTINGS.get(config_name)
    arguments = sys.argv[1:]

    def checked(cfg: DictConfig) -> Any:
        try:
            check(cfg, settings, typed=[key_of(text) for text in _overrides()])
            check_store(cfg)
            share_threads(num_jobs=_jobs_at_once())
            return task(cfg)
        except UsageError as error:
            # Inside Hydra: an Exception would get a second line, and would not end a sweep.
            _fail(config_name, str(error))
        except (OSError, OutsideError) as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:  # the other jobs go on
                raise
            _fail(config_name, explain_outside(error), status=_OUTSIDE_STATUS)

    functools.update_wrapper(checked, task)
    former = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
    try:
        check_choices(arguments, directory)
        _check_sweep(arguments, directory, config_name, settings)
        with terminate_on_signal():
            hydra.main(version_base=_VERSION_BASE, config_path=directory, config_name=config_name)(checked)()
    except (UsageError, HydraException, OmegaConfBaseException) as error:
        _fail(config_name, explain(error, directory, config_name, arguments))
    except (OSError, OutsideError) as error:
        _fail(config_name, explain_outside(error), status=_OUTSIDE_STATUS)
    finally:
        close_sweep(sys.exception())
        del os.environ["HYDRA_FULL_ERROR"]
        if former is not None:
            os.environ["HYDRA_FULL_ERROR"] = former


def tell(text: object, *, aside: bool = False) -> None:
    """Prints a line of the command's own output; ``aside``: on the standard error, where results do not go."""
    print(text, file=sys.stderr if aside else sys.stdout)


def _fail(name: str, message: str, *, status: int = _USAGE_STATUS) -> NoReturn:
    tell(f"{name}: {' '.join(message.split())}", aside=True)
    raise SystemExit(status)


def _check_sweep(
    arguments: Sequence[str], directory: str, config_name: str, settings: Mapping[str, Any] | None
) -> None:
    """Composes and checks every job of a sweep given on the command line."""
    if not {"-m", "--multirun"} & set(arguments):
        return
    overrides = OverridesParser.create().parse_overrides([text for text in arguments if text[:1] != "-"])
    choices = []
    for override in overrides:
        key = override.get_key_element()
        if override.is_sweep_override() and override.is_discrete_sweep():
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        elif not override.is_sweep_override():
            choices.append([f"{key}={override.get_value_element_as_str()}"])
    with initialize_config_dir(directory, version_base=_VERSION_BASE):
        for job in itertools.product(*choices):
            check(compose(config_name, overrides=list(job)), settings, typed=[key_of(text) for text in job])


def _overrides() -> list[str]:
    """The command line of the job that Hydra is running, as it was typed."""
    return OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)  # type: ignore[return-value]


def _jobs_at_once() -> int:
    """How many jobs of a sweep run at the same time: as many as a launcher with ``n_jobs`` is told, as joblib's."""
    hydra_config = HydraConfig.get()
    sweeps = hydra_config.mode is RunMode.MULTIRUN
    return int(hydra_config.launcher.get("n_jobs", 1)) if sweeps else 1


def run_name(*groups: str, seed: int) -> str:
    """A name for the run that Hydra is running: equal command lines get equal names, different runs different ones.

    Args:
        groups: Configuration groups whose choices begin the name.
        seed: Ends the name.

    Overrides of anything else stand in between, but for those that leave the run what it is (its budget, say).
    """
    hydra_config = HydraConfig.get()
    overrides = [text for text in _overrides() if makes_another_name(key_of(text))]
    others = sorted(text for text in overrides if not text.startswith(tuple(f"{group}=" for group in groups)))
    choices = [hydra_config.runtime.choices[group] for group in groups]
    name, end = (
        re.sub(r"[^A-Za-z0-9._=,+-]", "-", text) for text in ("-".join([*choices, *others]), f"-seed={seed}")
    )
    return name[: _LONGEST_NAME - len(end)] + end


def command() -> str:
    """The command line of the run that Hydra is running; in a sweep, of that job alone."""
    return shlex.join(["python", f"recipes/{HydraConfig.get().job.name}.py", *_overrides()])


def objective(value: float) -> float:
    """The number a sweep compares: 0 instead of NaN and infinities.

    >>> objective(0.75), objective(float("nan"))
    (0.75, 0.0)
    """
    return value if math.isfinite(value) else 0.0
