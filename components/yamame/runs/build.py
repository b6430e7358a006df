"""The parts that every recipe builds from a configuration: environment, agent, learner, replay, collector."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase, Transform

from yamame.agent import InContextAgent, InContextPolicy
from yamame.collectors import Collector
from yamame.runs.hydra import instantiate, parameters_of, plain
from yamame.runs.learner import Learner


def build_env(cfg: DictConfig, *, num_envs: int, seed: int, held_out: bool = False) -> EnvBase:
    """The environment of the configuration, ``num_envs`` times."""
    changed = plain(cfg.evaluation.env) if held_out else {}
    env = instantiate(cfg.env, num_envs=num_envs, seed=seed, device=cfg.device, **changed)
    trials = cfg.get("trials")
    return env if trials is None else instantiate(trials, env=env, seed=seed)


def build_agent(cfg: DictConfig, env: EnvBase) -> InContextAgent:
    """The agent of the configuration, fitted to an environment."""
    return InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=instantiate(cfg.timestep_encoder),
        goal_encoder=instantiate(cfg.goal_encoder),
        trajectory_encoder=instantiate(cfg.encoder),
        actor=instantiate(cfg.agent.actor),
        critic=instantiate(cfg.agent.critic),
        returns=instantiate(cfg.agent.returns),
        gammas=learned_gammas(cfg),
        probability_floor=cfg.agent.probability_floor,
        box_distribution=cfg.agent.box_distribution,
        share_encoders=getattr(hydra.utils.get_object(cfg.agent.loss._target_), "shares_encoder", True),
    ).to(cfg.device)


def learned_gammas(cfg: DictConfig) -> list[float]:
    """The discount factors that the agent has policies for: all, or the last alone."""
    gammas = [float(gamma) for gamma in cfg.agent.gammas]
    return gammas if cfg.agent.multi_gamma else gammas[-1:]


def build_collector(
    cfg: DictConfig,
    *,
    env: EnvBase,
    policy: InContextPolicy,
    replay: Any,
    exploration: TensorDictModuleBase,
) -> Collector:
    """The collector of the configuration: it acts in ``env``, or in environments of its own in other processes."""
    given: dict[str, Any] = {"policy": policy, "replay": replay, "exploration": exploration}
    if "make_env" in parameters_of(hydra.utils.get_object(cfg.collector._target_)):
        make_env = partial(build_env, OmegaConf.create({**cfg, "device": "cpu"}))
        given |= {"make_env": make_env, "num_envs": cfg.schedule.num_envs, "seed": cfg.seed}
    else:
        given["env"] = env
    collector: Collector = instantiate(cfg.collector, **given)
    return collector


def build_learner(cfg: DictConfig, agent: InContextAgent) -> Learner:
    """The learner of the configuration for an agent."""
    loss = instantiate(
        cfg.agent.loss,
        encoder=agent.encoder,
        actor=agent.actor,
        critic=agent.critic,
        returns=agent.returns,
        action_space=agent.action_space,
        gammas=agent.gammas,
    ).to(cfg.device)
    return Learner(
        loss,
        instantiate(cfg.optimizer, params=[p for p in agent.parameters() if p.requires_grad]),
        instantiate(cfg.agent.target_updater, loss_module=loss),
        max_grad_norm=cfg.schedule.max_grad_norm,
        warmup_updates=cfg.schedule.warmup_updates,
        total_updates=total_updates(cfg) if cfg.schedule.anneal_lr else None,
        autocast=cfg.schedule.autocast,
        cuda_graph=cfg.schedule.cuda_graph,
    )


def build_replay(cfg: DictConfig, path: Path, *, transform: Transform, **options: Any) -> Any:
    """The replay buffer of the configuration, with its files in a folder."""
    return instantiate(
        cfg.replay, path=path, batch_size=cfg.schedule.batch_size, transform=transform, **options
    )


@contextmanager
def trial_replay(cfg: DictConfig, *, transform: Transform) -> Iterator[Any]:
    """The same in a folder that is gone afterwards, and random numbers as before: to be refused before a run begins."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        replay = build_replay(cfg, Path(folder) / "replay", transform=transform)
        try:
            yield replay
        finally:
            replay.close()


def total_updates(cfg: DictConfig) -> int:
    """The updates that the budget allows, whatever its minutes.

    Raises:
        ValueError: If the budget has neither environment steps nor updates.
    """
    budget, schedule = cfg.budget, cfg.schedule
    limits = [] if budget.updates is None else [budget.updates]
    if budget.env_steps is not None:
        limits.append(int((budget.env_steps - schedule.learning_starts) * schedule.updates_per_step))
    if not limits:
        raise ValueError(
            "schedule.anneal_lr: budget.env_steps or budget.updates must be given, got neither; set one, or "
            "schedule.anneal_lr=false"
        )
    return max(1, int(min(limits)))
