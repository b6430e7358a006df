"""Learning histories for algorithm distillation: episodes that hold all of a learner's life."""

from typing import Any

from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDictBase
from torchrl.envs import Compose, EnvBase

from yamame.agent import InContextAgent
from yamame.checks import SettingError, require_setting
from yamame.cli.nodes import plain
from yamame.cli.sections import AnyConfig
from yamame.replay import TrialSubsampling
from yamame.runs.build import build_packing


def longer_episodes(cfg: AnyConfig) -> DictConfig:
    """Return the configuration with episodes of ``source.horizon`` steps.

    Raises:
        UsageError: The environment does not let its length be set.
    """
    config: dict[str, Any] = plain(cfg)
    horizon = cfg.source.horizon
    if config["source"]["env"]:
        config["env"] |= config["source"]["env"]
    elif config.get("trials") is not None:
        config["trials"] |= {"num_trials": None, "horizon": horizon}
    elif "time_limit" in config["env"]:
        config["env"]["time_limit"] = horizon
    else:
        condition = "be the length of an episode, but this environment takes no time_limit"
        remedy = "set trials=repeated, or source.env to settings that make its episodes longer"
        raise SettingError("source.horizon", horizon, condition, remedy=remedy)
    return OmegaConf.create(config)


def build_history_transform(
    cfg: AnyConfig, agent: InContextAgent, held_out: EnvBase, env: EnvBase
) -> Compose:
    """Build the transform of sampled histories: subsampling of trials, then packing.

    Args:
        cfg: Configuration of the recipe ``distill``.
        agent: Agent that learns from the histories.
        held_out: Environment of the held-out tasks, with episodes as the agent plays them.
        env: Environment of the learners, with an episode per history.

    Raises:
        UsageError: The encoder does not remember an episode, a history is shorter than an episode,
            or replay does not hold all histories.
    """
    steps = _num_steps(held_out)
    history_steps = _num_steps(env)
    limit = agent.trajectory_encoder.context_length
    remembers = limit is None or limit > steps
    require_setting("context_length", limit, remembers, f"exceed the episode, {steps} steps")
    condition = f"be at least the episode, {steps} steps"
    require_setting("source.horizon", history_steps, history_steps >= steps, condition)

    num_envs = cfg.schedule.num_envs
    steps_per_round = history_steps * num_envs
    num_rounds = -(-max(cfg.schedule.learning_starts, 1) // steps_per_round)  # rounded up
    # A history has one timestep more than steps: the one after the last step.
    num_timesteps = num_rounds * num_envs * (history_steps + 1)
    capacity = cfg.replay.capacity
    condition = f"hold {num_timesteps} timesteps"
    require_setting("replay.capacity", capacity, capacity >= num_timesteps, condition)
    subsampling = TrialSubsampling(cfg.source.subsample, length=steps)
    return Compose(subsampling, *build_packing(cfg, steps))


def _num_steps(env: EnvBase) -> int:
    return int(env.observation_spec["step_index"].space.high.max())


def improvement(histories: TensorDictBase) -> dict[str, float]:
    """Compute the mean reward per step in the first and in the last tenth of histories ``[N, T]``.

    The keys are names of metrics.
    """
    reward = histories["next", "reward"].flatten(1)
    tenth = max(1, reward.shape[1] // 10)
    return {
        "source/reward_first_tenth": float(reward[:, :tenth].mean()),
        "source/reward_last_tenth": float(reward[:, -tenth:].mean()),
    }
