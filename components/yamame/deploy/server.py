"""HTTP server of an agent, with limits on the size of requests and on the time that they take.

It speaks HTTP/1.1 with JSON, keeps connections open between requests, and needs the standard
library alone. It has neither passwords nor encryption: put a reverse proxy before it where clients
are not trusted.
"""

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import FrameType
from typing import Annotated, Any

from yamame.checks import Bounds, PositiveFloat, PositiveInt, SettingError, check_bounds
from yamame.deploy.service import RequestError, Service
from yamame.system.messages import one_line, print_stderr, printable

_POLL_SECONDS = 0.1
_LAST_SECONDS = 5.0
"""Time for the last answer of a connection, or of the server."""
_IDLE_SECONDS = 1.0
"""Time without a request after which a connection may be closed for another one."""
_PATIENCE_SECONDS = 3.0
"""Time that a new connection waits for room."""
_LONGEST_SURPLUS = 2**26
"""Bytes of a refused body that are read and dropped."""


@dataclass
class _Connection:
    """State of a connection.

    Attributes:
        since: Time at which the present state began.
        deadline: Time at which it is closed; None while the agent works for it.
        is_busy: Whether a request has begun to arrive that is not answered completely.
        is_late: Whether the deadline has passed.
    """

    since: float
    deadline: float | None
    is_busy: bool = False
    is_late: bool = False


