"""Train one in-context agent on one environment (AMAGO, arXiv 2310.09971).

    yamame train encoder=gru env=mazerunner run.name=mine  # --help lists groups and keys
    yamame train encoder=gru env=mazerunner run.name=mine resume=true
    yamame train -m encoder=gru,transformer seed=0,1          # a sweep
    yamame train data=npz data.path='demos/*.npz' schedule.offline_updates=1000
    torchrun --nproc-per-node=2 recipes/train.py env=mazerunner          # two processes, one run

After every `schedule.steps_per_iteration` environment steps the learner makes as many updates as
`schedule.updates_per_step` allows. Checkpoints hold all state between two updates: on a CPU, a
resumed run ends with the same parameters as one that was never stopped, bit for bit (except with
`collector=ray`, which acts while the learner learns). Metrics are logged to MLflow.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("train", resumable=True)

# isort: split
from collections.abc import Sequence

from yamame.cli.app import main
from yamame.cli.training_settings import TrainConfig
from yamame.distributed import process_group, shard
from yamame.runs import parts
from yamame.runs.build import evaluated_policy
from yamame.runs.callbacks import Callback
from yamame.runs.phases import collect, learn_offline, regulate, updates_due
from yamame.runs.run import Run


def train(cfg: TrainConfig, callbacks: Sequence[Callback] = ()) -> float:
    """Run the recipe; return success on held-out tasks, or the mean return without success."""
    with process_group(cfg.device), Run(cfg, callbacks=callbacks) as run:
        env, held_out = parts.build_envs(run)
        agent, learner = parts.build_agent_and_learner(run, env)
        replay, source = parts.build_replay(run, env)
        batches = parts.build_batches(run, source)
        collector = parts.build_collector(run, env, agent, replay, learner)
        num_steps = shard(cfg.schedule.steps_per_iteration, "schedule.steps_per_iteration")
        state = {"agent": agent, **learner.components(), "collector": collector, "replay": source}
        policy = evaluated_policy(agent, learner)
        run.begin(state, policy=policy, held_out=held_out, on_saved=replay.protect)

        learn_offline(run, learner, batches)
        collector.update_policy_weights_(parts.policy_weights(agent))
        while not run.ended():
            if not updates_due(run, source):  # a resumed run first makes the updates that were left
                collect(run, collector, num_steps)
            for batch, meanwhile in batches.up_to(updates_due(run, source), ends=run.is_last):
                run.learned(learner.update(batch, meanwhile=meanwhile))
            if updates_due(run, source):
                run.end_within_iteration()
            else:
                regulate(run, learner, replay)
            collector.update_policy_weights_(parts.policy_weights(agent))

            run.log(run.metrics(collector.metrics()))
            run.evaluate_and_save()

        return run.finish()


if __name__ == "__main__":
    main(train, config_name="train", resumable=True, shared=True)
