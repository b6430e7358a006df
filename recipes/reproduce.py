"""Repeats a published experiment: trains its seeds, plays its tasks, and says whether its number
comes out.

    python recipes/reproduce.py rsm/dark_key_to_door memory=gru                # --help lists the keys
    python recipes/reproduce.py rsm/tmaze minutes=10                           # a piece; the same command goes on
    python recipes/reproduce.py rsm/tmaze edition=small num_tasks=8            # does it run at all?

A contract in conf/reproduce names the experiment that is trained, what is measured of a task, the
margin, and what was published. A run that is finished is not repeated. After a piece the recipe
says how far the run is, what the rest will take at the rate of this piece, and ends with status 75.
Once all seeds are trained, the reported tasks are played, and the verdict is printed and written to
contract.json.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer, fail
    from yamame.system.installed import recipe_command

    answer("reproduce", resumable=True)  # prints help and usage errors before torch is imported
    if not any(text.startswith(("-", "reproduce=")) or "=" not in text for text in sys.argv[1:]):
        fail(
            "reproduce", f"name the experiment first, as in {recipe_command('reproduce')} rsm/tmaze"
        )

# isort: split
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import yamame
from omegaconf import DictConfig
from torch import Tensor
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.jobs import parts_of_one
from yamame.cli.nodes import plain
from yamame.evaluation import evaluate, joint_estimate, judge, measure
from yamame.evaluation.contract import JointEstimate
from yamame.files.atomic import write_json
from yamame.runs.run import Run
from yamame.runs.trained import load_trained


class Piece(yamame.Callback):
    """Ends a run in order, to go on later, when its minutes are over; counts what it did in
    them.
    """

    def __init__(self, minutes: float | None) -> None:
        self.seconds = float("inf") if minutes is None else 60 * minutes
        self.began = time.monotonic()
        self.run: Run | None = None

    def on_begin(self, run: Run) -> None:
        """The run begins, or goes on."""
        self.run, self.begun_s = run, time.monotonic()
        self.before = run.progress.updates, run.progress.env_steps

    def on_update(self, run: Run, metrics: Any) -> None:
        """Looks at the clock; asks once, for a second signal would end the process at once."""
        if (
            yamame.system.signals.received() is None
            and time.monotonic() - self.began > self.seconds
        ):
            signal.raise_signal(signal.SIGTERM)

    def left(self) -> str:
        """What is left of the run, and what that will take."""
        assert self.run is not None
        progress, total = self.run.progress, self.run.budget.env_steps
        spent, made = time.monotonic() - self.begun_s, progress.updates - self.before[0]
        told = f"{progress.env_steps:,} steps and {progress.updates:,} updates"
        share = self.run.budget.fraction(env_steps=progress.env_steps, updates=progress.updates)
        if not made or not total:
            return f"{told}, {share:.2%} of the run; no update was made in this piece"
        rest = spent / made * max(0.0, progress.updates / share - progress.updates)
        return f"{told}, {share:.2%} of the run; the rest takes {timedelta(seconds=round(rest))} at this rate"


def reproduce(cfg: DictConfig) -> dict[str, Any]:
    """Train all seeds, play the reported tasks, and compare the estimate with the published one."""
    chosen = overrides_of(cfg)
    piece = Piece(cfg.minutes)
    runs = [trained(cfg, [*chosen, f"seed={seed}"], seed, piece) for seed in cfg.seeds]
    scores = [played(cfg, run.path).tolist() for run in runs]

    contract, ours = plain(cfg.contract), joint_estimate(scores, num_resamples=cfg.num_resamples)
    report = {
        "contract": contract,
        "memory": cfg.memory,
        "edition": cfg.edition,
        "ours": ours._asdict(),
        **verdict_of(cfg, ours),
        "cpu_s": sum(run.summary["cpu_s"] for run in runs),
        "wall_s": sum(run.summary["wall_s"] for run in runs),
        "tasks": scores,
    }
    show(cfg, ours, report)
    folder = Path(cfg.root) / f"{contract['experiment']}-{cfg.memory}-{cfg.edition}"
    folder.mkdir(parents=True, exist_ok=True)
    print(write_json(folder / "contract.json", report))
    return report


def verdict_of(cfg: DictConfig, ours: JointEstimate) -> dict[str, Any]:
    """Verdict on the mean, and whether all of Student's interval agrees with it; None where there
    is no verdict.
    """
    if cfg.edition != "full" or len(ours.seeds) < 2:
        return {"outcome": None, "settled": None}
    published, margin = cfg.contract.published[cfg.memory][0], cfg.contract.margin
    outcome = judge(ours.value, published, margin)
    ends = {judge(value, published, margin) for value in ours.student or ()}
    return {"outcome": outcome, "settled": ends == {outcome}}


def show(cfg: DictConfig, ours: JointEstimate, report: dict[str, Any]) -> None:
    """Print the estimate with its intervals, the published one, the verdict and the cost."""
    contract = report["contract"]
    print(f"{contract['experiment']} with {cfg.memory}: {contract['endpoint']} {ours.value:.3g}")
    if ours.student is None:
        reason = "one seed says" if len(ours.seeds) == 1 else "seeds that do not differ say"
        print(f"no interval over seeds: {reason} nothing about other seeds")
        if len(ours.seeds) > 1:
            print(f"interval over tasks, of these agents alone: {interval(ours.tasks)}")
    else:
        print(f"Student's interval over {len(ours.seeds)} seeds: {interval(ours.student)}")
    if ours.bootstrap is not None:
        print(
            f"bootstrap over seeds and tasks, as published: {interval(ours.bootstrap)}, narrow for few seeds"
        )
    by_seed = zip(cfg.seeds, ours.seeds, strict=True)
    print("seeds:", ", ".join(f"{seed}: {value:.3g}" for seed, value in by_seed))

    if report["outcome"] is not None:
        unsettled = "there is no interval over seeds"
        if ours.student is not None:
            unsettled = "Student's interval reaches beyond this range"
        note = "" if report["settled"] else f", not settled: {unsettled}"
        verdict = f"{report['outcome']}{note}"
    elif cfg.edition == "full":
        verdict = "no verdict from one seed"
    else:
        verdict = f"no verdict on edition={cfg.edition}"
    value, *ends = contract["published"][cfg.memory]
    print(f"published: {value:.3g} {interval(ends)}, margin {contract['margin']:g}: {verdict}")
    cost = f"{report['cpu_s']:,.0f} CPU-seconds, {report['wall_s']:,.0f} s"
    print(f"cost: {cost}; published: {contract['cost']}")


def interval(ends: Sequence[float] | None) -> str:
    """Format both ends of an interval; a dash stands for one that has no width."""
    return "[-]" if ends is None else f"[{ends[0]:.3g}, {ends[1]:.3g}]"


def overrides_of(cfg: DictConfig) -> list[str]:
    """The command line of a run without its seed.

    Raises:
        UsageError: There is no such memory or edition, no time, or a run would be refused.
    """
    if cfg.minutes is not None and cfg.minutes <= 0:
        raise UsageError(f"minutes: must be positive, or null for no limit, got {cfg.minutes}")
    for key, known in (("memory", cfg.memories), ("edition", cfg.editions)):
        if cfg[key] not in known:
            raise UsageError(f"{key}: must be one of {', '.join(known)}, got {cfg[key]}")
    chosen = [
        f"experiment={cfg.contract.experiment}",
        *cfg.memories[cfg.memory],
        *cfg.editions[cfg.edition],
    ]
    yamame.compose(*chosen, *cfg.overrides)
    return [*chosen, *cfg.overrides]


def trained(cfg: DictConfig, command: list[str], seed: int, piece: Piece) -> Run:
    """The finished run of a seed; what is left of it is done first, as far as the minutes allow."""
    name = f"{cfg.contract.experiment}-{cfg.memory}-{cfg.edition}-{seed}"
    named = [f"run.name={name}", f"run.root={cfg.root}", "resume=auto"]
    try:
        with parts_of_one():
            return yamame.train(*command, *named, callbacks=[piece])
    except KeyboardInterrupt:
        if piece.run is not None:
            print(f"{name}: {piece.left()}")
        raise SystemExit(yamame.system.signals.EXIT_STATUS) from None


def played(cfg: DictConfig, path: Path) -> Tensor:
    """What is measured of every reported task: greedily, once each, by the last checkpoint."""
    run = load_trained(path, checkpoint="last")
    tasks = range(cfg.first_task, cfg.first_task + cfg.num_tasks)
    with closing(run.build_env(num_envs=cfg.num_tasks, seed=0)) as env:
        result = evaluate(run.build_agent(env).policy(), env, greedy=True, task_seeds=tasks)
    return measure(result, cfg.contract.endpoint)


if __name__ == "__main__":
    main(reproduce, config_name="reproduce", resumable=True)
