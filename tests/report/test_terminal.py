"""Tables and pictures of text."""

import io
import sys

import numpy as np
import pytest
from yamame.cli.arguments import ease
from yamame.cli.sections import Config, VerbatimText
from yamame.report.terminal import half_blocks, print_columns
from yamame.system.messages import print_stdout


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("force", ["0", "1"])
def test_a_table_has_a_column_per_name_and_no_control_characters_in_a_log(monkeypatch, force):
    monkeypatch.setenv("TTY_COMPATIBLE", force)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_columns("runs", [{"run": "a"}])
    assert "\x1b" in terminal.getvalue()
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    print_columns("runs", [{"run": "a[b]", "score": 0.123456}, {"run": "c", "steps": 7}])
    lines = stream.getvalue().splitlines()
    assert lines[0].strip() == "runs"
    assert [word.strip() for word in lines[2].strip("|").split("|")] == ["run", "score", "steps"]
    assert [word.strip() for word in lines[4].strip("|").split("|")] == ["a[b]", "0.1235", "-"]
    assert [word.strip() for word in lines[5].strip("|").split("|")] == ["c", "-", "7"]
    assert "\x1b" not in stream.getvalue()


def test_names_and_values_of_strangers_are_text_and_no_orders_to_the_terminal(monkeypatch, capsys):
    hostile = "\x1b]0;x\x07\x1b[2J [bold]b[/bold] [link=http://evil]l[/link] \u202e"
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stdout", stream)
        print_columns(hostile, [{hostile: hostile, "plain": 1}])
        printed = stream.getvalue()
        assert "\x1b]" not in printed
        assert "\x1b[2J" not in printed
        assert not {"\x07", "\u202e"} & set(printed)
    monkeypatch.undo()
    print_stdout(hostile, "second")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]b[/bold]" in out
    assert out.count("\n") == 2


def test_a_sign_is_two_pixels_one_above_the_other():
    frame = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
    lines = half_blocks(frame, width=2).splitlines()
    assert len(lines) == 2
    assert [line.count("▀") for line in lines] == [2, 2]
    assert lines[0].startswith("\x1b[38;2;0;1;2;48;2;6;7;8m▀")
    assert lines[1].endswith("\x1b[38;2;15;16;17;48;2;21;22;23m▀\x1b[0m")


def test_a_large_picture_is_taken_at_every_nth_pixel():
    frame = np.kron(np.arange(8, dtype=np.uint8).reshape(4, 2, 1), np.ones((10, 10, 3), np.uint8))
    small = np.repeat(np.arange(8, dtype=np.uint8).reshape(4, 2, 1), 3, -1)
    assert half_blocks(frame, width=2) == half_blocks(small, width=2)
    assert half_blocks(frame, width=20) != half_blocks(small, width=2)


class Example(Config):
    open_keys = ("env",)

    run: VerbatimText | list[VerbatimText]
    text: VerbatimText
    other: str


def test_texts_are_quoted_and_keys_may_be_new_but_only_those_named():
    command = [
        "run=a=1",
        "text=it's 3,5",
        "env.x.y=2",
        "env=maze",
        "seed=0",
        "other=a=1",
        "run=null",
    ]
    eased = ease(command, Example)
    assert eased == [
        "run='a=1'",
        "text='it\\'s 3,5'",
        "++env.x.y=2",
        "env=maze",
        "seed=0",
        "other=a=1",
        "run=null",
    ]
    assert ease(["run='a'", "run=[x=1, y]"], Example) == ["run='a'", "run=['x=1',y]"]
    assert ease(["-m", "run=a,b"], Example) == ["-m", "run=a,b"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: half_blocks(np.zeros((2, 2, 3))),
            r"frame must be uint8 \[H, W, 3\], got \('float64', 2, 2, 3\)",
        ),
        (
            lambda: half_blocks(np.zeros((2, 2, 3), np.uint8), width=0),
            "width must be at least 1, got 0",
        ),
    ],
)
def test_impossible_pictures_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_title_is_not_wrapped_at_the_width_of_a_narrow_table(capsys):
    title = "tmaze-encoder=gru-" + "n" * 50
    print_columns(title, [{"a": 1, "b": 2}])
    assert title in capsys.readouterr().out.splitlines()
