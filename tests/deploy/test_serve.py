"""The HTTP example: each of many sessions gets the actions that it would get alone."""

import http.client
import importlib.util
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from yamame.deploy import DeployedAgent

SERVE = Path(__file__).parents[2] / "examples" / "serve.py"
NUM, LENGTH = 32, 4


@pytest.fixture
def ask(maze):
    """Return a function that sends a request to a server and returns status and answer."""
    spec = importlib.util.spec_from_file_location("serve", SERVE)
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    server = serve.make_server(DeployedAgent(maze.saved, greedy=True, max_sessions=NUM), 0)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def ask(path, **asked):
        connection = http.client.HTTPConnection(*server.server_address, timeout=60)
        connection.request("POST", path, json.dumps(asked))
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        connection.close()
        return answer

    yield ask
    server.shutdown()
    server.server_close()


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


def test_a_wrong_request_is_answered_with_its_reason(ask, observations, maze):
    agent = DeployedAgent(maze.saved)
    seen = {key: value.tolist() for key, value in observations(agent).items()}
    status, answer = ask("/act", session="a", observation=seen)
    assert status == 400
    assert "sessions must have begun" in answer["error"]
    ask("/reset", session="a")
    status, answer = ask("/act", session="a", observation={"goal": seen["goal"]})
    assert status == 400
    assert "observation must have an entry 'observation'" in answer["error"]
    assert ask("/act", session="a", observation=seen)[0] == 200
    assert ask("/forget", session="a") == (200, {})
    assert ask("/nothing", session="a") == (404, {"error": "KeyError: '/nothing'"})
    assert ask("/act", observation=seen) == (400, {"error": "KeyError: 'session'"})
