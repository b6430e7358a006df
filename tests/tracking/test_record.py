"""The MLflow run of a run directory is found again after a move, and no store is made where one is
missing.
"""

import json
import shutil

import pytest
from yamame.checks import UsageError
from yamame.tracking.mlflow_store import MLflowRun, connect, database_of
from yamame.tracking.record import open_run, write_record


@pytest.fixture
def noted(tmp_path, tracking_uri):
    """The directory of a run, ``project/runs/a``, its note, and the database, which lies in the
    project.
    """
    project = tmp_path / "project"
    (project / "runs/a").mkdir(parents=True)
    run = MLflowRun.create(tracking_uri, "records", name="a", tags={})
    shutil.copy(database_of(tracking_uri), project / "mlflow.db")
    note = {"tracking_uri": f"sqlite:///{project}/mlflow.db", "run_id": run.run_id}
    write_record(project / "runs/a", note)
    return project / "runs/a", run.run_id


def store_of(directory):
    return json.loads((directory / "mlflow.json").read_text())["tracking_uri"]


def test_a_copy_of_a_project_goes_on_in_its_own_store(noted, tmp_path, tracking_uri):
    _, run_id = noted
    shutil.copytree(tmp_path / "project", tmp_path / "copy")
    copied = tmp_path / "copy/runs/a"
    assert open_run(copied, tracking_uri=tracking_uri).run_id == run_id
    assert store_of(copied) == f"sqlite:///{tmp_path}/copy/mlflow.db"


def test_a_run_moved_into_another_project_goes_on_where_it_began(noted, tmp_path, tracking_uri):
    directory, run_id = noted
    moved = tmp_path / "other/runs/a"
    shutil.copytree(directory, moved)
    store = tmp_path / "other/mlflow.db"
    shutil.copy(database_of(tracking_uri), store)
    connect(f"sqlite:///{store}").delete_run(run_id)
    assert open_run(moved, tracking_uri=f"sqlite:///{store}").run_id == run_id
    assert store_of(moved) == f"sqlite:///{tmp_path}/project/mlflow.db"


def test_a_store_that_is_gone_is_named_and_not_made(noted, tmp_path):
    directory, _ = noted
    database = tmp_path / "project/mlflow.db"
    database.unlink()
    before = (directory / "mlflow.json").read_text()
    with pytest.raises(
        UsageError, match=f"found none at {database} or {tmp_path}/new.db; restore it, or delete"
    ):
        open_run(directory, tracking_uri=f"sqlite:///{tmp_path}/new.db")
    assert not database.exists()
    assert not (tmp_path / "new.db").exists()
    assert (directory / "mlflow.json").read_text() == before
