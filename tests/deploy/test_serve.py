"""The HTTP service: each of many sessions gets the actions that it would get alone, whatever others
send.
"""

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from yamame import recipes_dir
from yamame.deploy import DeployedAgent
from yamame.deploy.server import AgentServer
from yamame.deploy.service import Service

NUM, LENGTH = 32, 4
OBSERVATIONS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (9, 9, 3), np.uint8),
        "body": spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,)), "gear": spaces.Discrete(3)}),
        "pair": spaces.Tuple([spaces.Discrete(4, start=2), spaces.Box(0.0, 1.0, (2,))]),
    }
)


class Car(gymnasium.Env):
    """Shows samples of `OBSERVATIONS`."""

    observation_space = OBSERVATIONS
    action_space = spaces.Discrete(5, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


gymnasium.register("ServedCar-v0", entry_point=Car)


@pytest.fixture(scope="module")
def car(subject):
    return subject("gru", "env=gym", "env.id=ServedCar-v0", num_envs=1).saved


@contextmanager
def serving(agent, *, sessions=None, **limits):
    """A function that sends a request to a server, and returns status and answer."""
    service = Service(agent, **(sessions or {}))
    server = AgentServer(service, port=0, **limits)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()

    def ask(path, body=None, method="POST", **fields):
        data = json.dumps(fields) if body is None else body
        with closing(http.client.HTTPConnection(*server.server_address, timeout=60)) as connection:
            connection.request(method, path, data if method == "POST" else None)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    ask.address = server.server_address
    ask.service = service
    try:
        yield ask
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def ask(maze):
    with serving(DeployedAgent(maze.saved, greedy=True), sessions={"max_sessions": NUM}) as ask:
        yield ask


def in_json(value):
    """A value of a space as a client writes it."""
    if isinstance(value, dict):
        return {name: in_json(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [in_json(inner) for inner in value]
    return np.asarray(value).tolist()


def answers(address, text):
    """What the server answers to bytes: the status, and the error."""
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(client)
        response.begin()
        return response.status, json.loads(response.read())["error"]


def test_requests_of_the_page_are_answered(ask, car):
    """Those for a maze, and one with a nested observation, from which the page omits the camera."""
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    asked = re.findall(r"curl http://127.0.0.1:8000(/\w+)(?: -d '(.*)')?\n(.*)", page)
    assert len(asked) == 6
    with serving(DeployedAgent(car, greedy=True)) as ask_car:
        assert ask_car("/reset", session="car") == (200, {})
        for path, body, printed in asked:
            fields = json.loads(body or "{}")
            if fields.get("session") == "car":
                fields["observation"]["camera"] = np.zeros((9, 9, 3), int).tolist()
                status, answer = ask_car(path, **fields)
            else:
                status, answer = ask(path, method="POST" if body else "GET", **fields)
            assert (status, answer.keys()) == (200, json.loads(printed).keys())


def test_many_sessions_at_once_act_as_one_at_a_time(maze, ask, observations):
    agent = DeployedAgent(maze.saved, greedy=True)
    seen = [
        [
            {k: v.tolist() for k, v in observations(agent, seed=99 * i + t).items()}
            for t in range(LENGTH)
        ]
        for i in range(NUM)
    ]

    def over_http(i):
        assert ask("/reset", session=f"session {i}") == (200, {})
        told = []
        for t in range(LENGTH):
            given = {"reward": 0.1 * t, "done": False} if t else {}
            status, answer = ask("/act", session=f"session {i}", observation=seen[i][t], **given)
            assert status == 200
            told.append(answer["action"])
        return told

    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(over_http, range(NUM)))
    for i in range(NUM):
        agent.reset()
        alone = [
            agent.act(seen[i][0]),
            *(agent.act(seen[i][t], reward=0.1 * t) for t in range(1, LENGTH)),
        ]
        assert told[i] == [int(action) for action in alone]
    assert len({tuple(actions) for actions in told}) > 5


@pytest.mark.parametrize("nested", [False, True])
def test_observations_of_an_environment_are_served_as_they_are(car, nested):
    agent = DeployedAgent(car, greedy=True)
    OBSERVATIONS.seed(1)
    chosen = set()
    with serving(DeployedAgent(car, greedy=True)) as ask:
        ask("/reset", session=7)
        for step in range(12):
            observation = OBSERVATIONS.sample()
            reward = {"reward": 0.5} if step else {}
            shown = in_json(observation)
            shown = {"observation": shown} if nested else shown
            status, answer = ask("/act", session=7, observation=shown, **reward)
            expected = agent.env_action(agent.act(observation, **reward))
            assert (status, answer) == (200, {"action": int(expected)})
            chosen.add(answer["action"])
        # The first action of the space is 3.
        assert chosen <= {3, 4, 5, 6, 7}

        wrong = in_json(OBSERVATIONS.sample())
        for change, named in (
            ({"camera": wrong["camera"][1:]}, ("camera", "(8, 9, 3)", "(9, 9, 3)", "uint8")),
            ({"camera": [[[1.5] * 3] * 9] * 9}, ("camera", "uint8", "float64")),
            ({"pair": [9, [0, 0]]}, ("'pair'", "2..5", "9")),
            ({"pair": [2]}, ("'pair'", "2 values")),
            ({"lidar": [1]}, ("'lidar'", "camera", "speed")),
            ({"body": wrong["body"] | {"rudder": 1}}, ("'rudder'",)),
            ({"body": {"gear": 1}}, ("'speed'", "(2,)", "float32")),
        ):
            status, answer = ask("/act", session=7, observation=wrong | change, reward=0.0)
            assert status == 400
            for name in named:
                assert name in answer["error"]
            assert "\n" not in answer["error"]


GOOD = {"session": "a", "observation": {"observation": [0.0] * 6, "goal": [[0.0] * 2] * 2}}
LATER = GOOD | {"reward": 0.0}
WRONG = [
    # Path, body, and a part of the error.
    ("/act", GOOD, "reward"),
    ("/act", LATER | {"session": "b"}, "'b' must have started"),
    ("/act", LATER | {"observation": {"goal": [[0, 0]] * 2}}, "'observation'"),
    ("/act", {"session": "a", "reward": 0.0}, "'observation'"),
    ("/act", LATER | {"reward": "1"}, "reward"),
    ("/act", LATER | {"reward": [1.0]}, "reward"),
    ("/act", LATER | {"reward": True}, "reward"),
    ("/act", LATER | {"done": 1}, "done"),
    ("/act", LATER | {"dnoe": True}, "'dnoe'"),
    ("/act", {"observation": [0.0]}, "'session'"),
    ("/reset", {"session": "x" * 201}, "'session'"),
    ("/reset", {"session": ""}, "'session'"),
    ("/reset", {"session": 2**63}, "'session'"),
    ("/reset", {"session": True}, "'session'"),
    ("/reset", {"session": ["a"]}, "'session'"),
    ("/forget", {"session": "b"}, "'b'"),
    ("/reset", [1], "object"),
    ("/reset", b"", "JSON"),
    ("/reset", b"{", "JSON"),
    ("/reset", b'{"session": "\xff"}', "JSON"),
    ("/reset", b"[" * 50_000, "nested"),
    ("/act", json.dumps(LATER | {"reward": float("nan")}).encode(), "NaN"),
    ("/act", json.dumps(LATER).replace("[0.0, 0.0", "[1e999, 0.0", 1).encode(), "inf"),
    ("/act", json.dumps(LATER).replace("[0.0, 0.0", "[-Infinity, 0.0", 1).encode(), "Infinity"),
    ("/act", json.dumps(LATER).replace("[0.0", f"[{'9' * 400}", 1).encode(), "'observation'"),
    ("/act", json.dumps(LATER).replace("[0.0", f"[{'9' * 9000}", 1).encode(), "JSON"),
    ("/act", json.dumps(LATER).replace("[0.0", "[" * 90 + "0.0", 1).encode(), "JSON"),
    ("/act", LATER | {"observation": [[[[[0] * 9] * 9]]]}, "mapping"),
]


def test_a_wrong_request_is_answered_in_one_line_and_changes_nothing(maze, ask):
    ask("/reset", session="a")
    assert ask("/act", **GOOD)[0] == 200
    for path, body, part in WRONG:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = ask(path, data)
        assert status == 400, (path, body)
        assert part in answer["error"], (path, body, answer)
        assert "\n" not in answer["error"]
        assert len(answer["error"]) < 700
    assert ask("/nothing", session="a")[0] == 404
    assert ask("/nothing", method="GET")[0] == 404
    assert ask("/act", method="GET")[0] == 405
    assert ask("/act", method="PUT")[0] == 405
    assert ask("/health", session="a")[0] == 405

    agent = DeployedAgent(maze.saved, greedy=True)
    agent.act(GOOD["observation"])
    expected = int(agent.act(GOOD["observation"], reward=0.0))
    assert ask("/act", **LATER) == (200, {"action": expected})
    assert ask("/forget", session="a") == (200, {})
    assert ask("/act", **LATER)[0] == 400


def test_health_reports_the_agent_and_its_sessions(ask, maze):
    status, answer = ask("/health?verbose", method="GET")
    assert status == 200
    assert answer["agent"] == maze.saved.source
    assert answer["versions"].keys() == {"yamame", "torch"}
    assert answer["sessions"] == 0
    ask("/reset", session="a")
    assert ask("/health", method="GET")[1]["sessions"] == 1


def test_the_number_of_sessions_is_limited_and_idle_ones_end(maze):
    now = [0.0]
    options = {"max_sessions": 2, "session_timeout": 10.0, "clock": lambda: now[0]}
    with serving(DeployedAgent(maze.saved, greedy=True), sessions=options) as ask:
        for name in ("a", "b", "a"):
            assert ask("/reset", session=name) == (200, {})
        status, answer = ask("/reset", session="c")
        assert status == 503
        assert "max_sessions=2" in answer["error"]
        now[0] = 6.0
        assert ask("/act", **GOOD)[0] == 200
        now[0] = 11.0
        # The first session has made a request since, the second one has not.
        assert ask("/reset", session="c") == (200, {})
        assert ask("/act", **LATER)[0] == 200
        assert ask("/act", **LATER | {"session": "b"})[0] == 400
        now[0] = 99.0
        deadline = time.monotonic() + 20
        while ask.service.num_sessions and time.monotonic() < deadline:
            time.sleep(0.02)
        assert ask("/health", method="GET")[1]["sessions"] == 0


def test_framing_and_size_of_requests(ask):
    def post(*headers, body=b"{}"):
        lines = ["POST /reset HTTP/1.1", "Host: x", *headers]
        return answers(ask.address, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    most = ask.service.longest_request
    for status, headers in (
        (413, [f"Content-Length: {10**15}"]),
        (413, ["Content-Length: " + "9" * 5000]),
        (411, []),
        (411, ["Transfer-Encoding: chunked"]),
        (400, ["Content-Length: -1"]),
        (400, ["Content-Length: 1_0"]),
        (400, ["Content-Length: x"]),
        (400, ["Content-Length: 2", "Content-Length: 3"]),
        (400, ["Content-Length: 50"]),
        (413, [f"Content-Length: {10**15}", "Expect: 100-continue"]),
    ):
        found, error = post(*headers)
        assert found == status, headers
        assert error
    assert answers(ask.address, b"nonsense\r\n\r\n")[0] == 400
    # All of it is sent, and the answer arrives.
    assert ask("/reset", b" " * (most + 1))[0] == 413
    assert ask("/reset", b'{"session": "a"}' + b" " * (most - 16)) == (200, {})


def test_idle_connections_end_and_make_room(maze):
    agent = DeployedAgent(maze.saved, greedy=True)
    with serving(agent, max_connections=4, connection_timeout=0.5) as ask:
        idle = [socket.create_connection(ask.address, timeout=30) for _ in range(12)]
        assert ask("/reset", session="a") == (200, {})
        slow = socket.create_connection(ask.address, timeout=30)
        slow.sendall(b"POST /reset HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        # Dripping does not help.
        for _ in range(40):
            time.sleep(0.05)
            try:
                slow.sendall(b" ")
            except OSError:
                break
        assert ask("/health", method="GET")[0] == 200
        for client in (*idle, slow):
            with client:
                assert len(client.recv(4096)) < 500  # the end of the stream, or an error
        deadline = time.monotonic() + 20
        names = [thread.name for thread in threading.enumerate()]
        while any("process_request" in name for name in names) and time.monotonic() < deadline:
            time.sleep(0.05)
            names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if "process_request" in name]


def test_more_clients_than_connections_are_answered_or_refused(maze):
    agent = DeployedAgent(maze.saved, greedy=True)
    with serving(agent, max_connections=4) as ask:
        idle = [socket.create_connection(ask.address, timeout=30) for _ in range(4)]
        with ThreadPoolExecutor(24) as pool:
            answered = list(pool.map(lambda i: ask("/reset", session=i), range(96)))
        # No request that has arrived is dropped for the next one.
        assert {status for status, _ in answered} <= {200, 503}
        assert [status for status, _ in answered].count(200) == ask.service.num_sessions
        assert ask.service.num_sessions > 20
        for client in idle:
            client.close()


def test_a_connection_serves_several_requests(ask):
    with closing(http.client.HTTPConnection(*ask.address, timeout=60)) as connection:
        for path in ("/reset", "/nothing", "/forget"):
            connection.request("POST", path, json.dumps({"session": "a"}))
            response = connection.getresponse()
            assert response.status == (404 if path == "/nothing" else 200)
            response.read()


def test_a_failure_of_the_agent_is_one_answer(maze, capsys):
    agent = DeployedAgent(maze.saved, greedy=True)
    with serving(agent) as ask:
        ask("/reset", session="a")
        act = agent.act
        agent.act = types.MethodType(lambda self, *args, **kwargs: 1 / 0, agent)
        status, answer = ask("/act", **GOOD)
        assert status == 500
        assert "ZeroDivisionError" in answer["error"]
        agent.act = act
        assert ask("/act", **GOOD)[0] == 200
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_wrong_address_is_named(maze):
    service = Service(DeployedAgent(maze.saved))
    with closing(AgentServer(service, port=0).socket) as taken:
        for option in (
            {"port": 70_000},
            {"host": "no such host"},
            {"port": taken.getsockname()[1]},
        ):
            ((name, value),) = option.items()
            with pytest.raises(ValueError, match=name) as caught:
                AgentServer(service, **option)
            assert str(value) in str(caught.value)


EXAMPLE = Path(__file__).parents[2] / "examples" / "serve.py"
PROGRAM = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("number", "script", "arguments"),
    [
        (signal.SIGTERM, recipes_dir() / "serve.py", ["run=agent", "port=0"]),
        (signal.SIGINT, EXAMPLE, ["agent", "0"]),
    ],
    ids=["recipe", "example"],
)
def test_a_server_ends_at_a_signal(number, script, arguments, maze, begin_forked, tmp_path):
    DeployedAgent(maze.saved).save_pretrained(tmp_path / "agent")
    process = begin_forked(PROGRAM, str(script), *arguments, cwd=tmp_path)
    printed = process.folder / "stdout"
    deadline = time.monotonic() + 120
    while not (printed.exists() and "\n" in printed.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    port = int(printed.read_text().strip().rpartition(":")[2])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read())["agent"] == "agent"
        os.kill(process.pid, number)
        ended = process.wait()
    assert ended.returncode == 0
    line = ended.stderr.splitlines()[-1]
    assert number.name in line
