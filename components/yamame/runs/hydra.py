"""The door to Hydra: one clear line for every mistake, targets from a fixed list, sweeps as nested runs.

A recipe is a function of the composed configuration, handed to `main`::

    def train(cfg: DictConfig) -> float: ...

    if __name__ == "__main__":
        main(train, config_name="train")

Nothing is written before the whole configuration was checked (`check`). The main YAML file must keep Hydra
from writing anything itself: ``hydra.run.dir: .``, ``hydra.output_subdir: null`` and ``override
hydra/job_logging: none``.
"""

import functools
import importlib
import inspect
import itertools
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from yamame.config import conf_dir
from yamame.runs.compare import flatten
from yamame.runs.errors import UsageError
from yamame.runs.explain import check_choices, explain, is_choice
from yamame.runs.signals import terminate_on_signal
from yamame.runs.store import check_store
from yamame.runs.sweep import close_sweep
from yamame.runs.validation import check_arguments, check_like

ALLOWED = ("yamame.", "yamame_envs.", "torchrl.", "torch.")
"""Prefixes of what a configuration may name as ``_target_``."""
NOT_IN_NAME = ("run.", "budget.", "evaluation.", "checkpoint.", "logger", "resume", "expected")
"""How overrides begin that make no other run."""
_SPECIAL = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}
_VERSION_BASE = "1.3"
_USAGE_STATUS = 2
_LONGEST_NAME = 120


def plain(cfg: Any) -> Any:
    """A configuration as plain dictionaries and lists, interpolations resolved.

    Raises:
        UsageError: A value is missing (``???``) or an interpolation leads nowhere.
    """
    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "configuration"
        raise UsageError(f"{key}: {str(error).splitlines()[0]}") from error


