"""Train one in-context agent on-policy: RL^2, recurrent PPO over whole episodes of many trials.

    yamame ppo [group=choice] [key=value]        # --help lists groups and keys
    yamame ppo env=bandits encoder=gru run.name=mine
    yamame ppo env=bandits encoder=gru run.name=mine resume=true
    yamame ppo -m encoder=gru,transformer,memoryless seed=0,1

The baseline beside `train.py`: the same environments, encoders, evaluation, logging and
checkpoints, another learning rule (arXiv 1611.02779 with the clipped objective of arXiv
1707.06347). In every iteration all envs play complete episodes with the current policy, which then
learns from them for a few epochs; nothing is replayed later.

On a CPU, a resumed run ends with the same parameters as one that was never stopped, bit for bit.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("ppo", resumable=True)

# isort: split
from collections.abc import Iterator, Sequence

from tensordict import TensorDict, TensorDictBase
from torchrl.envs import Compose, EnvBase
from yamame.agent import InContextAgent
from yamame.checks import require_setting
from yamame.cli.app import main
from yamame.cli.nodes import target_of
from yamame.cli.training_settings import PPOConfig
from yamame.collectors import EpisodeCollector
from yamame.replay import OnPolicyBuffer, minibatches
from yamame.runs import build
from yamame.runs.callbacks import Callback
from yamame.runs.curriculum import follow_curriculum, observed
from yamame.runs.discounts import with_gammas
from yamame.runs.held_out import held_out_env
from yamame.runs.run import Run
from yamame.runs.schedules import annealing
from yamame.training.saved_buffers import SavedBuffers
from yamame.training.seeding import seed_everything


def train(cfg: PPOConfig, callbacks: Sequence[Callback] = ()) -> float:
    """Run the recipe; return success on held-out tasks, or the mean return without success."""
    relabelling = cfg.relabel.get("strategy", target_of(cfg.relabel).__name__)
    condition = "be none, because learning on-policy cannot relabel"
    remedy = "set relabel=none"
    require_setting("relabel", relabelling, not build.relabels(cfg), condition, remedy=remedy)
    with Run(cfg, callbacks=callbacks) as run:
        seed_everything(cfg.seed)
        env = build.build_env(cfg, num_envs=cfg.schedule.num_envs, seed=cfg.seed)
        env = run.closing(follow_curriculum(run, env, seed=cfg.seed))
        held_out = run.closing(held_out_env(cfg))
        agent = build.build_agent(with_gammas(run, env), env)
        check_context(agent, env)
        policy = agent.policy()
        learner = build.build_learner(cfg, agent, guard=run.guard, fall=annealing(run))
        packing = Compose(*build.build_packing(cfg, build.longest_episode(env)))
        episodes = OnPolicyBuffer()
        statistics = SavedBuffers(learner.loss)
        replay = observed(run, env, episodes, learner)
        collector = EpisodeCollector(env, policy, replay)
        # The buffer is no component: it is empty whenever a checkpoint is written.
        components = {"agent": agent, **learner.components(), "collector": collector}
        evaluated = build.evaluated_policy(agent, learner)
        run.begin(components, policy=evaluated, held_out=held_out)

        while not run.ended():
            run.count(collector.collect(cfg.schedule.steps_per_iteration))

            if len(episodes):  # not every episode failed
                statistics.save()
                updates_before = run.progress.updates
                with learner.precision():
                    # Advantages and log-probabilities of the policy that acted.
                    batch = learner.loss.annotate(episodes.take().to(cfg.device))
                for part in epochs(cfg, batch):
                    run.learned(learner.update(packing(part)))
                    limit = run.budget.updates
                    if limit is not None and run.progress.updates >= limit:
                        break
                if run.progress.updates > updates_before:
                    learner.loss.refresh(batch)
                else:
                    # Every update was skipped. Statistics must not learn from the batch either.
                    statistics.restore()
                collector.update_policy_weights_(TensorDict.from_module(policy).data)

            run.log(run.metrics(collector.metrics()))
            run.evaluate_and_save()

        return run.finish()


def check_context(agent: InContextAgent, env: EnvBase) -> None:
    """Raise for episodes that are longer than the memory of the encoder while it acts."""
    limit = agent.trajectory_encoder.context_length
    steps = build.longest_episode(env)
    if limit is not None and steps is not None:
        condition = f"exceed the longest episode, {steps} steps"
        require_setting("context_length", limit, limit > steps, condition)


def epochs(cfg: PPOConfig, batch: TensorDictBase) -> Iterator[TensorDictBase]:
    """Yield the minibatches of all epochs over some episodes."""
    for _ in range(cfg.schedule.epochs):
        yield from minibatches(batch, size=cfg.schedule.batch_size)


if __name__ == "__main__":
    main(train, config_name="ppo", resumable=True)
