"""Distil learning itself into one in-context agent: algorithm distillation (arXiv 2210.14215).

    yamame distill [group=choice] [key=value]        # --help lists groups and keys
    yamame distill run.name=mine
    yamame distill run.name=mine resume=true

First, many small learners learn one task each, in episodes of `source.horizon` steps with many
trials. Their whole histories, from the first to the last trial, are stored. Then the encoder and
actor of `train.py` learn to predict every action from the history before it. Predicting how a
learner continues means improving as it did: at the end, the return per trial on held-out tasks,
without any update, is compared with that of the learners and of the agent without memory
(in_context.json, in_context.png).

On a CPU, a resumed run ends with the same parameters as one that was never stopped, bit for bit.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("distill", resumable=True)

# isort: split
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from omegaconf import DictConfig
from tensordict.nn import TensorDictModuleBase
from yamame.baselines import learning_histories
from yamame.checks import require_setting
from yamame.cli.app import main
from yamame.cli.nodes import instantiate, target_of
from yamame.cli.training_settings import DistillConfig
from yamame.evaluation import EvaluationResult
from yamame.files.atomic import write_json
from yamame.report.figures import learning_curve
from yamame.runs import build
from yamame.runs.callbacks import Callback
from yamame.runs.discounts import with_gammas
from yamame.runs.extras import reported
from yamame.runs.held_out import held_out_env, play_held_out
from yamame.runs.histories import build_history_transform, improvement, longer_episodes
from yamame.runs.playing import EvaluationSettings
from yamame.runs.run import Run
from yamame.runs.schedules import annealing
from yamame.training import Prefetcher
from yamame.training.seeding import seed_everything


def train(cfg: DistillConfig, callbacks: Sequence[Callback] = ()) -> float:
    """Run the recipe; return success on held-out tasks, or the mean return without success."""
    check(cfg)
    with Run(cfg, unit="updates", callbacks=callbacks) as run:
        seed_everything(cfg.seed)
        held_out = run.closing(held_out_env(cfg))
        longer = longer_episodes(cfg)
        num_envs = cfg.schedule.num_envs
        env = run.closing(build.build_env(longer, num_envs=num_envs, seed=cfg.seed))
        agent = build.build_agent(with_gammas(run, env), held_out)
        learner = build.build_learner(cfg, agent, guard=run.guard, fall=annealing(run))
        policy = build.evaluated_policy(agent, learner)

        source = instantiate(cfg.source.learner)(agent.action_space)
        histories = build.build_replay(
            cfg,
            run.path / "histories",
            transform=build_history_transform(cfg, agent, held_out, env),
            owner=run.name,
            resume=run.resumed,
        )
        batches = Prefetcher(histories.sample, cfg.device)
        # The source is no component: checkpoints are written between its histories.
        components = {"agent": agent, **learner.components(), "env": env, "histories": histories}
        run.begin(components, policy=policy, held_out=held_out, on_saved=histories.protect)

        while run.progress.env_steps < cfg.schedule.learning_starts or not len(histories):
            run.exit_if_received()
            source.reset_memory()
            batch = learning_histories(env, source, max_steps=cfg.source.horizon)
            histories.extend(batch.cpu())
            # The last timestep of a history is no step.
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
        results = {
            "distilled": play_held_out(cfg, policy, held_out),
            "memory_wiped": play_held_out(cfg, policy, held_out, memory_reset="every_step"),
            "source": evaluate_source(longer, source, num_envs=held_out.batch_size[0]),
        }
        write_curves(run, results)
    return objective


def check(cfg: DistillConfig) -> None:
    """Raise for settings of `train.py` that do not apply to histories."""
    steps = cfg.budget.env_steps
    condition = "be null, because schedule.learning_starts limits the steps of the learners"
    require_setting("budget.env_steps", steps, steps is None, condition)
    relabelling = cfg.relabel.get("strategy", target_of(cfg.relabel).__name__)
    condition = "be none, because histories cannot be relabelled"
    remedy = "set relabel=none"
    require_setting("relabel", relabelling, not build.relabels(cfg), condition, remedy=remedy)


def evaluate_source(
    longer: DictConfig, source: TensorDictModuleBase, *, num_envs: int
) -> EvaluationResult:
    """Evaluate a learner that begins anew on each held-out task, in longer episodes."""
    # The learner explores by itself, so it has no mode to act by.
    settings = replace(EvaluationSettings.of(longer), greedy=False)
    seed = settings.seed
    with closing(build.build_env(longer, num_envs=num_envs, seed=seed, held_out=True)) as env:
        return settings.evaluate(source, env)


def write_curves(run: Run, results: dict[str, EvaluationResult]) -> None:
    """Write the mean return per trial as ``in_context.json`` and ``in_context.png``."""
    returns = {}
    for name, result in results.items():
        returns[name] = result.common_trials().mean(0).tolist()
    # The agent learns from every so many-th trial of a history, so this is its teacher's curve.
    returns["source_subsampled"] = returns["source"][:: run.cfg.source.subsample]
    run.extra["in_context"] = returns
    run.tracker.log_artifact(write_json(run.path / "in_context.json", returns))

    curves = {}
    for name, means in returns.items():
        if name != "source":
            curves[name] = (range(1, len(means) + 1), means)
    path = run.path / "in_context.png"
    with reported(f"{run.name}: {path.name}"):
        run.tracker.log_artifact(learning_curve(path, curves, x_label="trial", y_label="return"))


if __name__ == "__main__":
    main(train, config_name="distill", resumable=True)
