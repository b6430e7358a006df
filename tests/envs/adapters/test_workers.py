import gc
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from faulty_envs import CUT, END, EXIT, FINE, HANG, KILL, NAN, RAISE, Walk, is_even
from tensordict import TensorDict
from yamame.evaluation.held_out import fresh_copy
from yamame.system.messages import OutsideError
from yamame_envs import HostedEnv, Workers
from yamame_envs.adapters.in_process import Failure, InProcessEnvs
from yamame_envs.adapters.reading import read_spaces
from yamame_envs.adapters.workers import Pool
from yamame_envs.streams import fold

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs signals and /proc")


@pytest.fixture(scope="module")
def pool(walks):
    """Five rows in two processes, of two and three rows."""
    workers = Workers(num_processes=2, on_error="continue", max_errors=10_000, timeout=3.0)
    env = walks(5, time_limit=30, workers=workers)
    yield env
    env.close()


def _begun(env, seed=0):
    env.set_seed(seed)
    return env.reset()


def _actions(steps, rows, seed=0):
    drawn = torch.rand(steps, rows, generator=torch.Generator().manual_seed(seed))
    return torch.where(drawn < 0.1, END, torch.where(drawn < 0.2, CUT, FINE))


def _layout():
    return read_spaces(Walk, owner="Walk", generic=False, success="success")


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def test_processes_play_what_one_process_plays(walks, steps, equal, pool):
    actions = _actions(60, 5)
    here, _ = steps(walks(5, time_limit=30), actions)
    equal(steps(pool, actions, td=_begun(pool))[0], here)
    one = walks(5, time_limit=30, workers=Workers(num_processes=1))
    equal(steps(one, actions)[0], here)
    one.close()


def test_failures_in_processes_are_those_of_one_process(walks, steps, equal, pool):
    actions = _actions(20, 5)
    actions[3, 1], actions[5, 4], actions[8, 0] = RAISE, NAN, -1
    here, _ = steps(walks(5, time_limit=30, workers=Workers(on_error="continue")), actions)
    before = pool.num_aborted
    equal(steps(pool, actions, td=_begun(pool))[0], here)
    assert pool.num_aborted == before + 3


@pytest.mark.parametrize("how", ["killed between steps", KILL, EXIT, HANG])
def test_a_process_that_dies_or_hangs_costs_its_rows_their_episodes_alone(
    walks, steps, equal, pool, how
):
    actions = torch.full((6, 5), FINE)
    whole, _ = steps(walks(5, time_limit=30), actions)
    _, td = steps(pool, actions[:2], td=_begun(pool))
    before, pids = pool.num_aborted, pool._player.pids
    if how == "killed between steps":
        os.kill(pids[1], signal.SIGKILL)
    else:
        actions[2, 3] = how
    since = time.monotonic()
    played, _ = steps(pool, actions[2:], td=td)
    assert time.monotonic() - since < 30
    equal(played[:2], whole[:2, 2:])  # the rows of the other process
    end = played[2:, 0]["next"]
    assert end["aborted"].all()
    assert end["truncated"].all()
    assert not end["reward"].any()
    assert torch.equal(end["observation"], whole[2:, 2]["observation"])
    assert played["next", "aborted"].sum() == 3
    assert played["is_init"][2:, 1].all()
    assert pool.num_aborted == before + 3
    assert pool._player.pids[0] == pids[0]
    assert pool._player.pids[1] != pids[1]
    assert not _is_running(pids[1])


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (KILL, "was killed by signal 9"),
        (EXIT, "exited with 3"),
        (HANG, "did not answer within 0.5 seconds"),
    ],
)
def test_a_process_that_ends_or_hangs_at_a_start_is_reported_and_the_next_episode_begins(
    walks, how, what
):
    chosen = {seed: TensorDict({"task_seed": torch.tensor([[seed]])}, [1]) for seed in (2, 3)}
    settings = {"good_resets": is_even, "bad_reset": how}
    strict = walks(1, **settings, workers=Workers(num_processes=1, timeout=0.5))
    strict.reset(chosen[2])  # it has imported everything
    with pytest.raises(
        OutsideError, match=rf"^HostedEnv: .* in env 0 at the start of task_seed 3: .* {what}$"
    ):
        strict.reset(chosen[3])
    strict.close()
    patient = walks(
        1, **settings, workers=Workers(num_processes=1, timeout=0.5, on_error="continue")
    )
    patient.reset(chosen[2])
    tasks = [fold(fold(torch.arange(99), 0), episode) % 2 for episode in range(2)]
    patient.set_seed(
        int((tasks[0] > tasks[1]).nonzero()[0])
    )  # the first one is odd, the second is not
    assert patient.reset()["is_init"].all()
    assert patient._failures.count == 1
    patient.close()