class AgentServer(ThreadingHTTPServer):
    """HTTP server of a service.

    Args:
        service: The service.
        host: Name or address of the network interface.
        port: Port; 0 for a free one, which `address` has.
        max_connections: Largest number of open connections, each of which has a thread. If there
            are more, the one that has been idle for longest is closed; if none is idle, the new one
            is answered 503.
        connection_timeout: Seconds in which a request must arrive completely, and after which an
            idle connection is closed.
        max_request_bytes: Largest body of a request; None for `Service.longest_request`.

    Raises:
        SettingError: The host is unknown, or the port cannot be used.
    """

    daemon_threads = True
    # Clients that wait to be accepted; with the default of five, many would be refused.
    request_queue_size = 128

    @check_bounds
    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: Annotated[int, Bounds(least=0, most=65_535)] = 8000,
        max_connections: PositiveInt = 128,
        connection_timeout: PositiveFloat = 60.0,
        max_request_bytes: PositiveInt | None = None,
    ) -> None:
        self.service = service
        self.max_request_bytes = max_request_bytes or service.longest_request
        self._max_connections = max_connections
        self._connection_timeout = connection_timeout
        self._connections: dict[socket.socket, _Connection] = {}
        self._connections_lock = threading.Lock()
        self._received: signal.Signals | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, OverflowError) as error:
            condition = "be a name or address of this machine"
            raise SettingError("host", host, condition, remedy=one_line(error)) from error
        # Clients expect version 4 of a name that has both, such as localhost.
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        self.address_family = family
        try:
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except OSError as error:
            value = f"{host}:{port}"
            condition = "be free on this machine"
            raise SettingError("port", value, condition, remedy=one_line(error)) from error

    def server_bind(self) -> None:
        """Bind the socket. The class of the standard library also asks for the host's full name,
        which takes seconds where no name server answers.
        """
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    @property
    def address(self) -> str:
        """Address of the server, as ``http://127.0.0.1:8000``."""
        host = f"[{self.server_name}]" if ":" in str(self.server_name) else self.server_name
        return f"http://{host}:{self.server_port}"

    def serve_until_signal(self) -> signal.Signals:
        """Answer requests until SIGINT (Ctrl-C) or SIGTERM, and return the signal.

        Decisions in progress are finished and answered. A second signal has its default effect.
        """
        with self._handling():
            try:
                self.serve_forever(_POLL_SECONDS)
            except _StopError as stopped:
                received = stopped.signal
            self._finish()
        return received

    @contextmanager
    def _handling(self) -> Iterator[None]:
        """Store signals within the block."""
        former: dict[signal.Signals, Any] = {}

        def store(number: int, frame: FrameType | None) -> None:
            self._received = signal.Signals(number)
            for each in former:
                signal.signal(each, signal.SIG_DFL)

        for number in (signal.SIGINT, signal.SIGTERM):
            # A signal that is ignored from the start, as below a shell's &, stays ignored.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                former[number] = signal.signal(number, store)
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _finish(self) -> None:
        """Stop listening, and wait for the decisions in progress."""
        self.server_close()
        end = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < end:
            with self._connections_lock:
                states = self._connections.values()
                if not any(state.is_busy and not state.is_late for state in states):
                    return
            time.sleep(_POLL_SECONDS / 2)

    def service_actions(self) -> None:
        """Close late connections and end idle sessions; `serve_forever` calls it repeatedly."""
        if self._received is not None:
            raise _StopError(self._received)
        self._close_late()
        self.service.expire()

    def _close_late(self) -> None:
        now = time.monotonic()
        with self._connections_lock:
            for connection, state in self._connections.items():
                if state.deadline is None or now < state.deadline:
                    continue
                # The thread that waits for a request gets the end of the stream, and may answer.
                # One that still waits to send is given up.
                how = socket.SHUT_RDWR if state.is_late else socket.SHUT_RD
                state.is_late = True
                state.deadline = now + _LAST_SECONDS
                with suppress(OSError):
                    connection.shutdown(how)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not self._has_room():
            if time.monotonic() > end or self._received is not None:
                self._refuse(request)
                return
            # Most requests are answered in milliseconds. Meanwhile other clients wait, too.
            time.sleep(0.01)
            self._close_late()
        with self._connections_lock:
            now = time.monotonic()
            self._connections[request] = _Connection(now, now + self._connection_timeout)
        super().process_request(request, client_address)

    def _has_room(self) -> bool:
        """Return whether there is room for a connection, after closing an idle one if need be."""
        with self._connections_lock:
            if len(self._connections) < self._max_connections:
                return True
            latest = time.monotonic() - _IDLE_SECONDS
            waiting = {}
            for connection, state in self._connections.items():
                if state.deadline is not None and not state.is_busy and state.since < latest:
                    waiting[connection] = state.since
            for connection in sorted(waiting, key=lambda each: waiting[each]):
                # Its thread may not have seen a request yet that has arrived.
                if _has_data(connection):
                    continue
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                # Its thread ends soon, and finds that there is nothing to remove.
                del self._connections[connection]
                return True
            return False

    def _refuse(self, request: socket.socket) -> None:
        body = json.dumps({"error": f"max_connections={self._max_connections} are open"}).encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        with suppress(OSError):
            request.setblocking(False)
            request.send(head.encode() + body)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._connections_lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that its client has closed; print other errors in one line."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            print_stderr(f"serve: {type(error).__name__}: {one_line(error)}")

    def begin_request(self, connection: socket.socket) -> None:
        """Wait for a request of a client."""
        self._set(connection, self._connection_timeout, is_busy=False)

    def receive_request(self, connection: socket.socket) -> None:
        """Wait for the rest of a request whose first line has arrived."""
        with self._connections_lock:
            state = self._connections.get(connection)
            if state is not None:
                state.is_busy = True

    def begin_decision(self, connection: socket.socket) -> None:
        """Stop waiting, while a request is answered."""
        self._set(connection, None, is_busy=True)

    def begin_answer(self, connection: socket.socket) -> None:
        """Wait for a client that reads an answer."""
        self._set(connection, self._connection_timeout, is_busy=True)

    def is_late(self, connection: socket.socket) -> bool:
        """Return whether a request has not arrived in time."""
        with self._connections_lock:
            state = self._connections.get(connection)
            return state is not None and state.is_late

    def _set(self, connection: socket.socket, seconds: float | None, *, is_busy: bool) -> None:
        with self._connections_lock:
            state = self._connections.get(connection)
            if state is None or state.is_late:
                return
            state.is_busy = is_busy
            state.since = time.monotonic()
            state.deadline = None if seconds is None else state.since + seconds


