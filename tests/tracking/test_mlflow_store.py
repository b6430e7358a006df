"""Stores that no run can be kept in are refused in one line, before anything is written."""

import contextlib
import os
import socket
import threading
import time

import pytest
from yamame.checks import UsageError
from yamame.tracking.mlflow_store import MLflowRun, absolute_uri, check_store, connect


def logger(uri, experiment="mazes", **more):
    return {"logger": {"tracking_uri": uri, "experiment": experiment}, **more}


def test_a_new_database_is_no_mistake_and_is_not_made_by_the_check(tmp_path):
    check_store(logger(f"sqlite:///{tmp_path}/new/mlflow.db"))
    check_store({"logger": None})
    check_store({"logger": {"_target_": "yamame.tracking.NullTracker"}})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_refused_with_its_name_and_the_reason(tmp_path):
    file = tmp_path / "notes.db"
    file.write_text("no database, but long enough to be read as the header of one" * 10)
    for refuse in (
        lambda: connect(f"sqlite:///{file}"),
        lambda: check_store(logger(f"sqlite:///{file}")),
    ):
        with pytest.raises(
            UsageError, match=r"tracking_uri: must be .* got sqlite:.*notes\.db: .*not a database"
        ):
            refuse()
    with pytest.raises(
        UsageError, match=r"logger\.tracking_uri: must be a directory.*notes\.db is a file"
    ):
        check_store(logger(f"sqlite:///{file}/mlflow.db"))


def test_a_path_that_is_no_file_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for uri in ("sqlite:///folder", "sqlite:///", "sqlite:////proc/mlflow.db"):
        before = time.monotonic()
        with pytest.raises(
            UsageError,
            match=r"tracking_uri: must be .* got sqlite:///.*: (unable to open|.* directory)",
        ) as told:
            connect(absolute_uri(uri))
        assert time.monotonic() - before < 5.0  # MLflow waits a hundred seconds before it tells
        assert "\n" not in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_scheme_that_mlflow_does_not_know_is_refused():
    with pytest.raises(
        UsageError, match="tracking_uri: must be a store that MLflow can use, got foo://bar"
    ):
        check_store(logger("foo://bar"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_must_not_be_written_to_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UsageError, match=r"tracking_uri: must be a directory to write to"):
        check_store(logger(f"sqlite:///{tmp_path}/closed/mlflow.db"))


def test_a_deleted_experiment_takes_no_run_until_it_is_restored(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    MLflowRun.create(uri, "mazes", name="a", tags={}).set_status("FINISHED")
    check_store(logger(uri))
    client = connect(uri)
    found = client.get_experiment_by_name("mazes")
    client.delete_experiment(found.experiment_id)
    message = (
        r"logger\.experiment: must not be deleted.* got 'mazes'.*--experiment-id "
        rf"{found.experiment_id}"
    )
    with pytest.raises(UsageError, match=message):
        check_store(logger(uri))
    with pytest.raises(UsageError, match=message):
        MLflowRun.create(uri, "mazes", name="b", tags={})
    check_store(logger(uri, "others"))
    client.restore_experiment(found.experiment_id)
    check_store(logger(uri))


@pytest.fixture
def dripping():
    """A server that sends the head of an answer, then a blank now and then, for ever."""
    server = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def drip(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not is_over.wait(0.1):
                connection.sendall(b" ")

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=drip, args=[connection], daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    is_over.set()
    server.close()


def test_a_server_that_never_completes_its_answer_is_refused_in_time(dripping, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    before = time.monotonic()
    with pytest.raises(UsageError, match=rf"tracking_uri: .* got {dripping}: .* within 3 seconds"):
        check_store(logger(dripping))
    assert time.monotonic() - before < 30.0  # MLflow itself would wait for ever
