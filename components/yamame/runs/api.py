"""Recipes from Python: what the command line does, with values given back.

    run = yamame.train("env=tmaze", "encoder=gru", "budget.minutes=1", callbacks=[...])
    print(run.objective, run.path, run.progress.curve)
    print(yamame.evaluate(f"run={run.path}", "num_episodes=512")["score"])

Overrides are those of the command line. A sweep is a loop; a search by another library calls
`train` in its objective. Random numbers and Hydra belong to the process: calls from several threads
wait for each other, and the caller's generators are left as they were.
"""

import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import UsageError
from yamame.cli.app import make_ready
from yamame.cli.arguments import EASED, ease
from yamame.cli.command_line import read_command_line
from yamame.cli.explain import check_choices, explain
from yamame.cli.front import prepare_process
from yamame.cli.jobs import AlreadyDone
from yamame.cli.nodes import check
from yamame.cli.settings import SETTINGS
from yamame.files.identity import key_of
from yamame.runs.callbacks import Callback
from yamame.runs.run import Run
from yamame.runs.state import RunState
from yamame.system.installed import conf_dir, recipes_dir
from yamame.system.signals import Terminated
from yamame.training import GlobalRNGState

_PREFIX = "yamame.recipes"
_ALONE = threading.RLock()
"""Whoever composes and runs a recipe in this process has it."""


def compose(
    *overrides: str, recipe: str = "train", config_dir: str | Path | None = None
) -> DictConfig:
    """The configuration that a command line would give, checked as a run would check it.

    Args:
        overrides: As on the command line: ``"env=tmaze"``, ``"optimizer.lr=1e-4"``, ``"~trials"``.
        recipe: Which recipe's: the name of a file in ``recipes/``.
        config_dir: A directory of your own YAML files, which come before ours, as ``--config-dir``.

    Raises:
        UsageError: Names what is wrong, in one line.
    """
    with _composed(overrides, recipe, config_dir) as cfg:
        return cfg


def train(
    *overrides: str,
    callbacks: Sequence[Callback] = (),
    recipe: str = "train",
    config_dir: str | Path | None = None,
) -> Run:
    """Trains, as ``python recipes/<recipe>.py`` does.

    Args:
        overrides, config_dir: As for `compose`.
        callbacks: `yamame.Callback` objects that are told what happens.
        recipe: A recipe that trains: ``train``, ``offline``, ``ppo``, ``distill``.

    Returns:
        The `Run` that has ended: ``objective``, ``path``, ``summary``, ``progress.curve``,
        ``checkpoints.best``. With ``resume=auto`` and nothing left to do, the run as it was left.

    Raises:
        UsageError: What is wrong, before anything was written.
        KeyboardInterrupt: Ctrl-C or a signal has ended the run, in order; ``resume=true`` goes on.
    """
    kept = _Kept()
    with _composed(overrides, recipe, config_dir) as cfg:
        make_ready(cfg)
        try:
            load_recipe(recipe).train(cfg, callbacks=[*_listed(callbacks), kept])
        except AlreadyDone as done:
            return done.run
        except Terminated:
            raise KeyboardInterrupt from None
    return kept.run


def _listed(callbacks: Any) -> Sequence[Callback]:
    if isinstance(callbacks, list | tuple):
        return callbacks
    raise UsageError(
        f"callbacks: must be a list of yamame.Callback, got {type(callbacks).__name__}"
    )


def evaluate(*overrides: str, config_dir: str | Path | None = None) -> dict[str, Any]:
    """Plays trained runs on held-out tasks, as ``python recipes/evaluate.py run=...`` does.

    Returns:
        What stands in ``evaluation.json``, and under ``score`` the mean over the runs.
    """
    with _composed(overrides, "evaluate", config_dir) as cfg:
        make_ready(cfg)
        return load_recipe("evaluate").evaluate_runs(cfg)


def make_report(*overrides: str, config_dir: str | Path | None = None) -> Path:
    """Makes the page of ``python recipes/report.py``; returns its path."""
    with _composed(overrides, "report", config_dir) as cfg:
        make_ready(cfg)
        return load_recipe("report").report(cfg)


def load_recipe(name: str) -> ModuleType:
    """The module of a recipe, whether the package was installed or stands in its repository.

    Raises:
        UsageError: There is no such recipe.
    """
    if (module := sys.modules.get(f"{_PREFIX}.{name}")) is not None:
        return module
    path = recipes_dir() / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in recipes_dir().glob("*.py")))
        raise UsageError(f"recipe: must be one of {known}, got {name!r}")
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[spec.name] = module
    return module


class _Kept(Callback):
    """Keeps the run for the caller."""

    run: Run

    def on_begin(self, run: RunState) -> None:
        assert isinstance(run, Run)
        self.run = run


@contextmanager
def _composed(
    overrides: Sequence[str], recipe: str, config_dir: str | Path | None
) -> Iterator[DictConfig]:
    """The configuration; within the block Hydra's singleton tells what it would tell a recipe that
    it runs.
    """
    with _ALONE, _random_numbers_kept(), _told(overrides, recipe, config_dir) as cfg:
        yield cfg


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Generators are after the block as they were before."""
    generators = GlobalRNGState()
    former = generators.state_dict()
    try:
        yield
    finally:
        generators.load_state_dict(former)


@contextmanager
def _told(
    overrides: Sequence[str], recipe: str, config_dir: str | Path | None
) -> Iterator[DictConfig]:
    load_recipe(recipe)
    prepare_process()
    for text in overrides:
        if not isinstance(text, str) or text.startswith("-"):
            raise UsageError(f"overrides: must be texts as 'encoder=gru', got {text!r}")
    flags = [] if config_dir is None else ["--config-dir", str(config_dir)]
    eased = ease(overrides, **EASED.get(recipe, {}))
    line = read_command_line([*flags, *eased], str(conf_dir().resolve()), recipe)
    try:
        check_choices(line)
        with line.composing():
            whole = line.composed(line.overrides, whole=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(" ".join(explain(error, line).split())) from error
    cfg = whole.copy()
    with open_dict(cfg):
        del cfg["hydra"]
    singleton = HydraConfig.instance()
    former = singleton.cfg
    singleton.set_config(whole)
    try:
        check(cfg, SETTINGS[recipe], typed=[key_of(text) for text in line.overrides])
        yield cfg
    finally:
        singleton.cfg = former
