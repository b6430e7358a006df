"""Test how much memory a task needs, by agents that see different numbers of timesteps.

    yamame probe env=tmaze env.length=6                           # --help lists the keys
    yamame probe env=bandits probe.windows=[1,4,16,null] probe.seeds=[0,1,2,3,4]
    yamame probe env=gym env.id=mylab:Levers-v0 budget.env_steps=100000
    yamame probe env=mazerunner budget.cpu_s=120

Options are those of recipes/train.py, except for the encoder: a Transformer of one layer sees the
latest timesteps, its window, and nothing before. Every window is trained with several seeds,
because the verdict compares the differences between windows with the noise between trainings. The
agents are ordinary runs in one folder: finished runs are not repeated, interrupted ones are
resumed. Their best checkpoints and a random policy then play the same held-out tasks. The recipe
prints a table and a verdict, and writes both to <folder>/probe.json.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line(
        "probe", resumable=True, without_sweeps="a probe is many runs already; see probe.seeds"
    )

# isort: split
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import yamame
from omegaconf import DictConfig
from yamame.checks import UsageError, bounds_of, require_setting
from yamame.cli.app import main
from yamame.cli.jobs import overrides
from yamame.cli.nodes import plain
from yamame.cli.training_settings import ProbeConfig
from yamame.evaluation import EvaluationResult, NeededMemory, judge_memory
from yamame.evaluation.needed_memory import distinct_windows
from yamame.files.atomic import write_json
from yamame.files.identity import is_one_of, key_of
from yamame.files.trusted import own_modules
from yamame.report.needed_memory import print_needed_memory
from yamame.runs.build import build_env, longest_episode
from yamame.runs.playing import EvaluationSettings, RunEvaluator
from yamame.runs.run import Run
from yamame.runs.several import group_folder, train_or_resume
from yamame.runs.trained import load_trained

ONE_LAYER = ("encoder=transformer", "encoder.num_layers=1", "encoder.sinks=0")
"""Fixed settings of the encoder: a second layer would see further back than the window."""
FIXED = {*map(key_of, ONE_LAYER), "encoder.window", "seed", "resume", "run.overwrite"}
INTERRUPTED = "interrupted: the same command resumes here, finished agents are not trained again"
TASKS = 2_000_000_011
"""Seed of the held-out tasks: that of recipes/evaluate.py, not that which chose checkpoints."""


def probe(cfg: ProbeConfig) -> NeededMemory:
    """Train and evaluate all agents, then judge how much memory the task needs."""
    own = ("probe", "run.name", "run.root")
    given = [text for text in overrides() if not is_one_of(key_of(text), own)]
    check(cfg, given)
    folder = group_folder(cfg.run, given, prefix="probe")
    common = [*cfg.probe.settings, *given, *ONE_LAYER, f"run.root='{folder}'"]
    setting = yamame.compose(*common)
    with closing(build_env(setting, num_envs=1, seed=0)) as env:
        longest = longest_episode(env)
    windows = distinct_windows(cfg.probe.windows, longest, setting.context_length)
    condition = f"differ in what agents see, but episodes have {longest} timestep"
    require_setting("probe.windows", list(cfg.probe.windows), len(windows) > 1, condition)

    runs = []
    for window in windows:
        runs.append([train_agent(common, folder, window, seed) for seed in cfg.probe.seeds])
    scores = []
    for same_window in runs:
        results = [evaluate(setting, run.path) for run in same_window]
        scores.append([result.task_scores().tolist() for result in results])
    random = evaluate(setting)

    found = judge_memory(
        windows,
        scores,
        random.task_scores().tolist(),
        margin=cfg.probe.margin,
        confidence=cfg.probe.confidence,
        highest=None if random.success is None else 1.0,
    )
    cpu_s = [sum(run.summary["cpu_s"] for run in same_window) for same_window in runs]
    print_needed_memory(" ".join(given), found, cpu_s)
    paths = [[str(run.path) for run in same_window] for same_window in runs]
    report = {**asdict(found), "verdict": str(found), "command": given, "runs": paths}
    print(write_json(folder / "probe.json", report))
    return found


def check(cfg: ProbeConfig, given: list[str]) -> None:
    """Raise for overrides that the probe sets itself, and for settings out of their range."""
    fixed = FIXED.intersection(map(key_of, given))
    if fixed:
        key = min(fixed)
        remedy = "see probe.windows and probe.seeds"
        raise UsageError("must be left to the probe", key=key, remedy=remedy)
    seeds = list(cfg.probe.seeds)
    differ = len(set(seeds)) == len(seeds)
    condition = "name at least one seed, each once"
    require_setting("probe.seeds", seeds, bool(seeds) and differ, condition)
    episodes = cfg.evaluation.num_episodes
    require_setting("evaluation.num_episodes", episodes, episodes >= 2, "be at least 2")
    windows = list(cfg.probe.windows)
    is_longer = any(window != 1 for window in windows)
    condition = "name a window of more than 1 timestep (a window of 1 is always added)"
    require_setting("probe.windows", windows, is_longer, condition)
    for name, bounds in bounds_of(judge_memory).items():
        value = cfg.probe[name]
        if not bounds.contain(value):
            raise UsageError(f"probe.{name}: must {bounds.condition}, got {value}")


def train_agent(common: list[str], folder: Path, window: int | None, seed: int) -> Run:
    """Train the agent of a window and a seed, unless that is done; return the finished run."""
    sees = "null" if window is None else window
    name = f"{folder.name}-window-{sees}-seed-{seed}"
    own = [f"encoder.window={sees}", f"seed={seed}", f"run.name='{name}'"]
    run = train_or_resume(*common, *own, on_interrupt=lambda: INTERRUPTED)
    before = run.checkpoints.read_config()["budget"]
    if before != run.config["budget"]:
        message = f"{run.path} was trained with another budget, {before}"
        raise UsageError(message, key="run.name", remedy="give the probe another name")
    return run


def evaluate(cfg: DictConfig, path: Path | None = None) -> EvaluationResult:
    """Evaluate the best checkpoint of a run, or a random policy, on the held-out tasks."""
    settings = replace(EvaluationSettings.of(cfg), seed=TASKS)
    if path is not None:
        trust = [*cfg.trust, *own_modules(plain(cfg.env))]  # all of it was typed
        trained = load_trained(path, trust=trust, device=cfg.device)
        return RunEvaluator(trained, settings).evaluate()
    num_envs = settings.batch_size
    with closing(build_env(cfg, num_envs=num_envs, seed=TASKS, held_out=True)) as env:
        return settings.evaluate(env.rand_action, env)


if __name__ == "__main__":
    main(probe, config_name="probe", resumable=True)
