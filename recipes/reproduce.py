"""Repeat a published experiment: train its seeds, play its tasks, compare the result.

    yamame reproduce rsm/dark_key_to_door memory=gru      # --help lists the keys
    yamame reproduce rsm/tmaze minutes=10                 # a piece; repeat to continue
    yamame reproduce rsm/tmaze edition=small num_tasks=8  # does it run at all?

A contract in conf/reproduce names the experiment that is trained, the measure of a task, the margin
and the published numbers. Finished runs are not repeated. After a piece the recipe prints how far
the run is and how long the rest takes at this rate, and exits with status 75. Once all seeds are
trained, the reported tasks are played, and the verdict is printed and written to contract.json.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line, fail
    from yamame.system.installed import recipe_command

    # Prints help and usage errors before torch is imported.
    check_command_line("reproduce", resumable=True)
    if not any(text.startswith(("-", "reproduce=")) or "=" not in text for text in sys.argv[1:]):
        fail(
            "reproduce", f"name the experiment first, as in {recipe_command('reproduce')} rsm/tmaze"
        )

# isort: split
from functools import partial
from pathlib import Path
from typing import Any

import yamame
from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.cli.settings import ReproduceConfig
from yamame.evaluation import joint_estimate, measure
from yamame.evaluation.contract import judge_estimate
from yamame.files.atomic import write_json
from yamame.report.contracts import interval_lines, verdict_line
from yamame.runs.playing import EvaluationSettings, RunEvaluator
from yamame.runs.several import TimeSlice, train_or_resume
from yamame.runs.trained import load_trained


def reproduce(cfg: ReproduceConfig) -> dict[str, Any]:
    """Train all seeds, play the reported tasks, and compare the estimate with the published one."""
    common = overrides_of(cfg)
    contract = plain(cfg.contract)
    name = f"{contract['experiment']}-{cfg.memory}-{cfg.edition}"
    time_slice = TimeSlice(cfg.minutes)
    runs = []
    for seed in cfg.seeds:
        run_name = f"{name}-{seed}"
        overrides = [*common, f"seed={seed}", f"run.name={run_name}", f"run.root={cfg.root}"]
        on_interrupt = partial(describe_rest, run_name, time_slice)
        run = train_or_resume(*overrides, callbacks=[time_slice], on_interrupt=on_interrupt)
        runs.append(run)
    scores = [evaluate(cfg, run.path) for run in runs]

    ours = joint_estimate(scores, num_resamples=cfg.num_resamples)
    judgement = None
    if cfg.edition == "full":
        published, *_ = contract["published"][cfg.memory]
        judgement = judge_estimate(ours, published, contract["margin"])
    outcome, settled = judgement or (None, None)
    report = {
        "contract": contract,
        "memory": cfg.memory,
        "edition": cfg.edition,
        "ours": ours._asdict(),
        "outcome": outcome,
        "settled": settled,
        "cpu_s": sum(run.summary["cpu_s"] for run in runs),
        "wall_s": sum(run.summary["wall_s"] for run in runs),
        "tasks": scores,
    }

    print(f"{contract['experiment']} with {cfg.memory}: {contract['endpoint']} {ours.value:.3g}")
    print(*interval_lines(ours), sep="\n")
    by_seed = zip(cfg.seeds, ours.seeds, strict=True)
    print("seeds:", ", ".join(f"{seed}: {value:.3g}" for seed, value in by_seed))
    print(verdict_line(report))
    cost = f"{report['cpu_s']:,.0f} CPU-seconds, {report['wall_s']:,.0f} s"
    print(f"cost: {cost}; published: {contract['cost']}")
    folder = Path(cfg.root) / name
    folder.mkdir(parents=True, exist_ok=True)
    print(write_json(folder / "contract.json", report))
    return report


def overrides_of(cfg: ReproduceConfig) -> list[str]:
    """Return the overrides that all runs have in common.

    Raises:
        UsageError: The overrides are wrong.
    """
    experiment = f"experiment={cfg.contract.experiment}"
    memory = cfg.memories[cfg.memory]
    edition = cfg.editions[cfg.edition]
    overrides = [experiment, *memory, *edition, *cfg.overrides]
    yamame.compose(*overrides)
    return overrides


def describe_rest(name: str, time_slice: TimeSlice) -> str:
    """Describe how far an interrupted run is."""
    return f"{name}: {time_slice.describe_rest()}"


def evaluate(cfg: ReproduceConfig, path: Path) -> list[float]:
    """Measure every reported task, greedily and once each, with a run's last checkpoint."""
    num_tasks = cfg.num_tasks
    settings = EvaluationSettings(
        num_envs=num_tasks, num_episodes=num_tasks, greedy=True, max_steps=None, seed=0
    )
    run = RunEvaluator(load_trained(path, checkpoint="last"), settings)
    result = run.evaluate(task_seeds=range(cfg.first_task, cfg.first_task + num_tasks))
    scores: list[float] = measure(result, cfg.contract.endpoint).tolist()
    return scores


if __name__ == "__main__":
    main(reproduce, config_name="reproduce", resumable=True)
