"""Stores, records and spools of strangers: nothing outside of them is read, written or sent.

Each case changes a run directory and the SQLite store beside it, as somebody could who hands both
on. Then the user's commands are run: sending the rest, a resume, a report, and reading files of the
run by its id. The user has credentials in the environment, files beside the project, and a server
listens on the loopback.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from yamame.checks import UsageError
from yamame.tracking import MLflowTracker, send_rest
from yamame.tracking.database import database_of, sqlite_uri
from yamame.tracking.history import RunReader, download_artifacts
from yamame.tracking.mlflow_store import MLflowRun, connect
from yamame.tracking.places import local_place, repository_of

SECRET = b"ten years of work"
PASSWORD = "correct-horse"


class Ear:
    """A server that keeps every request, and answers none well."""

    def __init__(self):
        self.requests = requests = []

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self):
                requests.append((self.command, self.path, dict(self.headers)))
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_any  # noqa: N815

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.host = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def ear():
    ear = Ear()
    yield ear
    ear.server.shutdown()
    ear.server.server_close()


@pytest.fixture(scope="module")
def template(empty_store, tmp_path_factory):
    """A project with a finished run and its store, of which each case gets a copy."""
    project = tmp_path_factory.mktemp("template") / "project"
    directory = project / "runs" / "evil"
    directory.mkdir(parents=True)
    (directory / ".lock").touch()
    shutil.copy(empty_store, project / "mlflow.db")
    tracker = MLflowTracker(
        tracking_uri=f"sqlite:///{project}/mlflow.db", system_metrics=False, models=False
    )
    with tracker.start(directory, name="evil", params={"seed": 1}):
        tracker.log({"eval/success_mean": 0.5}, step=1)
        (directory / "episodes.gif").write_bytes(b"GIF89a own")
        (directory / "authorized_keys").write_bytes(b"evil")
        tracker.log_artifact(directory / "episodes.gif")
        tracker.log_artifact(directory / "authorized_keys", folder="checkpoints")
    return project


class Project:
    """A copy of the template, and the user's own files beside it.

    Attributes:
        home: The user's files, which must stay as they are.
        path: The stranger's project, which lies elsewhere.
        run_id: Id of its run.
    """

    def __init__(self, template, folder, ear):
        self.ear = ear
        self.home = folder / "home"
        self.path = folder / "project"
        shutil.copytree(template, self.path)
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / "thesis.tex").write_bytes(SECRET)
        (self.home / "episodes.gif").write_bytes(b"GIF89a " + SECRET)
        (self.home / "checkpoints").mkdir()
        (self.home / "checkpoints" / "step-1.pt").write_bytes(SECRET)
        foreign = sqlite3.connect(self.home / "places.sqlite")
        foreign.execute("create table moz_places (url text)")
        foreign.commit()
        foreign.close()
        self.directory = self.path / "runs" / "evil"
        self.uri = f"sqlite:///{self.path}/mlflow.db"
        record = json.loads((self.directory / "mlflow.json").read_text())
        self.run_id = record["run_id"]
        self.record(tracking_uri=self.uri)
        self.spool({"artifact": "authorized_keys", "folder": None})

    def record(self, **changes):
        path = self.directory / "mlflow.json"
        record = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in record.items() if value}))

    def spool(self, *entries):
        lines = [json.dumps(entry) for entry in entries]
        (self.directory / "mlflow.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (self.directory / "mlflow.sent.json").unlink(missing_ok=True)

    def execute(self, statement, *values):
        database = sqlite3.connect(self.path / "mlflow.db")
        database.execute(statement, values)
        database.commit()
        database.close()

    def place(self, uri):
        """Let the store say that the files of the run, and of its experiment, are elsewhere."""
        uri = uri.format(id=self.run_id, home=self.home, project=self.path, host=self.ear.host)
        self.execute("update runs set artifact_uri = ?", uri)
        self.execute("update experiments set artifact_location = ?", uri)

    @property
    def artifacts(self):
        return self.path / "mlruns" / "yamame" / self.run_id / "artifacts"


@pytest.fixture
def project(template, tmp_path, ear, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "you")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{ear.host}")
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://{ear.host}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    ear.requests.clear()
    return Project(template, tmp_path, ear)


def snapshot(folder):
    """Content, kind and time of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else os.fsencode(path.name)
        found[str(path)] = (status.st_mode, status.st_mtime_ns, content)
    return found


