"""Trains one in-context agent on one environment: collects, learns, evaluates, logs, checkpoints, resumes.

    python recipes/train.py [group=choice] [key=value]        # --help lists groups and keys
    python recipes/train.py encoder=gru env=mazerunner run.name=mine
    python recipes/train.py encoder=gru env=mazerunner run.name=mine resume=true
    python recipes/train.py -m encoder=gru,transformer seed=0,1
    python recipes/train.py data=npz data.path='demos/*.npz' schedule.offline_updates=1000

The run lives in <run.root>/<run.name>: checkpoints, replay, config.yaml, summary.json. Its metrics are in MLflow.
Collecting and learning alternate: after every `schedule.steps_per_iteration` environment steps the learner makes as
many updates as `schedule.updates_per_step` allows. All state between two updates is in the checkpoint, so that on a
CPU a killed and resumed run ends with the same parameters, bit for bit, as one that was never stopped (with
`collector=sync`; `collector=ray` acts beside the learner and never plays the same run twice). Several processes share
one run out: `torchrun --nproc-per-node=2 recipes/train.py ...` (docs/scale.md). With `data=...` batches
come from data and replay, and a run may begin with updates from data alone (docs/data.md).
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # of a checkout that is not installed

import yamame.cli.front
import yamame.cli.threads  # sets what torch reads when it is imported
import yamame.signals

if __name__ == "__main__":
    yamame.signals.end_while_loading()
    yamame.cli.front.answer("train")

# isort: split
from collections.abc import Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict
from yamame import ranks
from yamame.cli.app import main
from yamame.cli.nodes import instantiate
from yamame.collectors import Collector, Episodes
from yamame.runs.build import (
    build_agent,
    build_collector,
    build_env,
    build_learner,
    build_replay,
    build_source,
    build_transform,
    check_lengths,
    evaluated_policy,
)
from yamame.runs.callbacks import Callback
from yamame.runs.held_out import held_out_env
from yamame.runs.run import Run
from yamame.training import Learner, Prefetcher
from yamame.training.seeding import seed_everything


def train(cfg: DictConfig, callbacks: Sequence[Callback] = ()) -> float:
    """The recipe: success on held-out tasks, or the mean return where an environment knows no success."""
    with ranks.joined(cfg.device), Run(cfg, callbacks=callbacks) as run:
        seed = ranks.own_seed(cfg.seed)
        seed_everything(seed)
        num_envs = ranks.part(cfg.schedule.num_envs, "schedule.num_envs")
        env = run.closing(build_env(cfg, num_envs=num_envs, seed=seed))
        held_out = run.closing(held_out_env(cfg))
        check_lengths(cfg, env)
        agent = ranks.equal(build_agent(cfg, env))
        policy, learner = agent.policy(), build_learner(cfg, agent, guard=run.guard, budget=run.budget)
        exploration = instantiate(cfg.exploration, action_space=agent.action_space)
        path = ranks.own_folder(run.path / "replay")
        transform = build_transform(cfg, env, resumed=path if run.resumed else None)
        replay = build_replay(cfg, path, transform=transform, owner=run.name, resume=run.resumed)
        source = build_source(cfg, env, replay=replay, transform=transform, progress=run.progress)
        batch_size = ranks.part(cfg.schedule.batch_size, "schedule.batch_size")
        num_steps = ranks.part(cfg.schedule.steps_per_iteration, "schedule.steps_per_iteration")
        batches = Prefetcher(partial(source.sample, batch_size), cfg.device)
        collector = build_collector(cfg, env=env, policy=policy, replay=replay, exploration=exploration)
        run.exits.callback(collector.shutdown)
        components = {"agent": agent, **learner.components(), "collector": collector, "replay": source}
        evaluated = evaluated_policy(agent, learner)
        run.begin(components, policy=evaluated, held_out=held_out, on_saved=replay.protect)

        learn_offline(run, learner, batches)
        collector.update_policy_weights_(TensorDict.from_module(policy).data)
        while not run.ended():
            if not updates_due(run, source):  # a run that stopped between two updates makes the rest first
                count(run, collector, collector.collect(num_steps))

            for batch, meanwhile in batches.up_to(updates_due(run, source), ends=run.is_last):
                run.learned(learner.update(batch, meanwhile=meanwhile))
            if updates_due(run, source):
                run.end_within_iteration()
            collector.update_policy_weights_(TensorDict.from_module(policy).data)

            run.log(run.metrics(collector.metrics()))
            run.evaluate_and_save()

        return run.finish()


def learn_offline(run: Run, learner: Learner, batches: Prefetcher) -> None:
    """Makes the updates that come before the first environment step, from data alone, and evaluates the outcome."""
    offline = run.cfg.schedule.offline_updates
    while run.progress.updates < offline and not run.ended():
        for batch, meanwhile in batches.up_to(min(100, offline - run.progress.updates), ends=run.is_last):
            run.learned(learner.update(batch, meanwhile=meanwhile))
        metrics = {f"offline/{key.removeprefix('train/')}": value for key, value in run.metrics().items()}
        run.log(metrics, step=run.progress.updates)
    if offline and not run.progress.curve:
        run.progress.evaluated_at = -run.cfg.evaluation.interval  # it is due now
        run.evaluate_and_save()


def count(run: Run, collector: Collector, own: Episodes) -> None:
    """Counts what all ranks played; an exploration's schedule goes by it too."""
    elsewhere = run.count(own).num_steps - own.num_steps
    exploration = getattr(collector, "exploration", None)
    if elsewhere and exploration is not None:
        exploration.step(elsewhere)


def updates_due(run: Run, source: Any) -> int:
    """Updates that the steps collected so far allow and that were not made yet."""
    if ranks.any_of(len(source) == 0):
        return 0
    schedule = run.cfg.schedule
    beyond = run.progress.env_steps - schedule.learning_starts
    return max(0, int(beyond * schedule.updates_per_step) + schedule.offline_updates - run.progress.updates)


if __name__ == "__main__":
    main(train, config_name="train", resumable=True, shared=True)
