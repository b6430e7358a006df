"""SIGTERM becomes an exception inside the block only."""

import os
import signal
import threading

import pytest
from yamame.training.signals import Terminated, terminate_on_signal


def stop_myself():
    with terminate_on_signal():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()


def test_sigterm_raises_and_the_former_handler_returns():
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as raised:
        stop_myself()
    assert raised.value.code == 128 + signal.SIGTERM
    assert not isinstance(raised.value, Exception)
    assert signal.getsignal(signal.SIGTERM) is former


def test_another_thread_is_left_alone():
    outcome = []

    def work():
        with terminate_on_signal():
            outcome.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == [signal.getsignal(signal.SIGTERM)]