def use(project, tmp_path):
    """Run all that a user may do with a stranger's project; return what was read of files."""
    read = []
    # The user's own store is another one.
    own = f"sqlite:///{tmp_path}/own/mlflow.db"
    with contextlib.suppress(UsageError):
        send_rest(project.directory)
    with contextlib.suppress(UsageError):
        tracker = MLflowTracker(
            tracking_uri=own, system_metrics=False, models=False, wait_s=1.0, flush_s=0.0
        )
        with tracker.start(project.directory, name="evil", params={"seed": 1}):
            tracker.log_artifact(project.directory / "authorized_keys")
            tracker.log_table("evaluation", {"a": [1]})
    with contextlib.suppress(UsageError):
        reader = RunReader.open(project.uri, "yamame")
        reader.read()
        read.append(reader.artifact(project.run_id, "episodes.gif"))
        read.append(reader.artifact(project.run_id, "thesis.tex"))
    with contextlib.suppress(UsageError, OSError):
        target = tmp_path / "target"
        target.mkdir(exist_ok=True)
        for path in download_artifacts(project.uri, project.run_id, "checkpoints", target):
            read.append(path.read_bytes())
    return read


PLACES = [
    "{home}/.ssh",
    "file://{home}/.ssh",
    "{home}/{id}/artifacts",
    "{home}",
    "file://{home}",
    "{project}/mlruns/yamame/{id}/artifacts?/../../../../../../home",
    "{project}/mlruns/yamame/{id}/artifacts#/../../../../../../home/.ssh",
    "file://{project}/mlruns/yamame/{id}/artifacts;/../../../../../home",
    "{project}/mlruns/yamame/%2e%2e/%2e%2e/%2e%2e/home/{id}/artifacts",
    "file://{project}/mlruns/%252e%252e/{id}/artifacts",
    "{project}/mlruns/../../home/.ssh/{id}/artifacts",
    "{project}/mlruns/../../home/mlruns/x/{id}/artifacts/../../../..",
    "file://localhost{home}",
    "file://evil{home}/{id}/artifacts",
    "FILE://{home}",
    "FILE:{home}/mlruns/x/{id}/artifacts",
    "file:../../../../home",
    "../home",
    "http://{host}/api/2.0/mlflow-artifacts/artifacts/x",
    "http://{host}/mlruns/x/{id}/artifacts",
    "https://{host}/x",
    "mlflow-artifacts://{host}/x/{id}/artifacts",
    "mlflow-artifacts:/x/{id}/artifacts",
    "ftp://{host}/x",
    "sftp://{host}/x",
    "s3://bucket/{id}/artifacts",
    "dbfs:/x/{id}/artifacts",
    "gs://bucket/x",
    "runs:/{id}/x",
    "models:/x/1",
    "",
    "mlruns",
    "{project}/mlruns/{id}/artifacts",
]
"""Places of files that a store could name; those that lead nowhere bad are controls."""


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_a_store_names_is_neither_read_nor_written_nor_asked(
    project, tmp_path, place, ear
):
    project.place(place)
    before = snapshot(project.home)
    read = use(project, tmp_path)
    assert snapshot(project.home) == before
    assert ear.requests == []
    assert not any(SECRET in content for content in read if content)


def link_in_mlruns(project):
    shutil.rmtree(project.artifacts)
    project.artifacts.symlink_to(project.home)


def mlruns_is_a_link(project):
    shutil.rmtree(project.path / "mlruns")
    (project.path / "mlruns").symlink_to(project.home)


def links_to_files(project):
    for name in ("episodes.gif", "thesis.tex"):
        (project.artifacts / name).unlink(missing_ok=True)
        (project.artifacts / name).symlink_to(project.home / name)
    shutil.rmtree(project.artifacts / "checkpoints")
    (project.artifacts / "checkpoints").symlink_to(project.home / "checkpoints")


def pipes_in_mlruns(project):
    (project.artifacts / "episodes.gif").unlink()
    os.mkfifo(project.artifacts / "episodes.gif")


