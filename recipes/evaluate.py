"""Evaluate trained runs on held-out tasks: return, success and in-context curves, with intervals.

    yamame evaluate run=runs/mine [key=value]      # --help lists the keys
    yamame evaluate run=runs/mine env.size=13 context_length=2048 control=true
    yamame evaluate run=[runs/a,runs/b] against=[runs/c,runs/d]
    yamame evaluate run=runs/mine diagnose=all     # its memory: docs/howto/diagnose.md

A run is a directory, a checkpoint file or the id of an MLflow run. All runs play the same episodes
of held-out tasks: not those that chose the best checkpoint in training, unless ``seed`` is set to
that of training. Several runs are aggregated over seeds and tasks; runs with the same environment
are runs of one task. Results are written to ``<output>/evaluation.json``; the same command replaces
them. The score is the mean success of the runs, or their mean return if success is not reported.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(f"{sys.path[0]}/../components")  # for a checkout that is not installed
    from yamame.cli.front import check_command_line

    # Prints help and usage errors before torch is imported.
    check_command_line("evaluate")

# isort: split
from pathlib import Path
from typing import Any

from yamame.checks import require_setting
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
from yamame.runs import diagnosis
from yamame.runs.extras import reported
from yamame.runs.playing import RunEvaluator
from yamame.runs.trained import load_from_options


def score(cfg: EvaluateConfig) -> float:
    """Run the recipe; return the mean score of the runs."""
    return float(evaluate_runs(cfg)["score"])


def evaluate_runs(cfg: EvaluateConfig) -> dict[str, Any]:
    """Run the recipe; return the content of ``evaluation.json``."""
    check_options(cfg)
    settings = plain(cfg)
    runs = [RunEvaluator.load(source, settings) for source in as_list(cfg.run)]
    baselines = [RunEvaluator.load(name, settings, key="against") for name in as_list(cfg.against)]
    twin = None
    if cfg.diagnose_twin is not None:
        twin = load_from_options(cfg.diagnose_twin, settings, "diagnose_twin")
    output = output_folder(cfg, runs)
    check_folder(output, "output")
    # All runs are checked before the first is evaluated, because evaluations may take long.
    evaluations.check_tasks([run.task for run in runs], [run.task for run in baselines])
    everyone = [*runs, *baselines]
    for run in everyone:
        run.check(draws_attention=cfg.attention)

    run_reports = [evaluate_run(cfg, run) for run in runs]
    baseline_reports = [evaluate_run(cfg, run) for run in baselines]
    reports = run_reports + baseline_reports
    # After all evaluations, because a diagnosis is stored in the run's own directory.
    for run, run_report in zip(everyone, reports, strict=True):
        subject = diagnosis.DiagnosedRun(run, twin, cfg.diagnose_steps, cfg.confidence)
        found = diagnosis.diagnose(as_list(cfg.diagnose), subject)
        if found:
            run_report["diagnosis"] = found

    report = {"settings": settings, "run": run_reports, "against": baseline_reports}
    report["score"] = evaluations.mean_score(run_reports)
    if len(everyone) > 1:
        resampling = Resampling(confidence=cfg.confidence)
        report |= evaluations.compare(run_reports, baseline_reports, resampling)

    output.mkdir(parents=True, exist_ok=True)
    path = write_json(output / "evaluation.json", report)
    with reported("pictures"):
        drawn = everyone if cfg.attention else []
        maps = [run.attention(most_steps=cfg.attention_steps) for run in drawn]
        evaluations.draw(output, reports, maps)
    with reported("tables"):
        found = evaluations.diagnoses(reports)
        tables = {name: diagnosis.table_rows(memory) for name, memory in found.items()}
        evaluations.print_tables(report, tables)
    print(path)
    return report


def evaluate_run(cfg: EvaluateConfig, run: RunEvaluator) -> dict[str, Any]:
    """Evaluate a run with one or all of its discount factors."""
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
                control = run.settings.evaluate(policy, env, memory_reset="every_step")
                outcome["control"] = control.numbers(confidence=cfg.confidence)
            report["gammas"].append(outcome)
    return report


def check_options(cfg: EvaluateConfig) -> None:
    """Raise for settings that exclude each other, and without a run."""
    require_setting("run", cfg.run, bool(as_list(cfg.run)), "name a run")
    is_only = cfg.gamma is None or cfg.gamma_index is None
    require_setting("gamma_index", cfg.gamma_index, is_only, f"be null with gamma={cfg.gamma}")
    twin = cfg.diagnose_twin
    is_used = "observable" in diagnosis.select_diagnoses(as_list(cfg.diagnose))
    condition = "be null without diagnose=observable or diagnose=all"
    require_setting("diagnose_twin", twin, twin is None or is_used, condition)


def as_list(value: Any) -> list[str]:
    """Return None, one name or several as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def output_folder(cfg: EvaluateConfig, runs: list[RunEvaluator]) -> Path:
    """Return the folder of the results; by default it is named after the overrides."""
    if cfg.output is not None:
        return Path(cfg.output)
    # Overrides that do not affect the results.
    ignored = ["device", "tracking_uri", "trust"]
    folder = Path("runs")
    own = runs[0].trained.folder
    if own is not None and len(runs) == 1 and cfg.against is None:
        folder = own
        ignored.append("run")
    names = sorted(text.lstrip("+") for text in overrides() if key_of(text) not in ignored)
    folder = folder / "evaluation"
    return folder / file_name(names) if names else folder


if __name__ == "__main__":
    main(score, config_name="evaluate")
