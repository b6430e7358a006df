"""A trained run, ready to play: its configuration, its environment and its agent with the learnt
weights.

Whatever does not fit together is a `UsageError` of one line that names the value: a run or a
checkpoint that is not there, a file that is none, a setting that the environment does not take,
weights of another shape.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torchrl.envs import EnvBase

from yamame.agent import InContextAgent
from yamame.checks import UsageError
from yamame.cli.nodes import check, plain, target_of
from yamame.cli.settings import SETTINGS
from yamame.cli.validation import check_settings, parameters_of
from yamame.deploy.build import learned_gammas, load_weights
from yamame.deploy.load import agent_folder, read_saved
from yamame.deploy.sources import Which, read_checkpoint
from yamame.files.trusted import check_file, prefixes_of, without_foreign_weights
from yamame.runs.build import build_agent, build_env, check_device
from yamame.runs.earlier import complete_env
from yamame.runs.novelty import what_is_new
from yamame.tracking.tracker import TRACKING_URI

_PLAYED = ("seed", "evaluation", "agent", "env", "encoder", "timestep_encoder", "goal_encoder")
_BUILT = {key: SETTINGS["train"][key] for key in _PLAYED}
"""What the configuration of a run must have, to be played."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What `load_trained` found.

    Attributes:
        source: The run directory, file or run id that was asked for.
        step: Environment steps that the agent was trained for.
        config: The configuration it was trained with, with what was overridden since.
        weights: State of the agent, on the CPU.
        trained_env: Settings of the environment in training.
        trained_trials: Settings of repeated trials in training; None without trials.
        is_older: Whether its version did not have the setting ``split_by`` of its environment.
    """

    source: str
    step: int
    config: DictConfig
    weights: dict[str, Any] = dataclasses.field(repr=False)
    trained_env: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    trained_trials: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    is_older: bool = False

    @property
    def task(self) -> str:
        """The environment and its settings; two runs with the same text were trained for the same
        task.
        """
        config = plain(self.config)
        return " ".join(
            _described(node) for node in (config["env"], config.get("trials")) if node is not None
        )

    @property
    def folder(self) -> Path | None:
        """The run's directory, where results of playing it belong; None for a file, an id or a
        folder to send.
        """
        is_run = Path(self.source).is_dir() and agent_folder(self.source) is None
        return Path(self.source) if is_run else None

    def build_env(self, *, num_envs: int, seed: int) -> EnvBase:
        """The environment with its held-out settings, ``num_envs`` times."""
        return build_env(self.config, num_envs=num_envs, seed=seed, held_out=True)

    def what_is_new(self, env: EnvBase) -> str:
        """What is new to the agent in the tasks of an environment of `build_env`, see
        `yamame.runs.novelty`.
        """
        replay = None if self.folder is None else self.folder / "replay"
        return what_is_new(
            self.config,
            env,
            trained=self.trained_env,
            trained_trials=self.trained_trials,
            replay=replay,
            is_older=self.is_older,
        )

    def build_agent(self, env: EnvBase) -> InContextAgent:
        """The agent with its weights, in evaluation mode, on the device of the configuration.

        Raises:
            UsageError: The weights do not fit an agent for this environment.
        """
        try:
            agent = build_agent(self.config, env)
        except ValueError as error:
            raise UsageError(str(error)) from error
        hint = "; a changed setting of env may be why"
        try:
            load_weights(agent, self.weights, source=self.source, fit="the environment", hint=hint)
        except UsageError as error:
            raise UsageError(f"load_trained: {error}") from error
        return agent.eval()

    @property
    def gammas(self) -> list[float]:
        """The discount factors that the agent was trained with; the last one acts unless another is
        chosen.
        """
        return learned_gammas(self.config)

    def gamma_index(self, gamma: float) -> int:
        """The place of a discount factor among those of the agent.

        Raises:
            UsageError: It was not trained with this one.
        """
        if gamma not in self.gammas:
            raise UsageError(
                f"load_trained: gamma must be one of {', '.join(map(str, self.gammas))} in {self.source}, got {gamma}"
            )
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
    """Reads a trained run.

    Args:
        source: A run directory, a checkpoint file, the id of an MLflow run whose artifacts hold
            checkpoints, the folder of an agent (`yamame.deploy.DeployedAgent.save_pretrained`), or
            ``zoo:NAME``.
        checkpoint: Which of a run's checkpoints: the one with the best evaluation, or the last one.
        tracking_uri: The MLflow store where a run id is looked for.
        device: Where the environment and the agent shall be.
        env: Settings of the environment to change, nested as in the configuration.
        trials: Settings of repeated trials to change.
        context_length: Timesteps that acting remembers, if not as many as in training.
        trust: Packages whose classes and environments the run may name, beside ours, as
            ``["mylab."]``.

    Raises:
        UsageError: One line that names what is missing, does not fit, or is named without trust.
    """
    given, weights, step = _read(source, checkpoint, tracking_uri)
    _check_config(source, given, prefixes_of(trust))
    own = without_foreign_weights(given)
    config = {**own, "device": check_device(device), "trust": list(trust)}
    known = parameters_of(target_of(OmegaConf.create(config).env))
    is_older = "split_by" in known and "split_by" not in config["env"]
    trained_env = config["env"] = complete_env(config, known)
    # Settings of held-out tasks become those of the environment, for what is asked here to come
    # last.
    held_out = config["evaluation"]["env"]
    config["evaluation"] = {**config["evaluation"], "env": {}}
    config["env"] = plain(OmegaConf.merge(config["env"], held_out, dict(env or {})))
    trained_trials = config.get("trials")
    if trials:
        if config.get("trials") is None:
            raise UsageError(
                f"load_trained: {source} must have trials to change them, got {dict(trials)}"
            )
        config["trials"] = plain(OmegaConf.merge(config["trials"], dict(trials)))
    if context_length is not None:
        config["encoder"] = {**config["encoder"], "context_length": context_length}
    composed = OmegaConf.create(config)
    check(composed)
    return Trained(str(source), step, composed, weights, trained_env, trained_trials, is_older)


def _read(
    source: str | Path, checkpoint: Which, tracking_uri: str
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Configuration, weights and steps of training, from a run or the folder of an agent."""
    if agent_folder(source) is not None:
        saved = read_saved(source)
        return saved.config, saved.weights, int(saved.about.get("step") or 0)
    loaded = read_checkpoint(str(source), checkpoint, tracking_uri=tracking_uri)
    return loaded.config, loaded.values["agent"], loaded.step


