"""Serve a trained agent over HTTP: python examples/serve.py AGENT [PORT [TRUST ...]]

POST /reset {"session": "a"} begins a session, /forget ends it, and /act {"session": "a",
"observation": ..., "reward": 1.0, "done": false} returns the next action.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yamame

ERRORS = (KeyError, ValueError, TypeError, AttributeError, RecursionError)
"""Errors that a wrong request causes."""


def make_server(agent, port: int) -> ThreadingHTTPServer:
    """Return a server on the local interface; port 0 is any free port."""
    lock = threading.Lock()
    calls = {"/reset": agent.reset, "/act": agent.act, "/forget": agent.forget}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                action = self.call()
                status = 200
                answer = {} if action is None else {"action": action[0].tolist()}
            except ERRORS as error:
                status = 400 if self.path in calls else 404
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def call(self):
            length = int(self.headers.get("Content-Length", 0))
            # A negative length would read until the client closes the connection.
            request = json.loads(self.rfile.read(max(0, length)))
            session = request.pop("session")
            # Every argument gets a first dimension of one session.
            arguments = {key: [value] for key, value in request.items()}
            observation = request.get("observation")
            if isinstance(observation, dict):
                arguments["observation"] = {key: [value] for key, value in observation.items()}
            with lock:  # an agent handles one call at a time
                return calls[self.path](sessions=[session], **arguments)

    # Clients that wait for a connection; with the default of five many are refused.
    ThreadingHTTPServer.request_queue_size = 128
    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
    server = make_server(yamame.load(sys.argv[1], trust=sys.argv[3:]), port)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
