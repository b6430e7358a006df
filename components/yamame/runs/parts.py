"""Parts of a run, each built from the run's configuration and the parts that it needs.

In a run of several processes (`yamame.distributed`), each process gets its share of the
environments, the batch and the replay capacity, and a seed of its own.
"""

from pathlib import Path
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.agent import InContextAgent
from yamame.cli.nodes import instantiate
from yamame.collectors import Collector
from yamame.runs import build
from yamame.runs.checks import check_positions, check_regulation
from yamame.runs.curriculum import follow_curriculum, observed
from yamame.runs.discounts import with_gammas
from yamame.runs.held_out import held_out_env
from yamame.runs.run import Run
from yamame.runs.schedules import annealing, batch_size
from yamame.training import Learner, Prefetcher
from yamame.training.seeding import seed_everything


def build_envs(run: Run) -> tuple[EnvBase, EnvBase]:
    """Seed all random number generators, then build the environments.

    Returns:
        The environment of training, and that of the held-out tasks. Both are closed when the run
        ends.

    Raises:
        UsageError: The budget ends before the first update, or an episode is longer than the replay
            buffer or a learned table of positions.
    """
    cfg = run.cfg
    seed = distributed.rank_seed(cfg.seed)
    seed_everything(seed)  # before any part draws random numbers

    num_envs = distributed.shard(cfg.schedule.num_envs, "schedule.num_envs")
    env = build.build_env(cfg, num_envs=num_envs, seed=seed)
    env = run.closing(follow_curriculum(run, env, seed=seed))
    held_out = run.closing(held_out_env(cfg))
    build.check_lengths(cfg, env, run.regulator)
    check_positions(cfg, env)
    return env, held_out


def build_agent_and_learner(run: Run, env: EnvBase) -> tuple[InContextAgent, Learner]:
    """Build an agent for an environment, equal in all processes, and its learner."""
    cfg = with_gammas(run, env)
    agent = distributed.broadcast_parameters(build.build_agent(cfg, env))
    return agent, build.build_learner(cfg, agent, guard=run.guard, fall=annealing(run))


def build_replay(run: Run, env: EnvBase) -> tuple[Any, Any]:
    """Build the replay buffer and the source of batches.

    Returns:
        The buffer, and the source: the buffer itself, or a mixture of it and of data
        (``data=...``).
    """
    path = replay_folder(run)
    transform = build.build_transform(run.cfg, env, resumed=path if run.resumed else None)
    replay = build.build_replay(
        run.cfg, path, transform=transform, owner=run.name, resume=run.resumed
    )
    check_regulation(run.regulator, replay)
    source = build.build_source(
        run.cfg, env, replay=replay, transform=transform, progress=run.progress
    )
    return replay, source


def replay_folder(run: Run) -> Path:
    """Return the folder of this process's replay buffer."""
    return distributed.rank_dir(run.path / "replay")


def build_batches(run: Run, source: Any) -> Prefetcher:
    """Build the prefetcher, which samples batches and moves them to the learner's device."""

    def sample() -> TensorDictBase:
        batch: TensorDictBase = source.sample(batch_size(run))
        return batch

    return Prefetcher(sample, run.cfg.device)


def build_collector(
    run: Run, env: EnvBase, agent: InContextAgent, replay: Any, learner: Learner
) -> Collector:
    """Build the collector, which acts with the agent's policy and extends the replay buffer.

    A curriculum sees every episode before the replay buffer does.

    It is shut down when the run ends.
    """
    exploration = instantiate(run.cfg.exploration, action_space=agent.action_space)
    replay = observed(run, env, replay, learner)
    collector = build.build_collector(
        run.cfg, env=env, policy=agent.policy(), replay=replay, exploration=exploration
    )
    # Registered after the environments, and so shut down before they are closed.
    run.exits.callback(collector.shutdown)
    return collector


def policy_weights(agent: InContextAgent) -> TensorDictBase:
    """Return the weights of the agent's policy, as collectors take them."""
    return TensorDict.from_module(agent.policy()).data
