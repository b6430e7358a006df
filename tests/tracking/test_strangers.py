"""What a stranger's run directory cannot do: write elsewhere, take files along, name a server, hide
half a database.
"""

import json
import os
import re
import shutil
import sqlite3

import pytest
from yamame.checks import UsageError
from yamame.tracking import MLflowTracker, mlflow_store, send_rest
from yamame.tracking.mlflow_store import connect, database_of


@pytest.fixture
def stranger(empty_store, tmp_path, monkeypatch):
    """The directory of a run that has ended, with a store of its own beside it, and a file that is
    no part of it.
    """
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "runs" / "evil"
    directory.mkdir(parents=True)
    (directory / ".lock").touch()
    shutil.copy(empty_store, tmp_path)
    tracker = MLflowTracker(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", system_metrics=False)
    with tracker.start(directory, name="evil", params={}):
        pass
    (tmp_path / "secret").write_text("ten years")
    return directory


def leave(directory, *entries):
    lines = [json.dumps(entry) for entry in entries]
    (directory / "mlflow.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (directory / "mlflow.sent.json").unlink()


def stored(folder):
    return sorted(path.name for path in (folder / "mlruns").rglob("*") if path.is_file())


def test_files_outside_of_the_run_are_not_taken_along(stranger, tmp_path, capsys):
    (stranger / "own").write_text("mine")
    names = ("../../secret", str(tmp_path / "secret"), "own")
    leave(stranger, *({"artifact": name, "folder": None} for name in names))
    assert send_rest(stranger) == 3
    assert stored(tmp_path) == ["own"]
    assert capsys.readouterr().err.count("not stored, it leads out of") == 2


def test_a_store_that_names_another_place_for_files_gets_none(stranger, tmp_path, capsys):
    (stranger / "authorized_keys").write_text("evil")
    (victim := tmp_path / ".ssh").mkdir()
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("update runs set artifact_uri = ?", (str(victim),))
    table = {"table": "t.json", "content": {"columns": [], "data": []}}
    leave(stranger, {"artifact": "authorized_keys", "folder": None}, table)
    assert send_rest(stranger) == 2
    assert list(victim.iterdir()) == []
    assert capsys.readouterr().err.count(f"got {victim}") == 2


def test_a_server_that_a_run_names_must_be_given(stranger, monkeypatch):
    record = json.loads((stranger / "mlflow.json").read_text())
    (stranger / "mlflow.json").write_text(
        json.dumps(record | {"tracking_uri": "http://127.0.0.1:9"})
    )
    leave(stranger, {"tags": {"a": "b"}})
    with pytest.raises(UsageError, match="if it is yours, set MLFLOW_TRACKING_URI=http://127"):
        send_rest(stranger)


def test_pipes_and_links_in_a_run_are_refused(stranger, tmp_path):
    (stranger / "mlflow.json").unlink()
    os.mkfifo(stranger / "mlflow.json")
    leave(stranger, {"tags": {"a": "b"}})
    with pytest.raises(UsageError, match=r"mlflow\.json is rejected: it is a pipe"):
        send_rest(stranger)
    (stranger / "mlflow.json").unlink()
    (victim := tmp_path / "thesis").mkdir()
    (victim / "thesis.tex").touch()
    (stranger / ".former").symlink_to(victim)
    with pytest.raises(UsageError, match=r"\.former is rejected: it is a link; remove it"):
        send_rest(stranger)
    assert (victim / "thesis.tex").exists()


def test_half_of_a_database_is_never_there(tmp_path, monkeypatch):
    """MLflow repairs none whose tables are all there in the form of an earlier version."""
    seen = []

    def dies(path):
        with sqlite3.connect(path) as half:
            half.execute("create table experiments (experiment_id integer)")
        half.close()
        seen.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(mlflow_store, "create_tables", dies)
    with pytest.raises(KeyboardInterrupt):
        connect(f"sqlite:///{tmp_path}/mlflow.db")
    assert seen
    assert not (tmp_path / "mlflow.db").exists()
    monkeypatch.undo()
    connect(f"sqlite:///{tmp_path}/mlflow.db")
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert database_of(f"sqlite:///{tmp_path}/mlflow.db").stat().st_size > 0


def tables_of(path):
    """The words of all statements and rows, whose order MLflow draws, without the default
    experiment, which has a time.
    """
    database = sqlite3.connect(path)
    lines = [line for line in database.iterdump() if "'Default'" not in line]
    database.close()
    return sorted(sorted(re.findall(r"\w+", line)) for line in lines)


def test_a_new_database_is_the_one_that_mlflow_makes_whatever_its_version(tmp_path, monkeypatch):
    def make(name):
        connect(f"sqlite:///{tmp_path}/{name}.db")
        return tables_of(tmp_path / f"{name}.db")

    from_schema = make("schema")
    monkeypatch.setattr(mlflow_store, "create_tables", lambda path: None)
    made_by_mlflow = make("migrated")
    assert from_schema == made_by_mlflow

    def create_unknown(path):
        database = sqlite3.connect(path)
        database.executescript(
            "create table alembic_version (version_num); insert into alembic_version "
            "values ('future')"
        )
        database.close()

    monkeypatch.setattr(mlflow_store, "create_tables", create_unknown)
    assert make("unknown") == made_by_mlflow
