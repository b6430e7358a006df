"""The recipe that shows one episode, on a run that the training recipe has just made."""

import importlib.util
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image
from yamame.cli.app import main

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = [
    "debug=tiny",
    "logger=none",
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "evaluation.video_frames=1",
]
RUNS = {
    "maze": [*TINY, "env.size=7", "env.split_by=walls_and_goals", "env.time_limit=25"],
    "memory": [*TINY, "env=tmaze", "env.length=4"],
    "numbers": [*TINY, "env=gym", "env.id=PlayedNumbers-v0", "env.time_limit=6"],
}


class Numbers(gymnasium.Env):
    """Shows the last action, whose numbers start at 11 and 23."""

    observation_space = gymnasium.spaces.MultiDiscrete([3, 4], start=[11, 23])
    action_space = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Discrete(3, start=11), gymnasium.spaces.Discrete(4, start=23)]
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([11, 23]), {}

    def step(self, action):
        return np.array(action), 0.0, False, False, {}


gymnasium.register("PlayedNumbers-v0", entry_point=Numbers)


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"{name}_recipe", RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(monkeypatch, function, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["recipe", *arguments])
    try:
        function()
    except SystemExit as exit_:
        return exit_.code
    return 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with trained runs."""
    folder, recipe = tmp_path_factory.mktemp("trained"), load("train")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, arguments in RUNS.items():
            assert (
                call(
                    patch,
                    lambda: main(recipe.train, config_name="train"),
                    *arguments,
                    f"run.name={name}",
                )
                == 0
            )
    return folder


@pytest.fixture
def run(trained, monkeypatch, tmp_path, capsys):
    """Runs the recipe beside the trained runs: exit status, lines of output, error output."""
    monkeypatch.chdir(trained)
    recipe = load("play")

    def call_recipe(*arguments: str):
        capsys.readouterr()
        status = call(
            monkeypatch,
            lambda: main(recipe.play, config_name="play"),
            f"output={tmp_path / 'out'}",
            *arguments,
        )
        text = capsys.readouterr()
        return status, text.out.splitlines(), text.err

    return call_recipe


def num_frames(path: Path) -> int:
    with Image.open(path) as video:
        return video.n_frames


def test_numbers_are_those_of_the_environment(run):
    status, lines, _ = run("run=runs/numbers", "seed=3", "max_steps=6")
    assert status == 0
    assert "observation [11 23]" in lines[0]
    for line in lines[1:7]:
        found = re.search(r"action \((\d+), (\d+)\) .* observation \[(\d+) (\d+)\]", line)
        assert found, line
        assert found.groups()[:2] == found.groups()[2:]
        assert found[1] in ("11", "12", "13")


def test_every_step_has_a_line_and_the_video_is_the_last_line(run, tmp_path):
    status, lines, _ = run("run=runs/maze", "seed=3", "max_steps=9")
    assert status == 0
    assert lines[-1] == str(tmp_path / "out/episode.gif")
    assert lines[-2] == "return 0 in 9 steps"
    assert [int(line.split()[0]) for line in lines[:-2]] == list(range(10))
    assert all("goals reached 0 of 2" in line for line in lines[:-2])
    assert not any("\x1b" in line for line in lines)
    assert 1 <= num_frames(tmp_path / "out/episode.gif") <= 10  # equal frames in a row become one


def test_a_video_can_be_an_mp4(run, tmp_path, monkeypatch):
    pytest.importorskip("av")
    status, lines, _ = run("run=runs/maze", "seed=3", "max_steps=5", "video=mp4")
    assert status == 0
    assert lines[-1] == str(tmp_path / "out/episode.mp4")
    assert (tmp_path / "out/episode.mp4").read_bytes()[4:8] == b"ftyp"
    status, _, err = run("run=runs/maze", "video=avi")
    assert status == 2
    assert "video: must be one of 'gif', 'mp4', got 'avi'" in err
    monkeypatch.setitem(sys.modules, "av", None)
    status, _, err = run("run=runs/maze", "video=mp4")
    assert status == 2
    assert "pip install 'yamame[video]'" in err


def test_the_same_seed_plays_the_same_episode_and_another_one_another(run):
    first, again, other = (
        run("run=runs/maze", f"seed={seed}", "max_steps=6")[1][:-1] for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_an_instruction_is_done_in_its_order(run):
    """A cell beside the start is soon reached by an agent that walks at random, and counts only in
    its turn.
    """
    for seed in range(20):
        status, lines, _ = run(
            "run=runs/maze", "instruction=4,3 5,3", f"seed={seed}", "env.time_limit=300"
        )
        if status == 0 and lines[-2].startswith("return 2 "):
            break
    assert "goals reached 2 of 2  success" in lines[-3]
    counts = [int(re.search(r"goals reached (\d)", line).group(1)) for line in lines[:-2]]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_an_instruction_is_asked_for_in_a_terminal_only(run, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: "4,3")
    assert "goals reached 0 of 2" in run("run=runs/maze", "max_steps=1")[1][0]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "goals reached 0 of 1" in run("run=runs/maze", "max_steps=1")[1][0]


def test_the_end_of_the_input_is_an_empty_answer(run, monkeypatch):
    def end(prompt):
        raise EOFError

    drawn = run("run=runs/maze", "max_steps=2")[1]
    monkeypatch.setattr("builtins.input", end)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    status, lines, _ = run("run=runs/maze", "max_steps=2")
    assert status == 0
    assert lines == ["", *drawn]


def test_a_video_that_cannot_be_written_is_refused_before_anything_is_played(run, tmp_path):
    (tmp_path / "out").write_text("a file")
    status, lines, err = run("run=runs/maze", "max_steps=2")
    assert (status, lines) == (2, [])
    assert re.match(r"play: output: must be a directory, but .*/out is a file, got .*/out'\n$", err)


def test_where_there_is_no_picture_the_reason_is_told_and_no_video_written(
    run, tmp_path, monkeypatch
):
    def render(env):
        raise NotImplementedError("it has no picture")

    monkeypatch.setattr("yamame_envs.MazeRunner.render", render)
    status, lines, err = run("run=runs/maze", "seed=3", "max_steps=2")
    assert (status, lines[-1]) == (0, "return 0 in 2 steps")
    assert err == "no video of MazeRunner: it has no picture\n"
    assert not (tmp_path / "out").exists()


def test_an_environment_without_instructions_plays_the_task_of_the_seed(run):
    status, lines, _ = run("run=runs/memory", "env.length=6", "greedy=true", "gamma=0.9")
    assert status == 0
    assert any(re.match(r"return \S+ in \d+ steps", line) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run=runs/none"],
            r"runs/none must be a run directory or a checkpoint, it does not exist",
        ),
        (
            ["run=runs/maze", "instruction=3;5"],
            r"instruction must hold goals A,B with numbers in 0..6, got '3;5'",
        ),
        (
            ["run=runs/maze", "instruction=0,3"],
            r"instruction must name cells without a wall .*, got '0,3'",
        ),
        (
            ["run=runs/maze", "instruction=1,1 1,2 1,3"],
            r"instruction must hold 1..2 goals .*, got '1,1 1,2 1,3'",
        ),
        (
            ["run=runs/memory", "instruction=eat"],
            r"instruction: must be null.* PassiveTMaze .*got 'eat'",
        ),
        (["run=runs/maze", "fps=0"], r"fps: must be .* 50, got 0"),
        (["run=runs/maze", "fps=abc"], r"fps: must be a number.*, got 'abc'"),
        (["run=runs/maze", "greedy=no"], r"greedy: must be true or false, got 'no'"),
        (["run=runs/maze", "env.time_limit=abc"], r"env.time_limit: must be .*, got 'abc'"),
        (["run=runs/maze", "width=0"], r"width: must be .*, got 0"),
        (["run=runs/maze", "max_steps=0"], r"max_steps: must be .* at least 1 or null, got 0"),
    ],
)
def test_a_mistake_ends_with_one_line_and_nothing_written(run, tmp_path, arguments, message):
    status, lines, err = run(*arguments)
    assert status == 2
    assert lines == []
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert not (tmp_path / "out").exists()
