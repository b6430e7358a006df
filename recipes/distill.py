"""Distils learning itself into one in-context agent: algorithm distillation (arXiv 2210.14215).

    python recipes/distill.py [group=choice] [key=value]        # --help lists groups and keys
    python recipes/distill.py run.name=mine
    python recipes/distill.py run.name=mine resume=true

First many small learners learn one task each, in an environment with many trials of one task in an
episode: with `source.horizon` steps instead of the usual ones. Their whole histories, from the
first blunder to mastery, go to disk. Then the same encoder and actor as in `train.py` learn to
predict every action from the history before it. Who predicts how a learner goes on improves as it
did: at the end the agent plays held-out tasks without any update, and its return per trial stands
beside that of the learners and of itself without memory, in in_context.json and in_context.png.

The run lives in <run.root>/<run.name>; on a CPU a killed and resumed run ends with the same
parameters, bit for bit, as one that was never stopped.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    answer("distill", resumable=True)  # prints help and usage errors before torch is imported

# isort: split
from collections.abc import Sequence
from contextlib import closing

from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import Compose, EnvBase
from yamame.agent import InContextAgent, InContextPolicy
from yamame.baselines import learning_histories
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.nodes import instantiate, plain
from yamame.evaluation import evaluate
from yamame.files.atomic import write_json
from yamame.replay import TrialSubsampling
from yamame.report.figures import learning_curve
from yamame.runs.build import (
    build_agent,
    build_env,
    build_learner,
    build_packing,
    build_replay,
    evaluated_policy,
    relabels,
)
from yamame.runs.callbacks import Callback
from yamame.runs.held_out import held_out_env, play_held_out
from yamame.runs.run import Run
from yamame.training import Prefetcher
from yamame.training.seeding import seed_everything


def train(cfg: DictConfig, callbacks: Sequence[Callback] = ()) -> float:
    """The recipe: success on held-out tasks, or the mean return where an environment knows no
    success.
    """
    check(cfg)
    with Run(cfg, unit="updates", callbacks=callbacks) as run:
        seed_everything(cfg.seed)
        held_out = run.closing(held_out_env(cfg))
        agent = build_agent(cfg, held_out)
        learner = build_learner(cfg, agent, guard=run.guard, budget=run.budget)
        policy = evaluated_policy(agent, learner)
        longer = longer_episodes(cfg)
        env = run.closing(build_env(longer, num_envs=cfg.schedule.num_envs, seed=cfg.seed))
        source = instantiate(cfg.source.learner)(agent.action_space)
        transform = build_transform(cfg, agent, held_out, env)
        histories = build_replay(
            cfg, run.path / "histories", transform=transform, owner=run.name, resume=run.resumed
        )
        batches = Prefetcher(histories.sample, cfg.device)
        # Checkpoints are made when no source is learning.
        components = {"agent": agent, **learner.components(), "env": env, "histories": histories}
        run.begin(components, policy=policy, held_out=held_out, on_saved=histories.protect)

        while run.progress.env_steps < cfg.schedule.learning_starts or not len(histories):
            run.end_if_asked()
            source.reset_memory()
            batch = learning_histories(env, source, max_steps=cfg.source.horizon)
            histories.extend(batch.cpu())
            run.progress.env_steps += int(batch["mask"].sum()) - len(batch)
            run.log(improvement(batch), step=run.progress.env_steps)
            run.save()

        while not run.ended():
            for batch, meanwhile in batches.up_to(run.updates_left(), ends=run.is_last):
                run.learned(learner.update(batch, meanwhile=meanwhile))
            if run.updates_left():
                run.end_within_iteration()
            run.log(run.metrics())
            run.evaluate_and_save()

        objective = run.finish()
        compare(run, policy, held_out, source, longer)
    return objective


def check(cfg: DictConfig) -> None:
    """Refuses what means nothing to histories."""
    if cfg.budget.env_steps is not None:
        raise UsageError(
            "budget.env_steps: must be null, schedule.learning_starts counts those of the learners, got "
            f"{cfg.budget.env_steps}"
        )
    if relabels(cfg):
        strategy = cfg.relabel.get("strategy")
        raise UsageError(
            f"relabel.strategy={strategy}: histories cannot be relabelled; set relabel=none"
        )


def longer_episodes(cfg: DictConfig) -> DictConfig:
    """The configuration in which an episode is a whole history of learning."""
    config, horizon = plain(cfg), cfg.source.horizon
    if config["source"]["env"]:
        config["env"] |= config["source"]["env"]
    elif config.get("trials") is not None:
        config["trials"] |= {"num_trials": None, "horizon": horizon}
    elif "time_limit" in config["env"]:
        config["env"] |= {"time_limit": horizon}
    else:
        raise UsageError(
            "source.horizon: this environment takes no time_limit; set trials=repeated, or source.env to what "
            f"makes its episodes longer, got {horizon}"
        )
    return OmegaConf.create(config)


def build_transform(
    cfg: DictConfig, agent: InContextAgent, held_out: EnvBase, env: EnvBase
) -> Compose:
    """What happens to histories when they are sampled: cut to every so many-th trial, then packed.

    Raises:
        UsageError: The encoder does not remember an episode, a history does not fill one, or replay
            does not hold all histories.
    """
    steps, history = (
        int(e.observation_spec["step_index"].space.high.max()) for e in (held_out, env)
    )
    limit = agent.trajectory_encoder.context_length
    if limit is not None and limit <= steps:
        raise UsageError(f"context_length: must exceed the episode, {steps} steps, got {limit}")
    if history < steps:
        raise UsageError(
            f"source.horizon: must be at least the episode, {steps} steps, got {history}"
        )
    num_envs = cfg.schedule.num_envs
    rounds = -(-max(cfg.schedule.learning_starts, 1) // (history * num_envs))
    needed = rounds * num_envs * (history + 1)
    if cfg.replay.capacity < needed:
        raise UsageError(
            f"replay.capacity: must hold {needed} timesteps, got {cfg.replay.capacity}"
        )
    return Compose(TrialSubsampling(cfg.source.subsample, length=steps), *build_packing(cfg, steps))


def compare(
    run: Run,
    policy: InContextPolicy,
    held_out: EnvBase,
    source: TensorDictModuleBase,
    longer: DictConfig,
) -> None:
    """Writes the return per trial on held-out tasks: of the agent, of itself without memory, and of
    its source.
    """
    setting = run.cfg.evaluation
    num_envs, episodes, limit = held_out.batch_size[0], setting.num_episodes, setting.max_steps
    with closing(build_env(longer, num_envs=num_envs, seed=setting.seed, held_out=True)) as env:
        learned = evaluate(source, env, num_episodes=episodes, max_steps=limit, seed=setting.seed)
    results = {
        "distilled": play_held_out(run.cfg, policy, held_out),
        "memory_wiped": play_held_out(run.cfg, policy, held_out, memory_wiped=True),
        "source": learned,
    }
    returns = {name: result.common_trials().mean(0).tolist() for name, result in results.items()}
    returns["source_subsampled"] = returns["source"][:: run.cfg.source.subsample]
    run.extra["in_context"] = returns
    run.tracker.log_artifact(write_json(run.path / "in_context.json", returns))
    lines = {
        name: (range(1, len(line) + 1), line) for name, line in returns.items() if name != "source"
    }
    picture = learning_curve(run.path / "in_context.png", lines, x_label="trial", y_label="return")
    run.tracker.log_artifact(picture)


def improvement(histories: TensorDictBase) -> dict[str, float]:
    """Mean reward per step in the first and in the last tenth of the histories."""
    reward = histories["next", "reward"].flatten(1)
    tenth = max(1, reward.shape[1] // 10)
    return {
        "source/reward_first_tenth": float(reward[:, :tenth].mean()),
        "source/reward_last_tenth": float(reward[:, -tenth:].mean()),
    }


if __name__ == "__main__":
    main(train, config_name="distill", resumable=True)
