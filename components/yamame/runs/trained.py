"""A trained run to evaluate: its configuration, its environment, and its agent with the weights."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torchrl.envs import EnvBase

from yamame.agent import InContextAgent
from yamame.agent.assembly import learned_gammas
from yamame.checks import UsageError, at_source, require_setting
from yamame.cli.nodes import check, plain, target_of
from yamame.cli.training_settings import PlayedConfig
from yamame.cli.validation import parameters_of, validated
from yamame.deploy.build import load_weights
from yamame.deploy.load import agent_folder, read_saved
from yamame.deploy.sources import Which, read_checkpoint
from yamame.files.identity import complete_timestep_encoder
from yamame.files.own_code import changed_modules, own_code
from yamame.files.trust_record import Recorded, recorded
from yamame.files.trusted import prefixes_of, without_foreign_weights
from yamame.files.untrusted import check_file
from yamame.runs.build import build_agent, build_env, check_device
from yamame.runs.earlier import complete_env
from yamame.runs.novelty import what_is_new
from yamame.system.messages import print_once
from yamame.tracking.tracker import TRACKING_URI

_OPTIONS = ("checkpoint", "tracking_uri", "device", "env", "trials", "context_length", "trust")
"""Arguments of `load_trained` that recipes have as settings."""
_SAME_TASKS = ("_target_", "workers")
"""Keys of an environment that do not change its tasks."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained run, as `load_trained` returns it.

    Attributes:
        source: Run directory, file or run id that was given.
        step: Environment steps that the agent was trained for.
        config: Configuration of its training, with later changes.
        weights: State of the agent, on the CPU.
        trained_env: Settings of the environment in training.
        trained_trials: Settings of repeated trials in training; None without trials.
        is_older: Whether its version lacked the setting ``split_by`` of its environment.
        code: Digests of the user's modules in training (`yamame.files.own_code`).
    """

    source: str
    step: int
    config: DictConfig
    weights: dict[str, Any] = dataclasses.field(repr=False)
    trained_env: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    trained_trials: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    is_older: bool = False
    code: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def task(self) -> str:
        """The environment and its settings as text, equal for runs of the same task."""
        config = plain(self.config)
        sections = (config["env"], config.get("trials"))
        return " ".join(_describe(section) for section in sections if section is not None)

    @property
    def task_settings(self) -> dict[str, str]:
        """Values of the settings that make the task, by their keys."""
        config = plain(self.config)
        settings = {}
        for part in ("env", "trials"):
            section = config.get(part)
            if section is not None:
                settings[part] = _class_of(section)
                for key, value in _task_settings(section).items():
                    settings[f"{part}.{key}"] = str(value)
        return settings

    @property
    def folder(self) -> Path | None:
        """Directory of the run, for results; None for a file, an id or an exported agent."""
        is_run = Path(self.source).is_dir() and agent_folder(self.source) is None
        return Path(self.source) if is_run else None

    def build_env(self, *, num_envs: int, seed: int) -> EnvBase:
        """Build the environment with its held-out settings."""
        return build_env(self.config, num_envs=num_envs, seed=seed, held_out=True)

    def what_is_new(self, env: EnvBase) -> str:
        """Describe what is new to the agent in the tasks of an environment of `build_env`."""
        return what_is_new(
            self.config,
            env,
            trained=self.trained_env,
            trained_trials=self.trained_trials,
            replay=None if self.folder is None else self.folder / "replay",
            is_older=self.is_older,
        )

    def build_agent(self, env: EnvBase) -> InContextAgent:
        """Build the agent with its weights, in evaluation mode, on the configured device.

        Raises:
            UsageError: The weights do not fit an agent for this environment.
        """
        agent = build_agent(self.config, env, is_new=False)
        hint = "; a changed setting of env may be why"
        load_weights(agent, self.weights, source=self.source, fit="the environment", hint=hint)
        changed = changed_modules(self.code, own_code(plain(self.config)))
        if changed:
            modules = ", ".join(changed)
            print_once(f"{self.source}: changed since training: {modules}; the new code is used")
        return agent.eval()

    @property
    def gammas(self) -> list[float]:
        """Discount factors of the agent; the last one acts by default."""
        return learned_gammas(self.config)

    def gamma_index(self, gamma: float) -> int:
        """Return the index of a discount factor.

        Raises:
            SettingError: The agent was not trained with it.
        """
        known = ", ".join(map(str, self.gammas))
        condition = f"be one of {known} in {self.source}"
        require_setting("gamma", gamma, gamma in self.gammas, condition)
        return self.gammas.index(gamma)


def load_trained(
    source: str | Path,
    *,
    checkpoint: Which = "best",
    tracking_uri: str = TRACKING_URI,
    device: str = "cpu",
    env: Mapping[str, Any] | None = None,
    trials: Mapping[str, Any] | None = None,
    context_length: int | None = None,
    trust: Sequence[str] = (),
) -> Trained:
    """Load a trained run.

    Args:
        source: Run directory, checkpoint file, id of an MLflow run with checkpoints, folder of an
            agent (`yamame.deploy.DeployedAgent.save_pretrained`), or ``zoo:NAME``.
        checkpoint: The checkpoint with the best evaluation, or the last one.
        tracking_uri: MLflow store in which a run id is looked up.
        device: Device of the environment and the agent.
        env: Settings of the environment to change, nested as in the configuration.
        trials: Settings of repeated trials to change.
        context_length: Timesteps of the agent's memory; None for the number in training.
        trust: Packages outside of Yamame whose classes and environments the run may name, as
            ``["mylab."]``. Runs of this user need none (`yamame.files.trust_record`).

    Raises:
        UsageError: The run or checkpoint is missing or damaged, a setting does not fit, or a class
            is named without trust.
    """
    given, weights, step, code = _read(source, checkpoint, tracking_uri)
    own = recorded(source, given)
    trust = [*prefixes_of(trust), *own.packages]
    _check_config(source, given, trust, own, env or {})
    # Every path in the configuration of a downloaded run is dropped before anything is built.
    config = dict(without_foreign_weights(complete_timestep_encoder(given)))
    config["device"] = check_device(device)
    config["trust"] = trust  # from the caller and the user's record, never from the file

    known = parameters_of(target_of(OmegaConf.create(config).env))
    is_older = "split_by" in known and "split_by" not in config["env"]
    trained_env = complete_env(config, known)
    # Settings of held-out tasks become those of the environment; the caller's come before both.
    held_out = config["evaluation"]["env"]
    config["evaluation"] = {**config["evaluation"], "env": {}}
    config["env"] = plain(OmegaConf.merge(trained_env, held_out, dict(env or {})))

    trained_trials = config.get("trials")
    if trials:
        has_trials = trained_trials is not None
        condition = f"be empty, for {source} was trained without trials"
        require_setting("trials", dict(trials), has_trials, condition)
        config["trials"] = plain(OmegaConf.merge(trained_trials, dict(trials)))
    if context_length is not None:
        config["encoder"] = {**config["encoder"], "context_length": context_length}

    composed = OmegaConf.create(config)
    check(composed)  # the changes as well, as on a command line
    return Trained(
        str(source), step, composed, weights, trained_env, trained_trials, is_older, code
    )


def _read(
    source: str | Path, checkpoint: Which, tracking_uri: str
) -> tuple[dict[str, Any], dict[str, Any], int, dict[str, str]]:
    """Read configuration, weights, steps of training, and digests of the user's modules."""
    if agent_folder(source) is not None:
        saved = read_saved(source)
        return saved.config, saved.weights, int(saved.about.get("step") or 0), {}
    loaded = read_checkpoint(
        str(source), checkpoint, tracking_uri=tracking_uri, optional=["machine"]
    )
    code = _mapping(_mapping(loaded.values.get("machine")).get("code"))
    return loaded.config, loaded.values["agent"], loaded.step, code