def experiment_of_dots(project):
    project.execute("update experiments set name = '../../home' where name = 'yamame'")
    project.record(experiment="../../home", run_id=None)


def foreign_database(project):
    project.record(tracking_uri=f"sqlite:///{project.home}/places.sqlite", relative_path=None)


def foreign_database_without_a_run(project):
    foreign_database(project)
    project.record(run_id=None, run_uuid="0", experiment="yamame")


def database_to_be_made(project):
    missing = f"sqlite:///{project.home}/new/mlflow.db"
    project.record(tracking_uri=missing, run_id=None, run_uuid="0", relative_path=None)


def text_as_a_database(project):
    project.record(tracking_uri=f"sqlite:///{project.home}/thesis.tex", relative_path=None)


def options_of_an_address(project):
    uri = f"sqlite:///file:{project.home}/places.sqlite?mode=rwc&uri=true"
    project.record(tracking_uri=uri, relative_path=None)


def escaped_address(project):
    # MLflow opens the decoded name, so that both must be the same file.
    name = f"{project.path}/%2e%2e%2fhome%2fplaces.sqlite"
    shutil.copy(project.path / "mlflow.db", name)
    project.record(tracking_uri=f"sqlite:///{name}", relative_path=None)


def link_as_a_database(project):
    (project.path / "mlflow.db").unlink()
    (project.path / "mlflow.db").symlink_to(project.home / "places.sqlite")


def pipe_as_a_database(project):
    (project.path / "mlflow.db").unlink()
    os.mkfifo(project.path / "mlflow.db")


def folder_as_a_database(project):
    (project.path / "mlflow.db").unlink()
    (project.path / "mlflow.db").mkdir()


def huge_file_as_a_database(project):
    with (project.path / "mlflow.db").open("wb") as file:
        file.truncate(2**42)


def huge_database(project):
    with (project.path / "mlflow.db").open("r+b") as file:
        file.truncate(2**42)


def huge_artifact(project):
    with (project.artifacts / "episodes.gif").open("wb") as file:
        file.truncate(2**40)


def endless_view(project):
    project.execute("drop table tags")
    project.execute(
        "create view tags as with recursive n(k) as (select 1 union all select k + 1 from n) "
        "select k as key, k as value, k as run_uuid from n"
    )


def endless_trigger(project):
    project.execute(
        "create trigger endless after insert on tags begin insert into params "
        "with recursive n(k) as (select 1 union all select k + 1 from n) "
        "select k, k, k from n; end"
    )


def endless_trigger_in_capitals(project):
    project.execute(
        "create trigger endless after insert on Tags begin insert into params "
        "with recursive n(k) as (select 1 union all select k + 1 from n) "
        "select k, k, k from n; end"
    )


def endless_trigger_in_the_log(project):
    path = project.path / "mlflow.db"
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = wal")
    database.execute("pragma wal_autocheckpoint = 0")
    database.execute(
        "create trigger endless after insert on tags begin insert into params "
        "with recursive n(k) as (select 1 union all select k + 1 from n) "
        "select k, k, k from n; end"
    )
    database.commit()
    copies = {end: Path(f"{path}{end}").read_bytes() for end in ("", "-wal")}
    database.close()
    for end, content in copies.items():
        Path(f"{path}{end}").write_bytes(content)


def tag_that_is_no_list(project):
    project.execute(
        "insert or replace into tags values ('mlflow.loggedArtifacts', '[1', ?)", project.run_id
    )
    project.spool({"table": "t.json", "content": {"a": [1]}}, {"tags": {"later": "1"}})


def endless_view_of_another_name(project):
    project.execute("drop table experiment_tags")
    project.execute(
        "create view Experiment_Tags as with recursive n(k) as "
        "(select 1 union all select k + 1 from n) "
        "select k as key, k as value, k as experiment_id from n"
    )
    database = sqlite3.connect(project.path / "mlflow.db")
    database.execute("pragma writable_schema = on")
    database.execute(
        "update sqlite_master set name = 'x', tbl_name = 'x', type = 'index' where type = 'view'"
    )
    database.commit()
    database.close()


def write_ahead_log_with_another_name(project):
    project.execute("pragma journal_mode = wal")
    (project.path / "mlflow.db-wal").unlink(missing_ok=True)
    os.link(project.home / "thesis.tex", project.path / "mlflow.db-wal")


