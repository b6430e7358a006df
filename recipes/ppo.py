"""Trains one in-context agent on-policy: RL^2, recurrent PPO over whole episodes of many trials.

    python recipes/ppo.py [group=choice] [key=value]        # --help lists groups and keys
    python recipes/ppo.py env=bandits encoder=gru run.name=mine
    python recipes/ppo.py env=bandits encoder=gru run.name=mine resume=true
    python recipes/ppo.py -m encoder=gru,transformer,memoryless seed=0,1

The baseline beside `train.py`: the same environments, encoders, evaluation, logging and
checkpoints, another learning rule (arXiv 1611.02779 with the clipped objective of arXiv
1707.06347). In every iteration all envs play complete episodes with the present policy, which is
then changed by some epochs over those episodes; nothing is replayed later. On a CPU a killed and
resumed run ends with the same parameters, bit for bit, as one that was never stopped.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    answer("ppo", resumable=True)  # prints help and usage errors before torch is imported

# isort: split
from collections.abc import Iterator, Sequence

from omegaconf import DictConfig
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import Compose, EnvBase
from yamame.agent import InContextAgent
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.collectors import EpisodeCollector
from yamame.replay import OnPolicyBuffer, minibatches
from yamame.runs.build import (
    build_agent,
    build_env,
    build_learner,
    build_packing,
    evaluated_policy,
    longest_episode,
    relabels,
)
from yamame.runs.callbacks import Callback
from yamame.runs.held_out import held_out_env
from yamame.runs.run import Run
from yamame.training.seeding import seed_everything


def train(cfg: DictConfig, callbacks: Sequence[Callback] = ()) -> float:
    """The recipe: success on held-out tasks, or the mean return where an environment knows no
    success.
    """
    if relabels(cfg):
        strategy = cfg.relabel.get("strategy")
        raise UsageError(
            f"relabel.strategy={strategy}: learning on-policy cannot relabel; set relabel=none"
        )
    with Run(cfg, callbacks=callbacks) as run:
        seed_everything(cfg.seed)
        env = run.closing(build_env(cfg, num_envs=cfg.schedule.num_envs, seed=cfg.seed))
        held_out = run.closing(held_out_env(cfg))
        agent = build_agent(cfg, env)
        check_context(agent, env)
        policy, learner = (
            agent.policy(),
            build_learner(cfg, agent, guard=run.guard, budget=run.budget),
        )
        packing = Compose(*build_packing(cfg, longest_episode(env)))
        episodes = OnPolicyBuffer()
        collector = EpisodeCollector(env, policy, episodes)
        # Checkpoints are made when no episodes are held.
        components = {"agent": agent, **learner.components(), "collector": collector}
        run.begin(components, policy=evaluated_policy(agent, learner), held_out=held_out)

        while not run.ended():
            run.count(collector.collect(cfg.schedule.steps_per_iteration))

            if len(episodes):  # not every episode failed
                former, made_before = learner.statistics(), run.progress.updates
                with learner.precision():
                    batch = learner.loss.annotate(episodes.take().to(cfg.device))
                for part in epochs(cfg, batch):
                    run.learned(learner.update(packing(part)))
                    if (
                        run.budget.updates is not None
                        and run.progress.updates >= run.budget.updates
                    ):
                        break
                if run.progress.updates > made_before:
                    learner.loss.refresh(batch)
                # every update was refused: nothing is learned from the batch, not by looking either
                else:
                    learner.restore(former)
                collector.update_policy_weights_(TensorDict.from_module(policy).data)

            run.log(run.metrics(collector.metrics()))
            run.evaluate_and_save()

        return run.finish()


def check_context(agent: InContextAgent, env: EnvBase) -> None:
    """Refuses episodes that are longer than what the encoder remembers while it acts."""
    limit = agent.trajectory_encoder.context_length
    steps = longest_episode(env)
    if limit is not None and steps is not None and steps >= limit:
        raise UsageError(
            f"context_length: must exceed the longest episode, {steps} steps, got {limit}"
        )


def epochs(cfg: DictConfig, batch: TensorDictBase) -> Iterator[TensorDictBase]:
    """The batches of all epochs over some episodes, one by one."""
    for _ in range(cfg.schedule.epochs):
        yield from minibatches(batch, size=cfg.schedule.batch_size)


if __name__ == "__main__":
    main(train, config_name="ppo", resumable=True)
