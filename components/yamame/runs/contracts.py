"""Runs of a contract that repeats a published experiment (recipes/reproduce.py)."""

from contextlib import suppress
from typing import NamedTuple

from yamame.checks import UsageError
from yamame.cli.nodes import plain
from yamame.cli.settings import ReproduceConfig
from yamame.evaluation import measure
from yamame.files.atomic import read_json, write_json
from yamame.runs import api
from yamame.runs.playing import EvaluationSettings, RunEvaluator
from yamame.runs.run import Run
from yamame.runs.trained import load_trained


class Choice(NamedTuple):
    """Runs that an edition consists of.

    Attributes:
        experiment: Experiment that trains them.
        memory: Name of their memory.
        overrides: Overrides that they have in common.
    """

    experiment: str
    memory: str
    overrides: list[str]


def choice_of(cfg: ReproduceConfig) -> Choice:
    """Return the runs of the chosen edition.

    Raises:
        UsageError: The overrides are wrong.
    """
    contract = cfg.contract
    if cfg.edition == "cpu":
        experiment = str(contract.cpu.experiment)
        memory = cfg.memory or contract.cpu.memory
        # The default agent has encoders of their default sizes.
        chosen = [f"encoder={memory}", f"budget.cpu_s={contract.cpu.cpu_s:g}"]
    else:
        experiment = str(contract.experiment)
        memory = cfg.memory or "rsm"
        chosen = cfg.memories[memory]
    edition = cfg.editions[cfg.edition]
    overrides = [f"experiment={experiment}", *chosen, *edition, *cfg.overrides]
    api.compose(*overrides)
    return Choice(experiment, memory, overrides)


def reported_scores(cfg: ReproduceConfig, run: Run) -> list[float]:
    """Measure every reported task, greedily and once each, with a run's last checkpoint.

    The scores are saved in the directory of the run, and later calls return them.
    """
    contract = cfg.contract
    num_tasks = cfg.num_tasks or contract.num_tasks
    asked = {
        "endpoint": contract.endpoint,
        "env": plain(contract.env),
        "first_task": cfg.first_task,
        "num_tasks": num_tasks,
        # These tell the checkpoint from that of a run that was trained anew, or for longer.
        "trained": cost_of(run),
    }
    path = run.path / "reported.json"
    with suppress(FileNotFoundError, UsageError):  # never written, or damaged
        kept = read_json(path)
        if kept.get("asked") == asked:
            known: list[float] = kept["scores"]
            return known

    settings = EvaluationSettings(
        num_envs=num_tasks, num_episodes=num_tasks, greedy=True, max_steps=None, seed=0
    )
    trained = load_trained(run.path, checkpoint="last", env=plain(contract.env))
    tasks = range(cfg.first_task, cfg.first_task + num_tasks)
    result = RunEvaluator(trained, settings).evaluate(task_seeds=tasks)
    scores: list[float] = measure(result, contract.endpoint).tolist()
    write_json(path, {"asked": asked, "scores": scores})
    return scores


def cost_of(run: Run) -> dict[str, float]:
    """Return steps, updates and seconds of a run."""
    return {name: run.summary[name] for name in ("env_steps", "updates", "cpu_s", "wall_s")}
