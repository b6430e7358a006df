"""Asks whether a task needs memory, and how long: trains agents that differ only in how many timesteps they see.

    python recipes/probe.py env=tmaze env.length=6                             # --help lists the keys
    python recipes/probe.py env=bandits probe.windows=[1,4,16,null] probe.seeds=[0,1,2]
    python recipes/probe.py env=gym env.id=mylab:Levers-v0 budget.env_steps=100000
    python recipes/probe.py env=mazerunner callbacks=cost_limit callbacks.cost_limit.cpu_s=120

It takes what recipes/train.py takes, the encoder aside: a Transformer of one layer sees the latest timesteps, its
window, and nothing before. Its agents are ordinary runs with the same seeds, sizes and budget, in one folder: a run
that is finished is not repeated, and one that was interrupted goes on. All then play the same held-out tasks with their
best checkpoints, beside a random policy. A table, and the shortest memory that does as well as the best within the
noise, are printed and written to <folder>/probe.json.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # of a checkout that is not installed

import yamame.cli.front
import yamame.cli.threads  # sets what torch reads when it is imported
import yamame.signals

if __name__ == "__main__":
    import sys

    yamame.signals.end_while_loading()
    yamame.cli.front.answer("probe")
    if {"-m", "--multirun"}.intersection(sys.argv):
        yamame.cli.front.fail("probe", "-m: must be left out, a probe is many runs already; see probe.seeds")

# isort: split
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import yamame
from omegaconf import DictConfig
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.jobs import overrides
from yamame.cli.names import file_name
from yamame.cli.nodes import instantiate
from yamame.evaluation import NeededMemory, evaluate, judge_memory
from yamame.files.atomic import write_json
from yamame.files.identity import is_one_of, key_of, makes_another_name
from yamame.report.terminal import print_columns
from yamame.runs.build import build_env, longest_episode
from yamame.runs.run import Run
from yamame.runs.trained import load_trained

ONE_LAYER = ("encoder=transformer", "encoder.num_layers=1", "encoder.sinks=0")
"""What of the encoder is no choice: further layers would see further back than the window."""
ITS_OWN = {*map(key_of, ONE_LAYER), "encoder.window", "seed", "resume", "run.overwrite"}
TASKS = 2_000_000_011  # as in recipes/evaluate.py: not those that chose the best checkpoints


def probe(cfg: DictConfig) -> NeededMemory:
    """The recipe: what all agents reach, and how long a memory the task needs."""
    resampling = instantiate(cfg.probe.resampling)
    typed, folder = typed_of(cfg)
    common = [*cfg.probe.settings, *typed, *ONE_LAYER, "resume=auto", f"run.root='{folder}'"]
    setting = yamame.compose(*common)
    with closing(build_env(setting, num_envs=1, seed=0)) as env:
        windows = windows_of(cfg.probe.windows, longest_episode(env), setting.context_length)
    runs = [[trained(common, folder, window, seed) for seed in cfg.probe.seeds] for window in windows]
    chance, scores = played(setting), [[played(setting, run.path) for run in several] for several in runs]
    found = judge_memory(windows, scores, chance, margin=cfg.probe.margin, resampling=resampling)
    tell(found, runs, " ".join(typed))
    agents = [[str(run.path) for run in several] for several in runs]
    report = {**asdict(found), "verdict": str(found), "command": typed, "runs": agents}
    print(write_json(folder / "probe.json", report))
    return found


def typed_of(cfg: DictConfig) -> tuple[list[str], Path]:
    """What every run is given of the command line, and the folder that they share.

    Raises:
        UsageError: Something was typed that is the probe's own.
    """
    typed = [text for text in overrides() if not is_one_of(key_of(text), ("probe", "run.name", "run.root"))]
    if own := ITS_OWN.intersection(map(key_of, typed)):
        raise UsageError(f"{min(own)}: must be left to the probe; see probe.windows and probe.seeds")
    seeds, name = list(cfg.probe.seeds), str(cfg.run.name or "")
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"probe.seeds: must name one at least, each once, got {seeds}")
    if cfg.evaluation.num_episodes * len(seeds) < 2:
        raise UsageError("evaluation.num_episodes: must be at least 2 with one seed, got 1")
    if "/" in name or name.startswith("."):
        raise UsageError(f"run.name: must be the name of a folder, got {name}")
    kept = ("budget", "evaluation", "callbacks")  # agents that are compared have them in common
    named = sorted(
        text for text in typed if makes_another_name(key_of(text)) or is_one_of(key_of(text), kept)
    )
    return typed, Path(cfg.run.root) / (name or file_name(["probe", *named]))


def windows_of(asked: Iterable[int | None], longest: int | None, context_length: int) -> list[int | None]:
    """Windows from 1 to the longest; those that see whole episodes are one, as long as an episode is."""
    known = float("inf") if longest is None else longest
    whole = longest if known <= context_length else None
    windows = {whole if window is None or window >= known else window for window in (1, *asked)}
    return sorted(windows, key=lambda window: float("inf") if window is None else window)


def trained(common: list[str], folder: Path, window: int | None, seed: int) -> Run:
    """The finished run of a window and a seed; what is left of it is done first."""
    sees = "null" if window is None else window
    named = f"run.name='{folder.name}-window-{sees}-seed-{seed}'"
    try:
        run = yamame.train(*common, f"encoder.window={sees}", f"seed={seed}", named)
    except KeyboardInterrupt:
        print("the same probe goes on where this one ended: its agents that are done are not trained again")
        raise SystemExit(yamame.signals.STATUS) from None
    if (before := run.checkpoints.read_config()["budget"]) != run.config["budget"]:
        raise UsageError(
            f"run.name: {run.path} was trained with another budget, {before}; give the probe another name"
        )
    return run


def played(cfg: DictConfig, path: Path | None = None) -> list[float]:
    """Success, else the return, of every held-out task: of a run by its best checkpoint, or of a random policy."""
    evaluation = cfg.evaluation
    num_envs = min(evaluation.num_envs or evaluation.num_episodes, evaluation.num_episodes)
    with closing(build_env(cfg, num_envs=num_envs, seed=TASKS, held_out=True)) as env:
        policy = env.rand_action
        if path is not None:
            policy = load_trained(path, trust=list(cfg.trust), device=cfg.device).build_agent(env).policy()
        options = {name: evaluation[name] for name in ("num_episodes", "greedy", "max_steps")}
        result = evaluate(policy, env, seed=TASKS, **options)
    return (result.returns if result.success is None else result.success.double()).tolist()


def tell(found: NeededMemory, runs: list[list[Run]], title: str) -> None:
    """Prints the table and the verdict."""
    rows = [
        {
            "timesteps seen": "all" if one.window is None else one.window,
            "score": str(one.score),
            "behind the best": str(one.behind),
            "standing": one.standing,
            "CPU-s": round(sum(run.summary["cpu_s"] for run in several)),
        }
        for one, several in zip(found.reached, runs, strict=True)
    ]
    print_columns(title, [*rows, {"timesteps seen": "random", "score": str(found.random)}])
    print(found)
    if len(runs[0]) == 1:
        print("one seed: the intervals say nothing of what another one would learn; see probe.seeds")
    print("what was not learnt yet looks like what cannot be known: budget.env_steps gives more time")


if __name__ == "__main__":
    main(probe, config_name="probe", resumable=True)