def test_rows_of_a_process_that_dies_while_others_of_its_rows_begin_are_aborted_at_their_next_step(
    steps, pool
):
    _, td = steps(pool, torch.full((2, 5), FINE), td=_begun(pool))
    before = pool.num_aborted
    os.kill(pool._player.pids[1], signal.SIGKILL)
    mask = torch.tensor([False, False, True, False, False]).unsqueeze(-1)
    td = pool.reset(td.set("_reset", mask))
    assert td["is_init"].flatten().tolist() == mask.flatten().tolist()
    played, after = steps(pool, torch.full((2, 5), FINE), td=td)
    assert played["next", "aborted"][:, 0, 0].tolist() == [False, False, False, True, True]
    assert not played["next", "aborted"][:, 1].any()
    assert after["step_index"].flatten().tolist() == [4, 4, 2, 1, 1]
    assert pool.num_aborted == before + 2


def test_a_row_that_was_over_when_its_process_died_begins_as_usual(steps, pool):
    td = _begun(pool).set("action", torch.tensor([FINE, FINE, FINE, END, FINE]))
    shown = pool.step(td)["next"]  # row 3 is over, and not reset
    os.kill(pool._player.pids[1], signal.SIGKILL)
    shown = pool.step(shown.clone().set("action", torch.full((5,), FINE)))["next"]
    assert shown["aborted"].flatten().tolist() == [False, False, True, False, True]
    pool.reset(shown.clone().set("_reset", shown["done"]))
    played, _ = steps(pool, torch.full((2, 5), FINE), td=pool.present())
    assert not played["next", "aborted"].any()


def test_a_state_is_loaded_into_processes_exactly(walks, steps, equal, pool):
    env = walks(5, time_limit=30, seed=8)
    _, td = steps(env, _actions(25, 5))
    pool.load_state_dict(env.state_dict())
    future = _actions(20, 5, seed=1)
    equal(steps(pool, future, td=pool.present())[0], steps(env, future, td=td)[0])
    assert pool.num_aborted == 0


def test_a_row_is_drawn_by_its_process(steps, pool):
    steps(pool, torch.tensor([[FINE] * 5, [FINE, END, FINE, FINE, FINE]]), td=_begun(pool))
    assert (pool.render(4) == 2).all()
    assert (pool.render(1) == 0).all()


def test_an_error_shows_the_traceback_of_the_process_and_too_many_dead_ones_are_an_error(
    walks, steps
):
    strict = walks(2, workers=Workers(num_processes=1))
    with pytest.raises(
        RuntimeError, match=r"in env 1 at step 0 of task_seed .*: ZeroDivisionError: broken"
    ) as error:
        steps(strict, torch.tensor([[FINE, RAISE]]))
    assert "in step\n    raise ZeroDivisionError" in str(error.value.__cause__)
    with pytest.raises(
        RuntimeError,
        match=r"in env 0 at step 0 of task_seed .*: its worker process was killed by signal 9",
    ):
        steps(strict, torch.tensor([[FINE, KILL]]))
    strict.close()
    patient = walks(3, workers=Workers(num_processes=1, on_error="continue", max_errors=1))
    _, td = steps(patient, torch.tensor([[FINE, EXIT, FINE]]))
    assert patient.num_aborted == 3  # one failure, of three rows
    with pytest.raises(
        RuntimeError,
        match=r"failed more often than max_errors=1 allows, .*: its worker process exited with 3",
    ):
        steps(patient, torch.tensor([[FINE, EXIT, FINE]]), td=td)
    patient.close()