def log_of_a_database_that_is_missing(project):
    write_ahead_log_with_another_name(project)
    (project.path / "mlflow.db").unlink()


def pipe_as_a_journal(project):
    os.mkfifo(project.path / "mlflow.db-journal")


def journal_that_names_a_file(project):
    """After it has undone a transaction, SQLite deletes the file that its journal names."""
    project.execute("pragma journal_mode = delete")
    database = sqlite3.connect(project.path / "mlflow.db")
    (page,) = database.execute("pragma page_size").fetchone()
    (pages,) = database.execute("pragma page_count").fetchone()
    database.close()
    magic = bytes.fromhex("d9d505f920a163d7")
    name = bytes(project.home / "thesis.tex")
    journal = (magic + struct.pack(">5I", 0, 1, pages, 512, page)).ljust(512, b"\0")
    journal += struct.pack(">I", 2**30 // page + 1) + name
    journal += struct.pack(">II", len(name), sum(name)) + magic
    (project.path / "mlflow.db-journal").write_bytes(journal)


def relative_link(project):
    (project.path / "linked.db").symlink_to(project.home / "places.sqlite")
    project.record(relative_path="../../linked.db", tracking_uri="sqlite:////nowhere/mlflow.db")


def server_of_a_record(project):
    project.record(tracking_uri=f"http://{project.ear.host}", relative_path=None)


def server_of_a_record_without_a_run(project):
    server_of_a_record(project)
    project.record(run_id=None, run_uuid="0", experiment="yamame")


def server_with_credentials(project):
    project.record(tracking_uri=f"http://you:{PASSWORD}@{project.ear.host}/", relative_path=None)


def database_of_a_server(project):
    host, port = project.ear.host.split(":")
    project.record(tracking_uri=f"postgresql://you:pw@{host}:{port}/mlflow", relative_path=None)


def record_of_another_kind(project):
    project.record(relative_path=7)


def query_in_a_record(project):
    project.record(run_id=None, run_uuid="' or tags.x LIKE '%", experiment="yamame")


def paths_in_a_spool(project):
    home = str(project.home)
    names = ("../../../home/thesis.tex", f"{home}/thesis.tex", "../../../home", "link")
    (project.directory / "link").symlink_to(project.home / "thesis.tex")
    entries = [{"artifact": name, "folder": None} for name in names]
    entries += [{"artifact": "authorized_keys", "folder": "../../../../../../home"}]
    entries += [{"table": "../../../../../../home/t.json", "content": {"a": [1]}}]
    entries += [{"model": "../../../home/checkpoints", "step": 1, "mark": "m"}]
    project.spool(*entries)


def spool_is_a_link(project):
    (project.directory / "mlflow.jsonl").unlink()
    (project.directory / "mlflow.jsonl").symlink_to(project.home / "thesis.tex")


def refused_file_is_a_link(project):
    (project.directory / "mlflow.refused.jsonl").symlink_to(project.home / "thesis.tex")
    project.spool({"tags": {"a": "b"}})


def log_is_a_link(project):
    (project.directory / "metrics.jsonl").unlink()
    (project.directory / "metrics.jsonl").symlink_to(project.home / "thesis.tex")


TRICKS = [
    link_in_mlruns,
    mlruns_is_a_link,
    links_to_files,
    pipes_in_mlruns,
    experiment_of_dots,
    foreign_database,
    foreign_database_without_a_run,
    database_to_be_made,
    text_as_a_database,
    options_of_an_address,
    escaped_address,
    link_as_a_database,
    pipe_as_a_database,
    folder_as_a_database,
    huge_file_as_a_database,
    huge_database,
    huge_artifact,
    endless_view,
    endless_trigger,
    endless_trigger_in_capitals,
    endless_trigger_in_the_log,
    endless_view_of_another_name,
    write_ahead_log_with_another_name,
    log_of_a_database_that_is_missing,
    pipe_as_a_journal,
    journal_that_names_a_file,
    relative_link,
    server_of_a_record,
    server_of_a_record_without_a_run,
    server_with_credentials,
    database_of_a_server,
    record_of_another_kind,
    query_in_a_record,
    paths_in_a_spool,
    spool_is_a_link,
    refused_file_is_a_link,
    log_is_a_link,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.__name__)
def test_a_store_or_record_of_a_stranger_reaches_nothing_outside(project, tmp_path, trick, ear):
    trick(project)
    before = snapshot(project.home)
    read = use(project, tmp_path)
    assert snapshot(project.home) == before
    assert ear.requests == []
    assert not any(SECRET in content for content in read if content)


def test_a_tag_that_is_no_list_holds_nothing_up(project):
    tag_that_is_no_list(project)
    send_rest(project.directory)
    run = connect(project.uri).get_run(project.run_id)
    assert run.data.tags["later"] == "1"


def test_an_honest_project_is_read_and_written_also_after_it_was_moved(project, tmp_path):
    """The control: without a trick everything works, in the project itself."""
    moved = tmp_path / "moved"
    project.path.rename(moved)
    project.path = moved
    project.directory = moved / "runs" / "evil"
    project.uri = f"sqlite:///{moved}/mlflow.db"
    read = use(project, tmp_path)
    assert b"GIF89a own" in read
    assert b"evil" in read
    stored = {path.name for path in project.artifacts.iterdir()}
    assert {"authorized_keys", "evaluation.json", "episodes.gif"} <= stored


def test_without_the_check_the_tricks_do_harm(project, ear):
    """The control of the controls: MLflow itself follows a store wherever it leads."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    uris = (
        "{project}/mlruns/yamame/{id}/artifacts?/../../../../../home",
        "http://{host}/api/2.0/mlflow-artifacts/artifacts/x",
    )
    for uri in uris:
        project.place(uri)
        run = connect(project.uri).get_run(project.run_id)
        with contextlib.suppress(Exception):
            repository = get_artifact_repository(run.info.artifact_uri)
            repository.log_artifact(str(project.directory / "authorized_keys"))
    assert (project.home / "authorized_keys").read_bytes() == b"evil"
    assert any("Authorization" in headers for _, _, headers in ear.requests)


# Servers that the user named.


SERVERS = {
    "http://{server}/api/2.0/mlflow-artifacts/artifacts/1/{id}/artifacts": True,
    "mlflow-artifacts:/1/{id}/artifacts": True,
    "mlflow-artifacts://{server}/1/{id}/artifacts": True,
    "file:///srv/mlruns/1/{id}/artifacts": True,
    "file:///home/you/.ssh": False,
    "/home/you/.ssh?/{id}/artifacts": False,
    "/srv/mlruns/{id}/artifacts?/../../../home": False,
    "mlflow-artifacts://evil:80/1/{id}/artifacts": False,
    "https://{server}/1/{id}/artifacts": False,
    "http://evil/1/{id}/artifacts": False,
    "http://{server}@evil/1/{id}/artifacts": False,
    "ftp://{server}/1/{id}/artifacts": False,
    "sftp://evil/1/{id}/artifacts": False,
    "models:/a/1": False,
    "runs:/{id}/a": False,
}


@pytest.mark.parametrize("uri", SERVERS)
def test_files_of_a_named_server_go_to_the_server_itself(uri):
    server = "tracking.team:5000"
    run_id = "0" * 32
    place = uri.format(server=server, id=run_id)
    if SERVERS[uri]:
        repository_of(f"http://{server}", run_id, place)
        return
    with pytest.raises(UsageError):
        repository_of(f"http://{server}", run_id, place)


def test_a_server_that_is_named_gets_the_credentials_and_no_other(project, ear, monkeypatch):
    """A record may name a server if the user names it, too."""
    project.record(tracking_uri=f"http://{ear.host}", relative_path=None)
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_URI"):
        send_rest(project.directory)
    assert ear.requests == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{ear.host}/")
    with pytest.raises(UsageError):
        send_rest(project.directory)
    assert any("Authorization" in headers for _, _, headers in ear.requests)


# Databases of others.


def fingerprint(path):
    folder = sorted(entry.name for entry in path.parent.iterdir())
    return folder, path.read_bytes(), path.stat().st_mtime_ns


def other_program(path):
    database = sqlite3.connect(path)
    database.execute("create table studies (name text)")
    return database


def with_a_version_table(path):
    """As those of Airflow, Superset or Optuna."""
    database = other_program(path)
    database.execute("create table alembic_version (version_num text)")
    database.execute("insert into alembic_version values ('v3.0.0.d')")
    return database


def with_a_write_ahead_log(path):
    database = other_program(path)
    database.execute("pragma journal_mode = wal")
    return database


def with_names_of_mlflow(path):
    database = other_program(path)
    for name in ("experiments", "runs", "metrics", "params", "tags"):
        database.execute(f"create table {name} (id integer)")
    return database


FOREIGN = [other_program, with_a_version_table, with_a_write_ahead_log, with_names_of_mlflow]


@pytest.mark.parametrize("make", FOREIGN)
def test_a_database_of_another_program_is_refused_unread(tmp_path, make):
    path = tmp_path / "app.db"
    database = make(path)
    database.commit()
    database.close()
    before = fingerprint(path)
    for use_it in (
        lambda: connect(f"sqlite:///{path}"),
        lambda: connect(f"sqlite+pysqlite:///{path}"),
        lambda: MLflowRun.create(f"sqlite:///{path}", "yamame", name="a", tags={}),
        lambda: MLflowRun.reopen(f"sqlite:///{path}", "0" * 32),
        lambda: RunReader.open(f"sqlite:///{path}", "yamame"),
    ):
        with pytest.raises(UsageError, match=r"app\.db") as refused:
            use_it()
        assert "\n" not in str(refused.value)
        assert fingerprint(path) == before


def test_a_database_in_use_by_another_program_is_refused(tmp_path):
    path = tmp_path / "app.db"
    database = with_a_write_ahead_log(path)
    database.execute("pragma wal_autocheckpoint = 0")
    database.execute("create table late (name text)")
    database.commit()
    before = fingerprint(path)
    with pytest.raises(UsageError, match=r"app\.db"):
        connect(f"sqlite:///{path}")
    assert fingerprint(path) == before
    database.close()


def test_a_store_of_another_version_of_mlflow_is_not_migrated(empty_store, tmp_path):
    path = tmp_path / "mlflow.db"
    shutil.copy(empty_store, path)
    database = sqlite3.connect(path)
    database.execute("update alembic_version set version_num = '0123456789ab'")
    # MLflow migrates a database in which a table is missing.
    database.execute("drop table webhooks")
    database.commit()
    database.close()
    before = fingerprint(path)
    with pytest.raises(UsageError, match=r"0123456789ab.*mlflow db upgrade") as refused:
        connect(f"sqlite:///{path}")
    assert "\n" not in str(refused.value)
    assert fingerprint(path) == before


@pytest.mark.parametrize("name", ["a b", "100%", "a#b", "a;b", "ü", "what?"])
def test_folders_with_odd_names_hold_a_store(empty_store, tmp_path, name):
    """Escapes in addresses are for MLflow; files are where the user expects them."""
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    run = MLflowRun.create(sqlite_uri(folder / "mlflow.db"), "yamame", name="a", tags={})
    (folder / "file").write_text("content")
    run.log_artifact(folder / "file", None, home=folder)
    stored = folder / "mlruns" / "yamame" / run.run_id / "artifacts" / "file"
    assert stored.read_text() == "content"
    assert sorted(path.name for path in folder.iterdir()) == ["file", "mlflow.db", "mlruns"]
    if "?" not in name:  # MLflow makes an empty folder of the escaped name
        assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("folder", ["a#b", "a;b", "what?", "a b"])
def test_an_experiment_that_mlflow_made_in_a_folder_with_an_odd_name(folder):
    """MLflow writes such a place as a plain path."""
    run_id = "0" * 32
    uri = f"/home/you/{folder}/mlruns/1/{run_id}/artifacts"
    database = Path("/home/you") / folder / "mlflow.db"
    place = local_place(sqlite_uri(database), run_id, uri)
    assert place == database.parent / "mlruns" / "1" / run_id / "artifacts"


@pytest.mark.parametrize("name", ["file:app.db", "%66ile:/home/you/app.db", "app.db?mode=rwc"])
def test_an_address_that_only_sqlite_reads_as_another_file_is_refused(name):
    with pytest.raises(UsageError, match="must be a store"):
        database_of(f"sqlite:///{name}")
