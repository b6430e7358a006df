"""Progress: plain lines in a log, a bar in a terminal."""

import io

from yamame.runs.progress_bar import ProgressBar
from yamame.training.budget import Budget


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def has_control_characters(text):
    return any(ord(character) < 32 and character != "\n" for character in text)


def test_a_log_gets_one_plain_line_per_interval_with_the_speed_of_that_interval():
    clock, stream = Clock(), io.StringIO()
    with ProgressBar(Budget(updates=100), interval_s=10, stream=stream, clock=clock) as progress:
        progress.update(env_steps=5000, updates=10)
        for second in range(1, 21):
            clock.now = float(second)
            progress.update(env_steps=5000 + 100 * second, updates=10 + second, outcome=0.25, loss=1.5)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    for part in (
        "20%",
        "6,000 steps",
        "20 updates",
        "success 0.250",
        "loss 1.5",
        "100 steps/s",
        "1.0 updates/s",
    ):
        assert part in lines[0]
    assert "1:20 left" in lines[0]
    assert not has_control_characters(stream.getvalue())


def test_unknown_and_non_finite_numbers_are_shown_as_a_dash():
    clock, stream = Clock(), io.StringIO()
    progress = ProgressBar(Budget(updates=100), interval_s=1, stream=stream, clock=clock)
    progress.update(env_steps=0, updates=0)
    clock.now = 1.0
    progress.update(env_steps=1, updates=0, loss=float("nan"))
    assert "success -  loss -" in stream.getvalue()
    assert "? left" in stream.getvalue()


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    with ProgressBar(Budget(updates=4), stream=stream) as progress:
        progress.update(env_steps=7, updates=1, outcome=0.5, outcome_is="return")
    assert "7 steps" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()
