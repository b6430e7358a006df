"""Evaluate trained runs on held-out tasks: return, success and in-context curves, with intervals.

    python recipes/evaluate.py run=runs/mine [key=value]      # --help lists the keys
    python recipes/evaluate.py run=runs/mine env.size=13 context_length=2048 control=true
    python recipes/evaluate.py run=[runs/a,runs/b] against=[runs/c,runs/d]
    python recipes/evaluate.py run=runs/mine diagnose=all     # its memory: docs/howto/diagnose.md

A run is a directory, a checkpoint file or the id of an MLflow run. All runs play the same held-out
tasks; they are not those that chose the best checkpoint in training. Several runs are aggregated
over seeds and tasks; runs with the same environment are runs of one task.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("evaluate")

# isort: split
from dataclasses import asdict
from pathlib import Path
from typing import Any

from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.jobs import overrides
from yamame.cli.names import file_name
from yamame.cli.nodes import plain
from yamame.cli.settings import EvaluateConfig
from yamame.evaluation.intervals import Resampling
from yamame.files.atomic import write_json
from yamame.files.identity import key_of
from yamame.files.run_directory import check_folder
from yamame.report import evaluations
from yamame.runs.diagnosis import (
    DiagnosedRun,
    diagnose,
    select_diagnoses,
    store_diagnosis,
    table_rows,
)
from yamame.runs.playing import RunEvaluator
from yamame.runs.trained import Trained, load_from_options


def score(cfg: EvaluateConfig) -> float:
    """Run the recipe; return the mean score of the runs."""
    return float(evaluate_runs(cfg)["score"])


def evaluate_runs(cfg: EvaluateConfig) -> dict[str, Any]:
    """Run the recipe; return the content of ``evaluation.json``."""
    check(cfg)
    settings = plain(cfg)
    runs = [RunEvaluator.load(source, settings) for source in listed(cfg.run)]
    others = [RunEvaluator.load(source, settings, "against") for source in listed(cfg.against)]
    if not runs:
        raise UsageError("run must name a run, got none")
    twin = (
        load_from_options(cfg.diagnose_twin, settings, "diagnose_twin")
        if cfg.diagnose_twin
        else None
    )
    output = output_folder(cfg, runs)
    check_folder(output, "output")
    # All runs are checked before the first is evaluated, because evaluations may take long.
    evaluations.check_tasks([run.task for run in runs], [run.task for run in others])
    for run in [*runs, *others]:
        run.check(draws_attention=cfg.attention)

    evaluated = [evaluate_run(cfg, run, twin) for run in runs]
    against = [evaluate_run(cfg, run, twin) for run in others]
    report = {"settings": settings, "run": evaluated, "against": against}
    report["score"] = evaluations.mean_score(evaluated)
    if len(runs) + len(others) > 1:
        resampling = Resampling(confidence=cfg.confidence)
        report |= evaluations.compare(evaluated, against, resampling)
    maps = []
    if cfg.attention:
        maps = [run.attention(most_steps=cfg.attention_steps) for run in [*runs, *others]]

    output.mkdir(parents=True, exist_ok=True)
    evaluations.draw(output, evaluated + against, maps)
    path = write_json(output / "evaluation.json", report)
    diagnoses = evaluations.diagnoses(evaluated + against)
    evaluations.print_tables(report, {name: table_rows(found) for name, found in diagnoses.items()})
    print(path)
    return report


def evaluate_run(cfg: EvaluateConfig, run: RunEvaluator, twin: Trained | None) -> dict[str, Any]:
    """Evaluate a run with one or all of its discount factors, and diagnose its memory."""
    with run.build() as (agent, env):
        report = run.describe(env) | {"gammas": []}
        indices = range(len(agent.gammas)) if cfg.gammas == "all" else [run.gamma_index]
        for index in indices:
            policy = agent.policy(gamma_index=index)
            result = run.settings.evaluate(policy, env)
            outcome = {"gamma": agent.gammas[index], "acting": index == run.gamma_index}
            outcome |= result.numbers(confidence=cfg.confidence)
            outcome["episodes"] = result.episodes()
            if cfg.control:
                control = run.settings.evaluate(policy, env, memory_wiped=True)
                outcome["control"] = control.numbers(confidence=cfg.confidence)
            report["gammas"].append(outcome)

    names = listed(cfg.diagnose)
    options = {"most_steps": cfg.diagnose_steps, "confidence": cfg.confidence}
    subject = DiagnosedRun(run.trained, run.gamma_index, asdict(run.settings), twin, **options)
    found = diagnose(select_diagnoses(names), subject, all_of_them="all" in names)
    if found:
        store_diagnosis(run.trained, found)
        report["diagnosis"] = found
    return report


def check(cfg: EvaluateConfig) -> None:
    """Raise for settings that exclude each other or are out of their range."""
    if cfg.gammas not in (None, "all"):
        raise UsageError(f"gammas must be all or null, got {cfg.gammas}")
    if cfg.gamma is not None and cfg.gamma_index is not None:
        given = f"gamma={cfg.gamma} and gamma_index={cfg.gamma_index}"
        raise UsageError(f"{given} must not be given together")
    if not 0.0 < cfg.confidence < 1.0:
        raise UsageError(f"confidence must be in (0, 1), got {cfg.confidence}")
    if cfg.attention_steps < 1:
        raise UsageError(f"attention_steps must be positive, got {cfg.attention_steps}")
    if cfg.diagnose_twin is not None and "observable" not in select_diagnoses(listed(cfg.diagnose)):
        twin = f"diagnose_twin={cfg.diagnose_twin}"
        raise UsageError(f"{twin} needs diagnose=observable or diagnose=all")


def listed(value: Any) -> list[str]:
    """Return None, one name or several as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def output_folder(cfg: EvaluateConfig, runs: list[RunEvaluator]) -> Path:
    """Return the folder of the results; by default it is named after the overrides."""
    if cfg.output is not None:
        return Path(cfg.output)
    # These do not change the results.
    ignored = ["device", "tracking_uri", "trust"]
    folder = Path("runs")
    own = runs[0].trained.folder
    if own is not None and len(runs) == 1 and cfg.against is None:
        folder = own
        ignored.append("run")
    names = sorted(text.lstrip("+") for text in overrides() if key_of(text) not in ignored)
    return folder / "evaluation" / (file_name(names) if names else "")


if __name__ == "__main__":
    main(score, config_name="evaluate")
