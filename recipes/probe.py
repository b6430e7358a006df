"""Ask whether a task needs memory, and how much: train agents that differ in how many timesteps
they see.

    python recipes/probe.py env=tmaze env.length=6                             # --help lists the keys
    python recipes/probe.py env=bandits probe.windows=[1,4,16,null] probe.seeds=[0,1,2,3,4]
    python recipes/probe.py env=gym env.id=mylab:Levers-v0 budget.env_steps=100000
    python recipes/probe.py env=mazerunner callbacks=cost_limit callbacks.cost_limit.cpu_s=120

Options are those of recipes/train.py, except for the encoder: a Transformer of one layer sees the
latest timesteps, its window, and nothing before. Every window is trained with several seeds,
because the verdict compares the differences between windows with the noise between trainings. The
agents are ordinary runs with the same sizes and budget, in one folder. Finished runs are not
repeated, and interrupted ones are resumed. All agents then play the same held-out tasks with their
best checkpoints, beside a random policy. The recipe prints a table and a verdict, and writes both
to <folder>/probe.json.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import answer

    # Prints help and usage errors before torch is imported.
    answer("probe", resumable=True, without_sweeps="a probe is many runs already; see probe.seeds")

# isort: split
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import yamame
from omegaconf import DictConfig
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.jobs import overrides, parts_of_one
from yamame.cli.names import file_name
from yamame.evaluation import EvaluationResult, NeededMemory, evaluate, judge_memory
from yamame.files.atomic import write_json
from yamame.files.identity import is_one_of, key_of, makes_another_name
from yamame.report.terminal import print_columns
from yamame.runs.build import build_env, longest_episode
from yamame.runs.run import Run
from yamame.runs.trained import load_trained

ONE_LAYER = ("encoder=transformer", "encoder.num_layers=1", "encoder.sinks=0")
"""Fixed settings of the encoder: a second layer would see further back than the window."""
ITS_OWN = {*map(key_of, ONE_LAYER), "encoder.window", "seed", "resume", "run.overwrite"}
TASKS = (
    2_000_000_011  # as in recipes/evaluate.py; training chose its best checkpoints by other tasks
)


def probe(cfg: DictConfig) -> NeededMemory:
    """Train and score all agents, then judge how much memory the task needs."""
    typed, folder = typed_of(cfg)
    common = [*cfg.probe.settings, *typed, *ONE_LAYER, "resume=auto", f"run.root='{folder}'"]
    setting = yamame.compose(*common)
    with closing(build_env(setting, num_envs=1, seed=0)) as env:
        longest = longest_episode(env)
        windows = windows_of(cfg.probe.windows, longest, setting.context_length)
    if len(windows) < 2:
        raise UsageError(
            f"probe.windows: must differ in what agents see, but episodes have {longest} timestep, "
            f"got {list(cfg.probe.windows)}"
        )

    runs = [
        [trained(common, folder, window, seed) for seed in cfg.probe.seeds] for window in windows
    ]
    results = [[played(setting, run.path) for run in several] for several in runs]
    random = played(setting)

    found = judge_memory(
        windows,
        [[scores_of(result) for result in several] for several in results],
        scores_of(random),
        margin=cfg.probe.margin,
        confidence=cfg.probe.confidence,
        highest=None if random.success is None else 1.0,
    )
    show(found, runs, list(cfg.probe.seeds), " ".join(typed))
    agents = [[str(run.path) for run in several] for several in runs]
    report = {**asdict(found), "verdict": str(found), "command": typed, "runs": agents}
    print(write_json(folder / "probe.json", report))
    return found


def typed_of(cfg: DictConfig) -> tuple[list[str], Path]:
    """Command-line overrides of every run, and the folder that they share.

    Raises:
        UsageError: An override is one that the probe sets itself, or a setting of the probe is
            invalid.
    """
    typed = [
        text
        for text in overrides()
        if not is_one_of(key_of(text), ("probe", "run.name", "run.root"))
    ]
    if own := ITS_OWN.intersection(map(key_of, typed)):
        raise UsageError(
            f"{min(own)}: must be left to the probe; see probe.windows and probe.seeds"
        )
    seeds, name = list(cfg.probe.seeds), str(cfg.run.name or "")
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"probe.seeds: must name at least one seed, each once, got {seeds}")
    if cfg.evaluation.num_episodes < 2:
        raise UsageError(
            f"evaluation.num_episodes: must be at least 2, got {cfg.evaluation.num_episodes}"
        )
    if all(window == 1 for window in cfg.probe.windows):
        raise UsageError(
            "probe.windows: must name a window of more than 1 timestep (a window of 1 is always added), "
            f"got {list(cfg.probe.windows)}"
        )
    if not cfg.probe.margin < 1.0:
        raise UsageError(f"probe.margin: must be in [0, 1), got {cfg.probe.margin}")
    if not 0.0 < cfg.probe.confidence < 1.0:
        raise UsageError(f"probe.confidence: must be in (0, 1), got {cfg.probe.confidence}")
    if "/" in name or name.startswith("."):
        raise UsageError(f"run.name: must be the name of a folder, got {name}")
    kept = ("budget", "evaluation", "callbacks")  # agents that are compared have them in common
    named = sorted(
        text for text in typed if makes_another_name(key_of(text)) or is_one_of(key_of(text), kept)
    )
    return typed, Path(cfg.run.root) / (name or file_name(["probe", *named]))


def windows_of(
    asked: Iterable[int | None], longest: int | None, context_length: int
) -> list[int | None]:
    """Windows in ascending order, with 1; those that cover whole episodes are merged into one of
    that length.
    """
    known = float("inf") if longest is None else longest
    whole = longest if known <= context_length else None
    windows = {whole if window is None or window >= known else window for window in (1, *asked)}
    return sorted(windows, key=lambda window: float("inf") if window is None else window)


def trained(common: list[str], folder: Path, window: int | None, seed: int) -> Run:
    """Train the agent of a window and a seed, or finish its training; return the finished run."""
    sees = "null" if window is None else window
    named = f"run.name='{folder.name}-window-{sees}-seed-{seed}'"
    try:
        with parts_of_one():
            run = yamame.train(*common, f"encoder.window={sees}", f"seed={seed}", named)
    except KeyboardInterrupt:
        print(
            "interrupted: the same command resumes here, agents that are finished are not trained again"
        )
        raise SystemExit(yamame.system.signals.EXIT_STATUS) from None
    if (before := run.checkpoints.read_config()["budget"]) != run.config["budget"]:
        raise UsageError(
            f"run.name: {run.path} was trained with another budget, {before}; give the probe another name"
        )
    return run


def played(cfg: DictConfig, path: Path | None = None) -> EvaluationResult:
    """Play the held-out tasks with the best checkpoint of a run, or with a random policy."""
    evaluation = cfg.evaluation
    num_envs = min(evaluation.num_envs or evaluation.num_episodes, evaluation.num_episodes)
    with closing(build_env(cfg, num_envs=num_envs, seed=TASKS, held_out=True)) as env:
        policy = env.rand_action
        if path is not None:
            policy = (
                load_trained(path, trust=list(cfg.trust), device=cfg.device)
                .build_agent(env)
                .policy()
            )
        options = {name: evaluation[name] for name in ("num_episodes", "greedy", "max_steps")}
        return evaluate(policy, env, seed=TASKS, **options)


def scores_of(result: EvaluationResult) -> list[float]:
    """Success in every task, or the return where the environment does not report success."""
    return (result.returns if result.success is None else result.success.double()).tolist()


def show(found: NeededMemory, runs: list[list[Run]], seeds: list[int], title: str) -> None:
    """Print the table and the verdict."""
    is_over_seeds = len(seeds) > 1
    best = max(found.reached, key=lambda one: one.score.value)  # the shortest of equals
    rows = []
    for one, several in zip(found.reached, runs, strict=True):
        row = {
            "timesteps seen": "all" if one.window is None else one.window,
            "score": str(one.score),
        }
        row["behind the best"] = "-" if one is best else str(one.behind)
        if is_over_seeds:
            row["standing"] = one.standing
            row["by seed"] = ", ".join(f"{value:.3g}" for value in one.seeds)
        rows.append({**row, "CPU-s": round(sum(run.summary["cpu_s"] for run in several))})
    print_columns(title, [*rows, {"timesteps seen": "random", "score": str(found.random)}])
    print(found)
    if is_over_seeds:
        print(
            f"intervals: over {len(seeds)} seeds (Student), over tasks where seeds do not differ; "
            "between windows all at once (Tukey)"
        )
    else:
        print(
            "intervals: over tasks, of these agents alone; for a verdict train more, as probe.seeds=[0,1,2]"
        )
    if found.outcome != "needed":
        print(
            "memory that no agent has learnt to use yet shows no difference: see budget.env_steps"
        )


if __name__ == "__main__":
    main(probe, config_name="probe", resumable=True)