def _has_data(connection: socket.socket) -> bool:
    """Return whether unread bytes have arrived, without reading them."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


class _StopError(Exception):
    """A signal requested the end of the server.

    Args:
        signal: The signal.
    """

    def __init__(self, signal: signal.Signals) -> None:
        super().__init__(signal)
        self.signal = signal


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    server: AgentServer
    protocol_version = "HTTP/1.1"
    server_version = "yamame"
    sys_version = ""
    # An answer is one packet, for which no client has to wait.
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        """Handle a request, once it has arrived in time."""
        self.server.begin_request(self.connection)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Read the headers of a request whose first line was read."""
        self.server.receive_request(self.connection)
        return super().parse_request()

    def handle_expect_100(self) -> bool:
        """Ask for the body of a request, unless it is refused by its headers."""
        try:
            self._length()
        except RequestError as error:
            self._reply_error(error)
            return False
        return super().handle_expect_100()

    def do_GET(self) -> None:
        """Answer a request without a body."""
        # A body would be taken for the next request.
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True
        path = self._path()
        if path == "/health":
            self._reply(200, self.server.service.health())
        elif path in ("/reset", "/act", "/forget"):
            self._reply(405, {"error": f"{path} must be requested by POST"})
        else:
            self._reply(404, {"error": f"{printable(path)} is unknown; GET has /health"})

    def do_POST(self) -> None:
        """Answer a request of `Service`."""
        try:
            length = self._length()
            body = self.rfile.read(length)
            if self.server.is_late(self.connection):
                raise RequestError(408, "the request must arrive within connection_timeout")
            if len(body) < length:
                raise RequestError(400, f"a body must have {length} bytes, it has {len(body)}")
        except RequestError as error:
            self._reply_error(error)
            return
        path = self._path()
        if path == "/health":
            self._reply(405, {"error": "/health must be requested by GET"})
            return
        self.server.begin_decision(self.connection)
        try:
            status, answer = self.server.service.answer(path, body)
        finally:
            self.server.begin_answer(self.connection)
        self._reply(status, answer)

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _length(self) -> int:
        """Return the length of the body."""
        if "Transfer-Encoding" in self.headers:
            raise RequestError(411, "a body must have Content-Length; chunks are not supported")
        lengths = set(self.headers.get_all("Content-Length", []))
        if not lengths:
            raise RequestError(411, "Content-Length must be given")
        text = lengths.pop().strip()
        if lengths or not (text.isascii() and text.isdigit()):
            raise RequestError(400, "Content-Length must be one whole number")
        most = self.server.max_request_bytes
        # Python refuses to convert very long numbers.
        if len(text) > 18 or int(text) > most:
            raise RequestError(413, f"a body must have at most {most} bytes (max_request_bytes)")
        return int(text)

    def _reply_error(self, error: RequestError) -> None:
        """Answer a request whose body was not read, and close the connection."""
        self.close_connection = True
        self._reply(error.status, {"error": one_line(error)})
        self._drop_rest()

    def _drop_rest(self) -> None:
        """Read what the client still sends: closed at once, it would not see the answer."""
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            dropped = 0
            while dropped < _LONGEST_SURPLUS:
                # The server ends a read that takes too long.
                received = len(self.connection.recv(65_536))
                if received == 0:
                    break
                dropped += received

    def _reply(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        # The standard library takes what is not HTTP for version 0.9, whose answers have no status.
        self.request_version = self.protocol_version
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status in (408, 503):
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is not HTTP, or has another method than GET and POST."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status, message = HTTPStatus.METHOD_NOT_ALLOWED, "the method must be GET or POST"
        self.close_connection = True
        self._reply(status, {"error": printable(message or status.phrase)})

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; a line for every decision would be many."""
