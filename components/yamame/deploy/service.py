"""Trained agent as a service: sessions that begin, act and end by requests.

A request is a path and a JSON object:

===========  ==========================================================  ======================
path         fields                                                      answer
===========  ==========================================================  ======================
``/reset``   ``session``                                                 ``{}``
``/act``     ``session``, ``observation``, and after the first           ``{"action": ...}``
             observation ``reward``; optional ``done``, ``trial_start``
``/forget``  ``session``                                                 ``{}``
``/health``  none; the method is GET                                     `Service.health`
===========  ==========================================================  ======================

Observations are values of the environment's space in JSON: arrays and tuples are lists. The action
is what the environment's ``step`` takes. The fields are described at `DeployedAgent.act`.

`yamame.deploy.server` answers such requests over HTTP.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from yamame.checks import PositiveFloat, PositiveInt, check_bounds
from yamame.deploy.agent import DeployedAgent
from yamame.system.installed import version_of
from yamame.system.messages import one_line, print_stderr

_LONGEST_NAME = 200
_FIELDS = {
    "/reset": ("session",),
    "/forget": ("session",),
    "/act": ("session", "observation", "reward", "done", "trial_start"),
}
"""Fields of the requests by path."""
_BYTES_PER_NUMBER = 32
_OTHER_BYTES = 65_536


class RequestError(Exception):
    """A request that cannot be answered.

    Args:
        status: Status of HTTP.
        message: Reason, one line.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """Answers requests of many clients with one agent, one after the other.

    Sessions without a request for ``session_timeout`` end by themselves. If ``max_sessions`` are
    going on, no other one can begin: a session never loses its memory to a new one.

    Args:
        agent: The agent. No other code may use it meanwhile.
        max_sessions: Largest number of sessions.
        session_timeout: Seconds without a request after which a session ends.
        name: Name of the agent for clients; None for its source.
        clock: Function that returns the present time in seconds.

    Attributes:
        agent: The agent.
        name: Name of the agent for clients.
    """

    @check_bounds
    def __init__(
        self,
        agent: DeployedAgent,
        *,
        max_sessions: PositiveInt = 1000,
        session_timeout: PositiveFloat = 3600.0,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent = agent
        self.name = agent.saved.source if name is None else name
        self._max_sessions = max_sessions
        self._session_timeout = session_timeout
        self._clock = clock
        # An agent handles one call at a time.
        self._lock = threading.Lock()
        # Time of the last request of each session; the least recently used one comes first.
        self._used: dict[str | int, float] = {}

    @property
    def num_sessions(self) -> int:
        """Number of sessions that are going on."""
        return len(self._used)

    @property
    def longest_request(self) -> int:
        """Number of bytes that suffice for any observation of the agent in JSON."""
        numbers = 0
        for spec in self.agent.observation_spec.values(True, True):
            numbers += math.prod(spec.shape)
        return _OTHER_BYTES + _BYTES_PER_NUMBER * numbers

    def health(self) -> dict[str, Any]:
        """Return the name of the agent, versions and the number of sessions."""
        versions = {name: version_of(name) for name in ("yamame", "torch")}
        return {
            "status": "ok",
            "agent": self.name,
            "versions": versions,
            "sessions": self.num_sessions,
            "max_sessions": self._max_sessions,
        }

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer a request.

        Args:
            path: Path of the request.
            body: JSON object.

        Returns:
            Status of HTTP, and the answer; in the case of an error, its only field is ``error``.
        """
        try:
            # Parsing takes many times the memory of a body, so requests take turns in that, too.
            with self._lock:
                return 200, self._answer(path, body)
        except RequestError as error:
            return error.status, {"error": one_line(error)}
        except (ValueError, TypeError) as error:
            return 400, {"error": one_line(error)}
        except RecursionError:
            return 400, {"error": "the JSON of a request must not be nested that deep"}
        except Exception as error:
            # The other sessions go on.
            reason = f"{type(error).__name__}: {one_line(error)}"
            print_stderr(f"serve: {path} failed: {reason}")
            return 500, {"error": reason}

    def expire(self) -> None:
        """End the sessions without a recent request, unless the agent is at work."""
        if self._lock.acquire(blocking=False):
            try:
                self._expire()
            finally:
                self._lock.release()

    def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        fields = _FIELDS.get(path)
        if fields is None:
            raise RequestError(404, f"{path} is unknown; there are {', '.join(_FIELDS)}, /health")
        request = _parse(body)
        for name in request:
            if name not in fields:
                known = ", ".join(fields)
                raise RequestError(400, f"{path} has no field {name!r}; there are {known}")
        session = _session(request)

        self._expire()
        if path == "/reset":
            self._begin(session)
            return {}
        if session not in self._used:
            raise RequestError(
                400,
                f"session {session!r} must have started, it has not or has ended; POST /reset "
                f"starts it, and it ends after {self._session_timeout:g} seconds without a request",
            )
        if path == "/forget":
            self._end(session)
            return {}
        action = self._act(session, request)
        self._use(session)
        return {"action": action}

    def _act(self, session: str | int, request: Mapping[str, Any]) -> Any:
        if "observation" not in request:
            raise RequestError(400, "/act must have the field 'observation'")
        options = {}
        for name, is_number in (("reward", True), ("done", False), ("trial_start", False)):
            value = request.get(name)
            if value is None:
                continue
            if isinstance(value, bool) == is_number or not isinstance(value, int | float):
                kind = "a number" if is_number else "true or false"
                raise RequestError(400, f"{name} must be {kind}, got {type(value).__name__}")
            options[name] = [value]
        # Read alone, so that messages give the shapes of one observation.
        observation = self.agent.read_observation(request["observation"])
        action = self.agent.act(observation, sessions=[session], **options)
        (value,) = self.agent.env_action(action)
        return _plain(value)

    def _begin(self, session: str | int) -> None:
        if session not in self._used and len(self._used) >= self._max_sessions:
            raise RequestError(
                503, f"max_sessions={self._max_sessions} are open; end one with POST /forget"
            )
        self.agent.reset([session])
        self._use(session)

    def _end(self, session: str | int) -> None:
        self.agent.forget([session])
        del self._used[session]

    def _use(self, session: str | int) -> None:
        # Keys of a dictionary keep their order.
        self._used.pop(session, None)
        self._used[session] = self._clock()

    def _expire(self) -> None:
        oldest = self._clock() - self._session_timeout
        while self._used:
            session = next(iter(self._used))
            if self._used[session] >= oldest:
                break
            self._end(session)


def _parse(body: bytes) -> dict[str, Any]:
    """Return the object of a request."""
    try:
        request = json.loads(body.decode(), parse_constant=_refuse_constant)
    except ValueError as error:
        raise RequestError(400, f"a request must be JSON in UTF-8: {one_line(error)}") from error
    if not isinstance(request, dict):
        raise RequestError(400, f"a request must be an object, got {type(request).__name__}")
    return request


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed, numbers must be finite")


def _session(request: Mapping[str, Any]) -> str | int:
    """Return the name of the session."""
    name = request.get("session")
    is_text = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME
    is_number = type(name) is int and abs(name) < 2**63
    if not (is_text or is_number):
        condition = f"a text of 1 to {_LONGEST_NAME} characters, or a whole number of 64 bits"
        raise RequestError(400, f"a request must have the field 'session': {condition}")
    assert isinstance(name, str | int)
    return name


def _plain(value: Any) -> Any:
    """Convert a value of an action space to data that JSON has."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    return value
