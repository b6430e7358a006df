"""Train one in-context agent from data alone; the environment is only used to evaluate it.

    yamame offline data=runs data.path=runs/mine [key=value]  # --help lists the keys
    yamame offline data=npz data.path='*.npz' env=tmaze agent=bc run.name=bc
    yamame offline data=npz data.path='*.npz' env=tmaze agent=bc run.name=bc resume=true

docs/data.md describes the formats of data. Trajectories must fit the environment, which also plays
the held-out tasks. `agent=bc` clones all behaviour in the data; `agent=amago` (the default) learns
as it does from replay.

On a CPU, a resumed run ends with the same parameters as one that was never stopped, bit for bit.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("offline", resumable=True)

# isort: split
from collections.abc import Sequence
from functools import partial

from yamame import distributed
from yamame.checks import SettingError
from yamame.cli.app import main
from yamame.cli.training_settings import OfflineConfig
from yamame.runs import build
from yamame.runs.callbacks import Callback
from yamame.runs.discounts import with_gammas
from yamame.runs.held_out import held_out_env
from yamame.runs.run import Run
from yamame.runs.schedules import annealing
from yamame.training import Prefetcher
from yamame.training.seeding import seed_everything


def train(cfg: OfflineConfig, callbacks: Sequence[Callback] = ()) -> float:
    """Run the recipe; return success on held-out tasks, or the mean return without success."""
    with (
        distributed.process_group(cfg.device),
        Run(cfg, unit="updates", callbacks=callbacks) as run,
    ):
        seed = distributed.rank_seed(cfg.seed)
        seed_everything(seed)
        held_out = run.closing(held_out_env(cfg))
        # The training environment defines the format of trajectories, the horizon, and which
        # instructions are held out.
        env = run.closing(build.build_env(cfg, num_envs=1, seed=seed))
        agent = build.build_agent(with_gammas(run, env), held_out)
        agent = distributed.broadcast_parameters(agent)
        learner = build.build_learner(cfg, agent, guard=run.guard, fall=annealing(run))
        data = build.build_data(cfg, env, transform=build.build_transform(cfg, env))
        if data is None:
            remedy = "set data=runs data.path=..., or data=npz"
            raise SettingError("data", None, "be given", remedy=remedy)
        batch_size = distributed.shard(cfg.schedule.batch_size, "schedule.batch_size")
        batches = Prefetcher(partial(data.sample, batch_size), cfg.device)
        components = {"agent": agent, **learner.components(), "data": data}
        policy = build.evaluated_policy(agent, learner)
        run.begin(components, policy=policy, held_out=held_out)

        while not run.ended():
            for batch, meanwhile in batches.up_to(run.updates_left(), ends=run.is_last):
                run.learned(learner.update(batch, meanwhile=meanwhile))
            if run.updates_left():
                run.end_within_iteration()
            run.log(run.metrics())
            run.evaluate_and_save()

        return run.finish()


if __name__ == "__main__":
    main(train, config_name="offline", resumable=True, shared=True)