def _check_config(source: str | Path, config: Any, trust: Sequence[str]) -> None:
    """Refuses a configuration that is not whole, or names what a file may not name; nothing of it
    is used before.
    """
    if not isinstance(config, dict) or not _BUILT.keys() <= config.keys():
        raise UsageError(
            f"load_trained: {source} must be a checkpoint of a training run, it has no configuration"
        )
    try:
        check_file(config, trust)
        check_settings(_BUILT, config)
    except UsageError as error:
        raise UsageError(f"load_trained: {source}: {error}") from error


def load_asked(source: str, asked: Mapping[str, Any], key: str = "run") -> Trained:
    """Reads a trained run as `load_trained` does, with those of its options that a recipe was asked
    for.

    Args:
        source: The run.
        asked: The configuration of the recipe.
        key: What names the run there.
    """
    options = ("checkpoint", "tracking_uri", "device", "env", "trials", "context_length", "trust")
    try:
        return load_trained(source, **{name: asked[name] for name in options})
    except UsageError as error:
        raise UsageError(f"{key}={source}: {error}") from error


def _described(node: Mapping[str, Any]) -> str:
    """A node of a configuration in one line; where its work is done does not count, nor that it has
    no twin's sight.
    """
    silent = (
        ("_target_", "workers") if node.get("observable") else ("_target_", "workers", "observable")
    )
    kept = {key: value for key, value in node.items() if key not in silent}
    name = str(node["_target_"]).rpartition(".")[2]
    return f"{name}({', '.join(f'{key}={value}' for key, value in kept.items())})"
