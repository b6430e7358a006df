"""A trained agent as a service over HTTP, for many sessions at a time.

    python examples/serve.py <agent> [port [trust ...]]

POST /reset  {"session": "a"}                                                   -> {}
POST /act    {"session": "a", "observation": {...}, "reward": 1.0, "done": false}  -> {"action": 3}
POST /forget {"session": "a"}                                                   -> {}
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import yamame


class Server(ThreadingHTTPServer):
    """A thread per connection."""

    request_queue_size = 128  # connections that wait; the default of five refuses many at once


def make_server(agent, port: int) -> Server:
    """A server on the loopback; ``port`` 0 takes any that is free."""
    lock = threading.Lock()  # an agent answers one call at a time

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                with lock:
                    status, answer = 200, answer_to(agent, self.path, asked)
            except KeyError as error:
                status, answer = 400, {"error": f"there must be {error}"}
            except (ValueError, TypeError, AttributeError) as error:
                status, answer = 400, {"error": str(error)}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args) -> None: ...

    return Server(("127.0.0.1", port), Handler)


def answer_to(agent, path: str, asked: dict) -> dict:
    """What a request is answered with."""
    sessions = [asked["session"]]
    if path == "/act":
        shown = asked["observation"]
        named = isinstance(shown, dict)
        observation = (
            {key: np.expand_dims(v, 0) for key, v in shown.items()} if named else np.expand_dims(shown, 0)
        )
        given = {key: [asked[key]] for key in ("reward", "done", "trial_start") if key in asked}
        return {"action": agent.act(observation, sessions=sessions, **given)[0].tolist()}
    {"/reset": agent.reset, "/forget": agent.forget}[path](sessions)
    return {}


if __name__ == "__main__":
    source, port, *trust = [*sys.argv[1:], "8000"] if len(sys.argv) == 2 else sys.argv[1:]
    make_server(yamame.load(source, trust=trust), int(port)).serve_forever()
