"""The first signal is received, or ends the process in order; the second has its default effect."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest
from yamame.system import signals
from yamame.system.signals import (
    EXIT_STATUS,
    SIGNALS,
    Terminated,
    exit_if_received,
    handling,
    received,
)

NAMES = [number.name for number in SIGNALS]


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = handlers()
    yield
    assert handlers() == before
    assert received() is None


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_acted_upon_where_the_process_asks(number):
    def work():
        with handling(at_once=False):
            exit_if_received()
            send(number)
            assert received() is number
            assert set(handlers()) == {signal.SIG_DFL}  # a second one ends the process at once
            exit_if_received()

    with pytest.raises(Terminated) as raised:
        work()
    assert raised.value.code == EXIT_STATUS == 75
    assert not isinstance(raised.value, Exception)


@pytest.mark.parametrize("number", SIGNALS)
def test_outside_of_a_run_a_signal_raises_at_once(number):
    def work():
        with handling(at_once=True):
            send(number)
            signal.pause()

    with pytest.raises(Terminated):
        work()


def test_what_a_library_raises_when_it_is_interrupted_is_the_end_it_was_asked_for(capfd):
    def library():
        try:
            send(signal.SIGTERM)
            signal.pause()
        finally:
            raise AttributeError("state was half set")

    def work():
        with handling(at_once=True):
            try:
                library()
            except AttributeError as error:
                raise ValueError("in another module") from error

    with pytest.raises(Terminated) as raised:
        work()
    assert raised.value.code == EXIT_STATUS
    assert capfd.readouterr().err == "SIGTERM: ended before the run started\n"


def test_an_error_of_a_run_that_was_asked_to_end_stays_an_error():
    def work():
        with handling(at_once=True), handling(at_once=False):
            send(signal.SIGTERM)
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        work()


def test_what_was_noted_in_one_run_of_a_sweep_ends_the_next():
    with handling(at_once=True):
        with handling(at_once=False):
            send(signal.SIGTERM)  # where nobody asks any more
        with handling(at_once=False), pytest.raises(Terminated):
            exit_if_received()


def test_a_signal_that_is_ignored_stays_ignored():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handling(at_once=False):
            send(signal.SIGHUP)
            assert received() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_another_thread_is_left_alone():
    outcome = []

    def work():
        with handling(at_once=False):
            outcome.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == [handlers()]


def script(body, number):
    """Return exit status and errors of a process that sends itself a signal at ``send()``."""
    head = (
        "import os, time, yamame.system.signals as s\ndef send(): os.kill(os.getpid(), "
        f"{int(number)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + body], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_that_loads_ends_with_the_status_and_a_line(number):
    line = f"{number.name}: ended before the run started\n"
    assert script("s.exit_while_loading(); send(); time.sleep(9)", number) == (EXIT_STATUS, line)
    assert script("send(); time.sleep(9)", number)[0] != EXIT_STATUS


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_has_its_default_effect(number):
    body = "with s.handling(at_once=False):\n    send(); send(); time.sleep(9)"
    assert script(body, number) == (-number, "")


def test_what_comes_after_the_recipe_changes_its_status_no_more():
    body = "s.exit_while_loading()\nwith s.handling(at_once=True): pass\nsend(); print(1)"
    assert script(body, signal.SIGTERM) == (0, "")


def test_spawned_processes_do_not_hear_what_a_terminal_sends():
    with signals.blocked():
        show = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
        out = subprocess.run(
            [sys.executable, "-c", show], capture_output=True, text=True, check=True
        ).stdout
    assert all(name in out for name in NAMES)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(SIGNALS)


def test_the_end_of_a_process_can_be_copied_and_pickled():
    ended = Terminated()
    ended.signal = signals.SIGNALS[0]
    ended.reported = True
    for other in (copy.copy(ended), copy.deepcopy(ended), pickle.loads(pickle.dumps(ended))):
        assert (other.code, other.signal, other.reported) == (EXIT_STATUS, ended.signal, True)
    assert Terminated(3).code == 3
