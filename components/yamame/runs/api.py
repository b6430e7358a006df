"""Recipes from Python, with the overrides of the command line and return values.

    run = yamame.train("env=tmaze", "encoder=gru", "budget.minutes=1", callbacks=[...])
    print(run.objective, run.path, run.progress.curve)
    print(yamame.evaluate(f"run={run.path}", "num_episodes=512")["score"])

A sweep is a loop; a search by another library calls `train` in its objective. Random number
generators and Hydra belong to the process: calls from several threads wait for each other, and the
caller's generators are left as they were.
"""

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from yamame.checks import SettingError, UsageError, require_setting
from yamame.cli.app import make_ready, takes_settings
from yamame.cli.arguments import ease
from yamame.cli.command_line import CommandLine, keys_of, read_command_line
from yamame.cli.explain import check_choices, explain
from yamame.cli.front import prepare_process
from yamame.cli.jobs import AlreadyDone
from yamame.cli.nodes import check
from yamame.cli.sections import Config, Node
from yamame.cli.settings import CONFIGS
from yamame.runs.callbacks import Callback
from yamame.runs.run import Run
from yamame.runs.state import RunState
from yamame.system.installed import conf_dir, recipes_dir
from yamame.system.signals import Terminated
from yamame.training import GlobalRNGState

_PACKAGE = "yamame.recipes"
_LOCK = threading.RLock()
"""Held while a recipe is composed and run, because Hydra's state is global.

It is reentrant, because a callback may evaluate a run.
"""


def compose(
    *overrides: str, recipe: str = "train", config_dir: str | Path | None = None
) -> DictConfig:
    """Compose and check a configuration as the command line does.

    Args:
        overrides: As on the command line: ``"env=tmaze"``, ``"optimizer.lr=1e-4"``, ``"~trials"``.
        recipe: Recipe whose configuration it is: the name of a file in ``recipes/``.
        config_dir: Directory of further YAML files, which take precedence, as ``--config-dir``.

    Raises:
        UsageError: An override or a setting is wrong.
    """
    with _composed(overrides, recipe, config_dir) as composed:
        return composed.cfg


def train(
    *overrides: str,
    callbacks: Sequence[Callback] = (),
    recipe: str = "train",
    config_dir: str | Path | None = None,
) -> Run:
    """Train an agent, as ``yamame <recipe>`` does.

    Args:
        overrides, config_dir: As for `compose`.
        callbacks: Objects whose methods are called at the events of the run.
        recipe: A recipe that trains: ``train``, ``offline``, ``ppo``, ``distill``.

    Returns:
        The `Run` that has ended: ``objective``, ``path``, ``summary``, ``progress.curve``,
        ``checkpoints.best``. With ``resume=auto`` and nothing left to do, the finished run.

    Raises:
        UsageError: An override or a setting is wrong; no file was written.
        KeyboardInterrupt: The run was ended by Ctrl-C or a signal, with a checkpoint;
            ``resume=true`` continues it.
    """
    if not isinstance(callbacks, list | tuple):
        given = type(callbacks).__name__
        raise SettingError("callbacks", given, "be a list of yamame.Callback")
    keeper = _RunKeeper()
    with _composed(overrides, recipe, config_dir) as composed:
        try:
            composed.call(load_recipe(recipe).train, callbacks=[*callbacks, keeper])
        except AlreadyDone as done:
            return done.run
        except Terminated:
            # Without the signal's own exception, which ends the process of a command line.
            raise KeyboardInterrupt from None
    return keeper.run


def evaluate(*overrides: str, config_dir: str | Path | None = None) -> dict[str, Any]:
    """Evaluate trained runs on held-out tasks, as ``yamame evaluate run=...`` does.

    Returns:
        The content of ``evaluation.json``, and under ``score`` the mean over the runs.
    """
    with _composed(overrides, "evaluate", config_dir) as composed:
        report: dict[str, Any] = composed.call(load_recipe("evaluate").evaluate_runs)
        return report


def make_report(*overrides: str, config_dir: str | Path | None = None) -> Path:
    """Write the page of ``yamame report``, and return its path."""
    with _composed(overrides, "report", config_dir) as composed:
        page: Path = composed.call(load_recipe("report").report)
        return page


def load_recipe(name: str) -> ModuleType:
    """Import the module of a recipe, of an installed package or of a checkout.

    Raises:
        SettingError: The recipe does not exist.
    """
    module_name = f"{_PACKAGE}.{name}"
    loaded = sys.modules.get(module_name)
    if loaded is not None:
        return loaded

    path = recipes_dir() / f"{name}.py"
    known = ", ".join(sorted(file.stem for file in recipes_dir().glob("*.py")))
    require_setting("recipe", name, path.is_file(), f"be one of {known}")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Registered last: a recipe that fails to import is not found half-imported next time.
    sys.modules[module_name] = module
    return module


class _RunKeeper(Callback):
    """Keeps the run, which recipes do not return."""

    run: Run

    def on_begin(self, run: RunState) -> None:
        assert isinstance(run, Run)
        self.run = run


@dataclass(frozen=True)
class _Composed:
    """A composed configuration that has been checked.

    Attributes:
        cfg: Hydra's configuration.
        settings: The same as typed settings.
    """

    cfg: DictConfig
    settings: Config | Node

    def call(self, task: Callable[..., Any], **options: Any) -> Any:
        """Run a function of a recipe."""
        make_ready(self.cfg)
        return task(self.settings if takes_settings(task) else self.cfg, **options)


@contextmanager
def _composed(
    overrides: Sequence[str], recipe: str, config_dir: str | Path | None
) -> Iterator[_Composed]:
    """Within the block, the configuration is that of Hydra's singleton, as in a recipe."""
    with _LOCK, _preserved_generators():
        load_recipe(recipe)
        prepare_process()
        line = _command_line(overrides, recipe, config_dir)
        try:
            check_choices(line)
            with line.composing():
                whole = line.composed(line.overrides, whole=True)
        except (HydraException, OmegaConfBaseException) as error:
            raise UsageError(" ".join(explain(error, line))) from error
        # Recipes see the configuration without Hydra's own section, as under its decorator.
        cfg = whole.copy()
        with open_dict(cfg):
            del cfg["hydra"]

        singleton = HydraConfig.instance()
        former = singleton.cfg
        singleton.set_config(whole)
        try:
            overridden = keys_of(line.overrides)
            yield _Composed(cfg, check(cfg, CONFIGS[recipe], overridden=overridden))
        finally:
            singleton.cfg = former


def _command_line(
    overrides: Sequence[str], recipe: str, config_dir: str | Path | None
) -> CommandLine:
    """Return the command line that would have the same overrides.

    Raises:
        SettingError: An override is not text, or is a flag.
    """
    for text in overrides:
        is_override = isinstance(text, str) and not text.startswith("-")
        require_setting("overrides", text, is_override, "be texts as 'encoder=gru'")
    flags = [] if config_dir is None else ["--config-dir", str(config_dir)]
    eased = ease(overrides, CONFIGS[recipe])
    return read_command_line([*flags, *eased], str(conf_dir().resolve()), recipe)


@contextmanager
def _preserved_generators() -> Iterator[None]:
    """After the block, the global random number generators are as they were before it."""
    generators = GlobalRNGState()
    former = generators.state_dict()
    try:
        yield
    finally:
        generators.load_state_dict(former)