def test_the_rows_of_a_pool_are_those_of_one_process_whichever_are_asked():
    pool, rows = (
        Pool(Walk, 5, _layout(), Workers(num_processes=9)),
        InProcessEnvs(Walk, 5, _layout()),
    )
    assert len(pool.pids) == 5  # one per row at most
    for play in (pool, rows):
        play.reset(range(5), [3, 1, 4, 1, 5])
    generator = np.random.default_rng(0)
    for _ in range(10):
        asked = sorted(generator.choice(5, generator.integers(1, 6), replace=False).tolist())
        actions = generator.integers(0, 5, len(asked))
        a, b = pool.step(asked, actions), rows.step(asked, actions)
        good = [position for position in range(len(asked)) if position not in b.failures]
        assert np.array_equal(a.leaves[0][good], b.leaves[0][good])
        for name in ("reward", "terminated", "truncated", "success"):
            assert np.array_equal(getattr(a, name)[good], getattr(b, name)[good])
        assert {k: fault.summary for k, fault in a.failures.items()} == {
            k: f.summary for k, f in b.failures.items()
        }
        failed = sorted(asked[position] for position in b.failures)
        for play in (pool, rows):
            play.reset(failed, [7] * len(failed))
    pool._workers[0].send("render", 0)  # interrupted before its answer was received
    assert np.array_equal(
        pool.step([0], np.array([FINE])).leaves[0], rows.step([0], np.array([FINE])).leaves[0]
    )
    pids = pool.pids
    pool.close()
    assert not any(map(_is_running, pids))


def _named(pids):
    return [process for process in active_children() if process.pid in pids]


def test_processes_end_with_their_environment(walks):
    env = walks(2, workers=Workers(num_processes=1))
    assert env._player is None  # nothing is started before it is needed
    env.reset()
    pids = env._player.pids
    assert _named(pids)
    del env
    gc.collect()
    assert _wait_for(lambda: not any(map(_is_running, pids)))
    assert not _named(pids)


def test_a_process_that_cannot_begin_says_why():
    pool = Pool(partial(Walk, unknown=3), 1, _layout(), Workers(num_processes=1))
    assert "unexpected keyword argument 'unknown'" in pool.reset([0], [0]).failures[0].summary
    pool._workers[0].payload = b"no pickle"
    pool._workers[0].kill()
    pool._workers[0].spawn()
    fault = pool.reset([0], [0]).failures[0]
    assert isinstance(fault, Failure)
    assert "UnpicklingError" in fault.summary
    pool.close()


_SCRIPT = """
import signal, sys, time
# A shell's background commands inherit that it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {support!r})
from functools import partial
from faulty_envs import Modules
from yamame_envs.adapters.reading import read_spaces
from yamame_envs.adapters.workers import Pool, Workers

print("main", flush=True)
layout = read_spaces(Modules, owner="Modules", generic=False, success=None)
pool = Pool(Modules, 2, layout, Workers(num_processes=2))
outcome = pool.reset([0, 1], [0, 0])
print(*outcome.leaves[0].flatten().astype(int), *pool.pids, flush=True)
{then}
"""


