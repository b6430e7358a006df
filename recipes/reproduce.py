"""Repeat a published experiment: train its seeds, play its tasks, compare the result.

    yamame reproduce rsm/dark_key_to_door memory=gru      # --help lists the keys
    yamame reproduce rsm/tmaze minutes=10                 # a piece; repeat to continue
    yamame reproduce rsm/tmaze edition=small num_tasks=8  # does it run at all?
    yamame reproduce rsm/tmaze edition=cpu                # our default agent, minutes on one core

A contract in conf/reproduce names the experiment that is trained, the measure of a task, the margin
and the published numbers. Finished runs are not repeated. After a piece the recipe prints how far
the run is and how long the rest takes at this rate, and exits with status 75. Once all seeds are
trained, the reported tasks are played, and the verdict is printed and written to contract.json.
With edition=cpu, the default agent of `yamame train` has the same tasks and a threshold to reach.
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

from yamame.cli.app import main
from yamame.cli.nodes import plain
from yamame.cli.settings import ReproduceConfig
from yamame.evaluation import joint_estimate
from yamame.evaluation.contract import judge_estimate, judge_threshold
from yamame.files.atomic import write_json
from yamame.report.contracts import cost_lines, interval_lines, threshold_line, verdict_line
from yamame.runs.contracts import choice_of, cost_of, reported_scores
from yamame.runs.several import TimeSlice, train_or_resume


def reproduce(cfg: ReproduceConfig) -> dict[str, Any]:
    """Train all seeds, play the reported tasks, and compare the estimate with the published one."""
    choice = choice_of(cfg)
    contract = plain(cfg.contract)
    name = f"{choice.experiment}-{choice.memory}-{cfg.edition}"
    time_slice = TimeSlice(cfg.minutes)
    runs = []
    for seed in cfg.seeds:
        run_name = f"{name}-{seed}"
        overrides = [*choice.overrides, f"seed={seed}", f"run.name={run_name}"]
        on_interrupt = partial(describe_rest, run_name, time_slice)
        run = train_or_resume(
            *overrides, f"run.root={cfg.root}", callbacks=[time_slice], on_interrupt=on_interrupt
        )
        runs.append(run)
    scores = [reported_scores(cfg, run) for run in runs]

    ours = joint_estimate(scores, num_resamples=cfg.num_resamples)
    judgement = None
    if cfg.edition == "full":
        published, *_ = contract["published"][choice.memory]
        judgement = judge_estimate(ours, published, contract["margin"])
    outcome, settled = judgement or (None, None)
    costs = [cost_of(run) for run in runs]
    report = {
        "contract": contract,
        "memory": choice.memory,
        "edition": cfg.edition,
        "ours": ours._asdict(),
        "outcome": outcome,
        "settled": settled,
        "cpu_s": sum(cost["cpu_s"] for cost in costs),
        "wall_s": sum(cost["wall_s"] for cost in costs),
        "costs": dict(zip(map(str, cfg.seeds), costs, strict=True)),
        "tasks": scores,
    }
    if cfg.edition == "cpu":
        report |= judge_threshold(ours, cfg.contract.cpu.threshold)

    print(f"{choice.experiment} with {choice.memory}: {contract['endpoint']} {ours.value:.3g}")
    print(*interval_lines(ours), sep="\n")
    by_seed = zip(cfg.seeds, ours.seeds, strict=True)
    print("seeds:", ", ".join(f"{seed}: {value:.3g}" for seed, value in by_seed))
    if cfg.edition == "cpu":
        print(*cost_lines(report), threshold_line(report), sep="\n")
    else:
        print(verdict_line(report))
    cost = f"{report['cpu_s']:,.0f} CPU-seconds, {report['wall_s']:,.0f} s"
    print(f"cost: {cost}; published: {contract['cost']}")
    folder = Path(cfg.root) / name
    folder.mkdir(parents=True, exist_ok=True)
    print(write_json(folder / "contract.json", report))
    return report


def describe_rest(name: str, time_slice: TimeSlice) -> str:
    """Describe how far an interrupted run is."""
    return f"{name}: {time_slice.describe_rest()}"


if __name__ == "__main__":
    main(reproduce, config_name="reproduce", resumable=True)
