"""A sweep is one MLflow run with its jobs nested inside."""

import os
import shutil
import sys
from contextlib import suppress

import pytest
from yamame.cli.app import main
from yamame.tracking import mlflow_store as store
from yamame.tracking import sweep
from yamame.tracking.history import RunReader
from yamame.tracking.tracker import PARENT_VARIABLE, MLflowTracker

TRAIN = """
defaults:
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none
hydra:
  run: {dir: .}
  sweep: {dir: sweeps, subdir: .}
  output_subdir: null
  callbacks:
    sweep: {_target_: yamame.tracking.sweep.SweepParent}
seed: 1
logger:
  _target_: yamame.tracking.tracker.MLflowTracker
  tracking_uri: URI
  experiment: EXPERIMENT
"""


@pytest.fixture
def run_sweep(tmp_path, monkeypatch, tracking_uri, request):
    """Runs a sweep over seeds and gives its parent run and their children."""
    experiment = request.node.name
    text = TRAIN.replace("URI", tracking_uri).replace("EXPERIMENT", experiment)
    (tmp_path / "train.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)

    def job(cfg):
        (tmp_path / str(cfg.seed)).mkdir()
        tracker = MLflowTracker(
            tracking_uri=cfg.logger.tracking_uri, experiment=cfg.logger.experiment
        )
        with tracker.start(tmp_path / str(cfg.seed), name=f"seed {cfg.seed}", params={"seed": 1}):
            for step, share in enumerate((0.0, 0.1)):
                tracker.log({"eval/success_mean": share * cfg.seed, "cost/cpu_s": 8.0}, step=step)
            if cfg.seed == 13:
                raise ZeroDivisionError("an unlucky seed")
        return float("nan") if cfg.seed == 0 else cfg.seed / 10

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        main(job, config_name="train", config_dir=tmp_path)

    def stored():
        client = store.connect(tracking_uri)
        found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
        parents = [run for run in found if "sweep" in run.data.tags]
        return client, parents, [run for run in found if "sweep" not in run.data.tags]

    return run, stored


def test_jobs_are_children_of_one_parent_that_records_their_objectives(run_sweep):
    run, stored = run_sweep
    run("--multirun", "seed=1,0,3")
    client, (parent,), children = stored()
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["sweep"] == "seed=1,0,3"
    points = client.get_metric_history(parent.info.run_id, "objective")
    assert [(point.step, point.value) for point in points] == [(0, 0.1), (2, 0.3)]
    assert sorted(child.info.run_name for child in children) == ["seed 0", "seed 1", "seed 3"]
    assert {child.data.tags["mlflow.parentRunId"] for child in children} == {parent.info.run_id}
    assert parent.data.metrics["objective_best"] == 0.3
    assert parent.data.metrics["objective_mean"] == pytest.approx(0.2)
    assert "| all | 0.2 | 0.3 | 2 |" in parent.data.tags["mlflow.note.content"]
    assert PARENT_VARIABLE not in os.environ
    assert sweep._open_sweeps == []


def test_the_row_of_a_sweep_has_means_of_the_last_scores_of_jobs_that_ended(
    run_sweep, tmp_path, tracking_uri, request
):
    run, stored = run_sweep
    with suppress(SystemExit):
        run("-m", "seed=1,13,3")
    _, (parent,), children = stored()
    metrics = {name: parent.data.metrics.get(name) for name in ("eval/success_mean", "cost/cpu_s")}
    assert metrics == {"eval/success_mean": pytest.approx(0.2), "cost/cpu_s": 8.0}
    assert parent.data.metrics["best/eval/success_mean"] == pytest.approx(0.3)
    assert "best/cost/cpu_s" not in parent.data.metrics
    # It has scores, but is no run of which a report has a row.
    runs = RunReader.open(tracking_uri, request.node.name).read()
    assert {run.run_id for run in runs} == {child.info.run_id for child in children}


def test_a_job_that_was_made_anew_counts_once(run_sweep, tmp_path):
    run, stored = run_sweep
    run("-m", "seed=1,3")
    for seed in ("1", "3"):
        shutil.rmtree(tmp_path / seed)
    run("-m", "seed=1,3")
    _, (parent,), children = stored()
    assert len(children) == 4
    assert parent.data.metrics["eval/success_mean"] == pytest.approx(0.2)


def test_jobs_in_other_processes_record_theirs_and_what_became_of_them(
    run_sweep, tmp_path, monkeypatch
):
    run, stored = run_sweep
    monkeypatch.setattr(
        sweep.SweepParent, "on_job_end", in_another_process(sweep.SweepParent.on_job_end)
    )
    with suppress(SystemExit):
        run("-m", "seed=1,13,3")
    client, (parent,), _ = stored()
    points = client.get_metric_history(parent.info.run_id, "objective")
    assert [(point.step, point.value) for point in points] == [(0, 0.1), (2, 0.3)]
    told = {name: value for name, value in parent.data.tags.items() if name.startswith("job.")}
    assert told == {"job.0": "ran: seed=1", "job.1": "failed: seed=13", "job.2": "ran: seed=3"}


def in_another_process(on_job_end):
    """As a job is that another process plays: it knows of the sweep what the environment says."""

    def called(self, *arguments, **named):
        held, sweep._open_sweeps = sweep._open_sweeps, []
        try:
            on_job_end(self, *arguments, **named)
        finally:
            sweep._open_sweeps = held

    return called


def test_a_failed_sweep_has_a_failed_parent_and_a_failed_child(run_sweep):
    run, stored = run_sweep
    with pytest.raises(SystemExit, match="1"):
        run("-m", "seed=1,13")
    _, (parent,), children = stored()
    assert parent.info.status == "FAILED"
    assert {child.info.run_name: child.info.status for child in children} == {
        "seed 1": "FINISHED",
        "seed 13": "FAILED",
    }
    assert PARENT_VARIABLE not in os.environ


def test_the_same_command_goes_on_with_the_same_parent_and_records_no_objective_twice(
    run_sweep, tmp_path
):
    run, stored = run_sweep
    for arguments, objectives in (
        ("seed=1,13", [(0, 0.1)]),
        ("seed=1,13", [(0, 0.1)]),
        ("seed=3,1", [(0, 0.3), (1, 0.1)]),
    ):
        with suppress(SystemExit):
            run("-m", arguments)
        client, parents, _ = stored()
        (parent,) = (run for run in parents if run.data.tags["sweep"] == arguments)
        points = client.get_metric_history(parent.info.run_id, "objective")
        assert [(point.step, point.value) for point in points] == objectives
        for folder in tmp_path.glob("[0-9]*"):
            shutil.rmtree(folder)
    assert len(parents) == 2


def test_a_store_that_does_not_answer_for_a_while_stops_no_sweep_and_costs_no_objective(
    run_sweep, monkeypatch, capfd
):
    run, stored = run_sweep
    log, asked = store.MLflowRun.log_metrics, []

    def fail_at_first(self, points):
        asked.extend(points)
        if len(asked) == 1:
            raise ConnectionError("nobody there")
        log(self, points)

    monkeypatch.setattr(store.MLflowRun, "log_metrics", fail_at_first)
    run("--multirun", "seed=1,3")
    client, (parent,), _ = stored()
    points = client.get_metric_history(parent.info.run_id, "objective")
    assert sorted((point.step, point.value) for point in points) == [(0, 0.1), (1, 0.3)]
    assert "does not answer" not in capfd.readouterr().err
    asked.clear()
    monkeypatch.setattr(store.MLflowRun, "log_metrics", log)
    monkeypatch.setattr(store.MLflowRun, "set_status", lambda *arguments: [][0])
    sweep._open_sweeps.append(
        store.MLflowRun(client, parent.info.run_id, parent.info.experiment_id)
    )
    sweep.close_sweep(None, {})
    assert capfd.readouterr().err.startswith("MLflow does not answer, the sweep's run ")
    assert sweep._open_sweeps == []


def test_a_single_run_has_no_parent(run_sweep):
    run, stored = run_sweep
    run("seed=2")
    _, parents, (child,) = stored()
    assert parents == []
    assert "mlflow.parentRunId" not in child.data.tags
