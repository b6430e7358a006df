"""A server that speaks as much of MLflow's language as a run needs, and fails as it is told."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest


class FakeMLflow:
    """Runs in memory behind a port of the loopback. It stores every metric that it gets, the same
    ones again too.

    Attributes:
        runs: By id: status, tags, params and metrics as ``(key, step, value)``.
        mood: How requests are answered: ``well``, ``silent`` (not at all), ``late`` (done, and not
            said), ``html``, or a status.
    """

    def __init__(self, folder):
        self.folder, self.runs, self.experiments, self.mood = folder, {}, {}, "well"
        self.port, self.server = 0, None
        self.start()

    @property
    def uri(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = {
                    key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()
                }
                fake.answer(
                    self, urlsplit(self.path).path, query | (json.loads(body) if body else {})
                )

            do_GET = do_POST = do_PATCH = handle_any  # noqa: N815

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def kill(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler, path, asked):
        if self.mood == "silent":
            time.sleep(60.0)
            return
        status, content = (200, {}) if self.mood in ("well", "late") else (self.mood, {})
        if status == 200:
            status, content = self.store(path.partition("/mlflow/")[2], asked)
        if self.mood == "late":
            handler.close_connection = True
            return
        html = self.mood == "html"
        text = b"<html>" if html else json.dumps(content).encode()
        handler.send_response(200 if html else status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def store(self, path, asked):
        """What a request changes, and its answer: a status and a dictionary."""
        run = self.runs.get(asked.get("run_id"))
        match path:
            case "experiments/search":
                return 200, {}
            case "experiments/get-by-name" if asked["experiment_name"] in self.experiments:
                return 200, {"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}}
            case "experiments/create":
                self.experiments[asked["name"]] = "1"
                return 200, {"experiment_id": "1"}
            case "runs/create":
                name = f"{len(self.runs):032x}"
                tags = {tag["key"]: tag["value"] for tag in asked["tags"]}
                self.runs[name] = {"status": "RUNNING", "tags": tags, "params": {}, "metrics": []}
                return 200, {"run": self.described(name)}
            case "runs/get" if run:
                return 200, {"run": self.described(asked["run_id"])}
            case "runs/search":
                wanted = asked["filter"].split("'")[1]
                found = [name for name, run in self.runs.items() if wanted in run["tags"].values()]
                return 200, {"runs": [self.described(name) for name in found]}
            case "runs/update":
                run |= {"status": asked["status"], "end_time": int(asked.get("end_time", 0))}
                return 200, {"run_info": self.described(asked["run_id"])["info"]}
            case "runs/set-tag":
                run["tags"][asked["key"]] = asked["value"]
                return 200, {}
            case "runs/log-batch":
                run["params"] |= {param["key"]: param["value"] for param in asked.get("params", ())}
                run["metrics"] += [
                    (entry["key"], int(entry.get("step", 0)), entry["value"])
                    for entry in asked.get("metrics", ())
                ]
                return 200, {}
        return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": path}

    def described(self, name):
        run = self.runs[name]
        latest = {key: (step, value) for key, step, value in sorted(run["metrics"])}
        metrics = [
            {"key": key, "step": step, "value": value, "timestamp": 0}
            for key, (step, value) in latest.items()
        ]
        info = {
            "run_id": name,
            "experiment_id": "1",
            "status": run["status"],
            "lifecycle_stage": "active",
            "artifact_uri": f"file://{self.folder}/{name}/artifacts",
        }
        data = {
            kind: [{"key": k, "value": v} for k, v in run[kind].items()]
            for kind in ("tags", "params")
        }
        return {"info": info, "data": {"metrics": metrics, **data}}


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    """A `FakeMLflow`; a request to it waits two seconds."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    fake = FakeMLflow(tmp_path_factory.mktemp("artifacts"))
    yield fake
    fake.kill()