@pytest.fixture
def start(tmp_path):
    """Runs a script without a guard around its main part; returns it, and the identifiers of its
    processes.
    """
    running = []

    def run(then):
        text = _SCRIPT.format(support=str(Path(__file__).parent / "support"), then=then)
        (tmp_path / "script.py").write_text(text)
        command = [sys.executable, str(tmp_path / "script.py")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(script := subprocess.Popen(command, start_new_session=True, **pipes))
        assert script.stdout.readline() == "main\n"
        no_torch, no_torch_either, *pids = map(int, script.stdout.readline().split())
        assert (no_torch, no_torch_either) == (0, 0)
        return script, pids

    yield run
    for script in running:
        with script:  # closes its pipes, and waits for it
            script.kill()


def test_processes_import_no_torch_and_no_script_and_end_when_the_script_does(start):
    script, pids = start("")
    out, err = script.communicate(timeout=60)
    assert (out, err, script.returncode) == ("", "", 0)
    assert _wait_for(lambda: not any(map(_is_running, pids)))


def test_an_interrupt_is_that_of_the_main_process_alone(start):
    script, pids = start("time.sleep(100)")
    for pid in pids:  # from their first moment on, before they could say so themselves
        status = Path(f"/proc/{pid}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGUSR1,
            signal.SIGUSR2,
            signal.SIGHUP,
        ):
            assert blocked & (1 << (number - 1))
    os.killpg(script.pid, signal.SIGINT)
    _, err = script.communicate(timeout=60)
    assert err.count("Traceback") == 1
    assert err.endswith("KeyboardInterrupt\n")
    assert _wait_for(lambda: not any(map(_is_running, pids)))


def test_processes_end_when_the_main_process_is_killed(start):
    script, pids = start("time.sleep(100)")
    assert all(map(_is_running, pids))
    script.kill()
    script.communicate(timeout=60)
    assert _wait_for(lambda: not any(map(_is_running, pids)))


def test_a_hosted_environment_defined_in_a_script_can_be_played_there(tmp_path):
    (tmp_path / "script.py").write_text(
        "import gymnasium, numpy as np\n"
        "class Own(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 9, (1,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.ones(1, np.float32), {}\n"
        "if __name__ == '__main__':\n"
        "    from yamame_envs.adapters.reading import read_spaces\n"
        "    from yamame_envs.adapters.workers import Pool, Workers\n"
        "    layout = read_spaces(Own, owner='Own', generic=False, success=None)\n"
        "    outcome = Pool(Own, 1, layout, Workers(num_processes=1)).reset([0], [0])\n"
        "    print(outcome.leaves[0], outcome.failures)\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[[1.]] {}\n", "")


def test_an_error_of_an_environment_defined_in_a_script_has_its_place(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium\n"
        "class Own(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 9, (1,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        raise KeyError('map')\n"
        "if __name__ == '__main__':\n"
        "    from yamame_envs.adapters.reading import read_spaces\n"
        "    from yamame_envs.adapters.workers import Pool, Workers\n"
        "    layout = read_spaces(Own, owner='Own', generic=False, success=None)\n"
        "    outcome = Pool(Own, 1, layout, Workers(num_processes=1)).reset([0], [0])\n"
        "    print(outcome.failures[0].describe('Own'))\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == (f"Own: KeyError: 'map' ({script}:6)\n", "")


@pytest.mark.parametrize(("given", "expected"), [({}, b"1"), ({"OMP_NUM_THREADS": "3"}, b"3")])
def test_a_process_computes_with_one_thread_unless_the_environment_says_how_many(
    monkeypatch, given, expected
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    pool = Pool(Walk, 1, _layout(), Workers(num_processes=1))
    pool.reset([0], [0])  # it has begun
    variables = Path(f"/proc/{pool.pids[0]}/environ").read_bytes().split(b"\0")
    pool.close()
    assert b"OMP_NUM_THREADS=" + expected in variables
    assert os.environ.get("OMP_NUM_THREADS") == given.get("OMP_NUM_THREADS")


def test_hosted_environments_are_refused_what_they_cannot_send():
    lock = threading.Lock()

    def make():
        with lock:
            return Walk()

    with pytest.raises(ValueError, match=r"HostedEnv: make must be picklable .* got <function"):
        HostedEnv(make, num_envs=1, workers=Workers(num_processes=1))


def test_processes_end_although_a_connection_has_been_closed_by_others(walks):
    env = walks(2, workers=Workers(num_processes=2))
    _begun(env)
    pids = env._player.pids
    os.close(env._player._workers[0].connection.fileno())
    env.close()
    assert not any(map(_is_running, pids))


def test_random_actions_are_evaluated_without_a_copy_of_the_environment(walks):
    env = walks(2, time_limit=3, workers=Workers(num_processes=2))
    _begun(env)
    assert fresh_copy(env.rand_action).__self__ is env
    env.close()