def targets(node: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a plain configuration that has a ``_target_``, with its dotted key, outermost first."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield key, node
        for name, item in node.items():
            yield from targets(item, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from targets(item, f"{key}.{index}" if key else str(index))


def check_targets(node: Any, *, key: str = "", allowed: Sequence[str] = ALLOWED) -> None:
    """Refuses targets that are not on the list, before anything is imported.

    Raises:
        UsageError: Names the key, the value and the allowed prefixes.

    >>> check_targets({"env": {"_target_": "yamame_envs.MazeRunner"}})
    """
    for name, target in targets(node, key):
        value = target["_target_"]
        if not isinstance(value, str) or not value.startswith(tuple(allowed)):
            raise UsageError(f"{name}._target_ must begin with {' or '.join(allowed)}, got {value!r}")


def check(cfg: DictConfig, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Checks a whole configuration without building anything.

    Every value is given and resolves, and is of the type of its default; every target is allowed and can be imported,
    every key below a target is a parameter of it, and every value of the type that this has.

    Args:
        cfg: The composed configuration.
        default: The same without the values of the command line, as plain data; None: unknown.

    Returns:
        The configuration as plain data.

    Raises:
        UsageError: Names the key and the value.
    """
    config = plain(cfg)
    check_targets(config)
    check_like(config, default or {})
    foreign: dict[str, str] = {}
    for key, node in targets(config):
        target = _locate(node["_target_"], key)
        parameters = parameters_of(target)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            takes = f"{node['_target_']} takes {', '.join(parameters)}"
            foreign |= {f"{key}.{name}": takes for name in node if name not in _SPECIAL | parameters.keys()}
        check_arguments(target.__init__ if inspect.isclass(target) else target, node, key)
    _refuse_foreign(foreign, flatten(default or {}))
    return config


def _refuse_foreign(foreign: Mapping[str, str], default: Mapping[str, Any]) -> None:
    """Refuses keys that are no parameters; those that the command line did not bring can be dropped by it."""
    for name, takes in foreign.items():
        presets = " ".join(f"~{key}" for key in foreign if key in default)
        remedy = f"; a preset sets what this choice does not take, add {presets}" if presets else ""
        raise UsageError(f"{name}: {takes}, not {name.rpartition('.')[2]!r}{remedy}")


def default_of(directory: str, config_name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What the choices of a command line alone are composed to, as plain data with interpolations.

    Hydra must have been initialised with the directory.
    """
    choices = [text for text in overrides if text[:1] != "~" and is_choice(directory, text)]
    cfg = compose(config_name, overrides=choices)
    return OmegaConf.to_container(cfg, resolve=False, throw_on_missing=False)  # type: ignore[return-value]


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or constructor, by name.

    A class is asked for its ``__init__``: metaclasses, as TorchRL's, hide the signature of the class itself.
    """
    if not inspect.isclass(target):
        return dict(inspect.signature(target).parameters)
    parameters = dict(inspect.signature(target.__init__).parameters)
    del parameters[next(iter(parameters))]
    return parameters


def _locate(path: str, key: str) -> Callable[..., Any]:
    """The object a dotted path names: the longest importable module, then attributes."""
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:split])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and not (module_name + ".").startswith(error.name + "."):
                raise UsageError(
                    f"{key}: {path} needs the package {error.name}, it is not installed"
                ) from error
            continue
        for name in parts[split:]:
            found = getattr(found, name, None)
        if callable(found):
            return found
        break
    raise UsageError(f"{key}._target_ must name a class or function, got {path!r}")


def instantiate(node: Any, **runtime: Any) -> Any:
    """Builds what a configuration node describes, giving it facts known at run time.

    Nested targets are built first, containers arrive as plain ones, and ``runtime`` arrives untouched (Hydra
    itself would turn dictionaries and lists in it into its own). With ``_partial_: true`` the result is a
    function that takes the rest.

    Args:
        node: A node with ``_target_``; None gives None.
        runtime: Further keyword arguments.

    Raises:
        UsageError: A target is not allowed, or a constructor refused its arguments (with its message).
    """
    if node is None:
        return None
    key = node._get_full_key("") if OmegaConf.is_config(node) else ""
    config = plain(node) if OmegaConf.is_config(node) else node
    check_targets(config, key=key)
    key = key or config["_target_"]
    try:
        built = hydra.utils.instantiate(config, _partial_=True, _convert_="all")
    except HydraException as error:
        cause = error.__cause__ if isinstance(error.__cause__, TypeError | ValueError) else None
        if cause is None:
            raise
        raise UsageError(f"{key}: {cause}") from error

    def build(*args: Any, **rest: Any) -> Any:
        try:
            return built.func(*built.args, *args, **{**built.keywords, **runtime, **rest})
        except (TypeError, ValueError) as error:
            raise UsageError(f"{key}: {error}") from error

    return build if config.get("_partial_", False) else build()


def objective(value: float | None, *, worst: float = 0.0) -> float:
    """The number a sweep compares: ``worst`` when there is none, so that it is never NaN or infinite.

    >>> objective(0.75), objective(float("nan")), objective(None, worst=-1.0)
    (0.75, 0.0, -1.0)
    """
    return float(value) if value is not None and math.isfinite(value) else worst


def run_name(*groups: str, seed: int) -> str:
    """A name for the run that Hydra is running: equal command lines get equal names, different runs different ones.

    Args:
        groups: Configuration groups whose choices begin the name.
        seed: Ends the name.

    Overrides of anything else stand in between, but for those that leave the run what it is (its budget, say).
    """
    hydra_config = HydraConfig.get()
    known = (*NOT_IN_NAME, "seed=", *(f"{group}=" for group in groups))
    others = sorted(text for text in hydra_config.overrides.task if not text.lstrip("+").startswith(known))
    choices = [hydra_config.runtime.choices[group] for group in groups]
    name, end = (
        re.sub(r"[^A-Za-z0-9._=,+-]", "-", text) for text in ("-".join([*choices, *others]), f"-seed={seed}")
    )
    return name[: _LONGEST_NAME - len(end)] + end


def command() -> str:
    """The command line of the run that Hydra is running; in a sweep, of that job alone."""
    hydra_config = HydraConfig.get()
    return shlex.join(["python", f"recipes/{hydra_config.job.name}.py", *hydra_config.overrides.task])


def main(
    task: Callable[[DictConfig], Any], *, config_name: str, config_dir: str | Path | None = None
) -> None:
    """Runs a recipe from the command line.

    A mistake of the user (`UsageError`, or anything Hydra refuses) becomes one line on the standard error and
    exit status 2, before anything is written; the jobs of a sweep are all checked before the first one
    starts. SIGTERM raises `Terminated` inside the recipe. Other errors keep their traceback.

    Args:
        task: The recipe.
        config_name: Name of the main YAML file, also shown before the message.
        config_dir: Directory of the YAML files; that of the package when None.
    """
    directory = str(Path(conf_dir() if config_dir is None else config_dir).resolve())
    arguments = sys.argv[1:]

    def checked(cfg: DictConfig) -> Any:
        try:
            overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
            check(cfg, default_of(directory, config_name, overrides))  # type: ignore[arg-type]
            check_store(cfg)
            return task(cfg)
        except UsageError as error:
            # Inside Hydra: an Exception would get a second line, and would not end a sweep.
            _fail(config_name, str(error))

    functools.update_wrapper(checked, task)
    former = os.environ.get("HYDRA_FULL_ERROR")
    # Hydra then raises instead of printing and exiting.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    error: BaseException | None = None
    try:
        check_choices(arguments, directory)
        _check_sweep(arguments, directory, config_name)
        with terminate_on_signal():
            hydra.main(version_base=_VERSION_BASE, config_path=directory, config_name=config_name)(checked)()
    except (UsageError, HydraException, OmegaConfBaseException) as raised:
        error = raised
        _fail(config_name, explain(raised, directory, config_name, arguments))
    except BaseException as raised:
        error = raised
        raise
    finally:
        close_sweep(error)
        if former is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = former


def _fail(name: str, message: str) -> None:
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(_USAGE_STATUS)


def _check_sweep(arguments: Sequence[str], directory: str, config_name: str) -> None:
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
            check(compose(config_name, overrides=list(job)), default_of(directory, config_name, job))