def _mapping(value: Any) -> dict[str, Any]:
    """Return a dictionary of a file, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _check_config(
    source: str | Path,
    config: Any,
    trust: Sequence[str],
    own: Recorded,
    env: Mapping[str, Any],
) -> None:
    """Check a configuration from a file, before anything of it is used.

    Args:
        source: The run, for messages.
        config: Its configuration.
        trust: Packages that may be named.
        own: Trust recorded for the run.
        env: Settings of the environment that the caller gives, in place of those in the file.

    Raises:
        UsageError: The configuration is incomplete, or names a class that a file may not name.
    """
    fields = PlayedConfig.model_fields.items()
    needed = {name for name, field in fields if field.is_required()}
    if not isinstance(config, dict) or not needed <= config.keys():
        raise UsageError(
            f"{source} must be a checkpoint of a training run, it has no configuration"
        )
    hint = None
    if own.elsewhere:
        names = " and ".join(f"{name} from {folder}" for name, folder in own.elsewhere.items())
        hint = (
            f"the run has imported {names}: start the command there. Another package of this name "
            "must be in trust=[...]"
        )
    with at_source(str(source)):
        # Paths of pretrained weights in the file are dropped, not opened.
        checked = without_foreign_weights({**config, "env": _without(config["env"], env)})
        check_file(checked, prefixes_of(trust), files=own.files, hint=hint)
        validated(PlayedConfig, config)


def _without(section: Any, given: Mapping[str, Any]) -> Any:
    """Return a section of a configuration without the values that are given anew."""
    if not isinstance(section, Mapping):
        return section
    kept = {}
    for name, value in section.items():
        new = given.get(name, ...)
        if isinstance(new, Mapping):
            kept[name] = _without(value, new)
        elif new is ...:
            kept[name] = value
    return kept


def load_from_options(source: str, options: Mapping[str, Any], key: str = "run") -> Trained:
    """Load a trained run with the options of a recipe.

    Args:
        source: The run, as for `load_trained`.
        options: Configuration of the recipe, with the other arguments of `load_trained`.
        key: Key of the run in the configuration of the recipe, for messages.
    """
    with at_source(f"{key}={source}"):
        return load_trained(source, **{name: options[name] for name in _OPTIONS})


def _describe(section: Mapping[str, Any]) -> str:
    """Describe a section by its class and the settings that make its task."""
    texts = [f"{key}={value}" for key, value in _task_settings(section).items()]
    return f"{_class_of(section)}({', '.join(texts)})"


def _class_of(section: Mapping[str, Any]) -> str:
    return str(section["_target_"]).rpartition(".")[2]


def _task_settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section that make its task."""
    settings = {}
    for key, value in section.items():
        # Runs from before the setting "observable" have the same tasks as those with false.
        is_default = key == "observable" and not value
        if key not in _SAME_TASKS and not is_default:
            settings[str(key)] = value
    return settings
