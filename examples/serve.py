"""A trained agent as a service over HTTP, for many sessions: python examples/serve.py AGENT [PORT
[TRUST ...]]

POST /act {"session": "a", "observation": ..., "reward": 1.0, "done": false}, /reset {"session":
"a"} or /forget"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yamame


def make_server(agent, port: int) -> ThreadingHTTPServer:
    """A server on the loopback; ``port`` 0 takes any that is free."""
    lock, calls = (
        threading.Lock(),
        {"/reset": agent.reset, "/act": agent.act, "/forget": agent.forget},
    )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                asked = json.loads(
                    self.rfile.read(max(0, int(self.headers.get("Content-Length", 0))))
                )
                names, given = (
                    [asked.pop("session")],
                    {key: [value] for key, value in asked.items()},
                )
                if isinstance(asked.get("observation"), dict):
                    given["observation"] = {
                        key: [value] for key, value in asked["observation"].items()
                    }
                with lock:  # an agent answers one call at a time
                    actions = calls[self.path](sessions=names, **given)
                status, answer = 200, {} if actions is None else {"action": actions[0].tolist()}
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
                status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
            self.send_response(status if self.path in calls else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    ThreadingHTTPServer.request_queue_size = (
        128  # connections that wait; with five many are refused
    )
    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    server = make_server(yamame.load(sys.argv[1], trust=sys.argv[3:]), int([*sys.argv, 8000][2]))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
