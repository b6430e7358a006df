"""Learning from data as people do it: alone, before the first environment step, and beside what is
collected.
"""

import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import yamame
from tensordict import TensorDict
from yamame.replay import TrajectoryReplayBuffer

ROOT = Path(__file__).parents[2]
PLAYED = [
    *(
        "debug=tiny",
        "logger=none",
        "env=tmaze",
        "env.length=8",
        "encoder=gru",
        "encoder.hidden_size=16",
    ),
    *("evaluation.num_episodes=2", "evaluation.video_frames=1"),
]
TINY = [
    *PLAYED,
    "schedule.anneal_lr=false",
    "exploration.anneal_steps=60000",
    "checkpoint.interval=1",
    "budget.updates=null",
]
ONLINE = [
    *TINY,
    "schedule.learning_starts=64",
    "schedule.offline_updates=5",
    "evaluation.interval=128",
    "checkpoint.interval=64",
    "data.weight=0.7",
    "data.final_weight=0.2",
    "data.anneal=256",
    "budget.env_steps=256",
]


def load_example():
    """The function that writes demonstrations."""
    spec = importlib.util.spec_from_file_location(
        "demos", ROOT / "examples" / "tmaze_demonstrations.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run, and demonstrations in a file."""
    folder = tmp_path_factory.mktemp("data")
    settings = [
        *PLAYED,
        "schedule.learning_starts=0",
        "budget.updates=null",
        "budget.env_steps=320",
    ]
    yamame.train(*settings, "run.name=source", f"run.root={folder}/runs")
    load_example()(str(folder / "demos.npz"), num_episodes=50, length=8)
    return folder


DATA = {
    "runs": ["data=runs", "data.path=runs/source"],
    "npz": ["data=npz", "data.path=demos.npz", "agent=bc"],
}


def test_an_offline_run_extended_later_equals_one_that_was_never_stopped(
    folder, monkeypatch, components, differing
):
    def run(name, *settings):
        return yamame.train(*TINY, *DATA["npz"], f"run.name={name}", *settings, recipe="offline")

    monkeypatch.chdir(folder)
    whole = components(run("whole", "budget.updates=12").path)
    stopped = components(run("parts", "budget.updates=5").path)
    assert differing(whole["agent"], stopped["agent"])
    parts = run("parts", "budget.updates=12", "resume=true")
    assert differing(whole, components(parts.path), skip=("/progress/curve",)) == []
    assert (parts.summary["env_steps"], parts.summary["updates"]) == (0, 12)


def test_an_offline_to_online_run_extended_later_equals_one_that_was_never_stopped(
    folder, monkeypatch, components, differing
):
    """It is stopped within the updates from data alone, after them, and between later ones."""

    def run(name, *settings):
        settings = [*ONLINE, *DATA["runs"], f"run.name=online-{name}", "resume=auto", *settings]
        return components(yamame.train(*settings).path)

    monkeypatch.chdir(folder)
    whole = run("whole")
    for stop in (3, 5, 7):
        stopped = run("parts", f"budget.updates={stop}")
        assert stopped["progress"]["updates"] == stop < whole["progress"]["updates"] == 5 + 9
        assert stopped["progress"]["env_steps"] == (0 if stop <= 5 else 128)
    skip = ("/progress/curve", "/replay/replay/_storage/owner", "/replay/replay/_storage/parts")
    assert differing(whole, run("parts"), skip=skip) == []
    assert whole["progress"]["curve"][0]["env_steps"] == 0  # what data alone have made is evaluated
    assert differing(whole["agent"], run("less", "data.final_weight=0.9")["agent"])


def test_data_that_changed_meanwhile_are_refused_on_resume(refusal, folder):
    shutil.copy(folder / "demos.npz", ".")
    settings = [*TINY, *DATA["npz"], "run.name=changing"]
    yamame.train(*settings, "budget.updates=2", recipe="offline")
    load_example()("demos.npz", num_episodes=49, length=8)
    told = refusal("offline", *settings, "budget.updates=4", "resume=true")
    assert re.search(r"data must be .*'trajectories': 50.* got .*'trajectories': 49", told), told


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        ("offline", [], r"data.source.path: must be a string or PathLike or a list, .*got null"),
        ("offline", ["data=none"], r"data: must be given, got null; set data=runs"),
        (
            "offline",
            ["data.path=nowhere"],
            r"data.source.path: must name an existing .* got 'nowhere'",
        ),
        (
            "offline",
            ["data.path=demos.npz"],
            r"data.source.path: must be a folder, got 'demos.npz'",
        ),
        (
            "offline",
            ["data=npz", "data.path=demos.npz", "env.length=7"],
            r"demos.npz\): steps of an episode must be at most 8, as the environment's, got 9",
        ),
        (
            "train",
            ["schedule.offline_updates=3"],
            r"schedule.offline_updates: must be 0 with data=none, got 3",
        ),
        (
            "train",
            [*DATA["npz"], "data.weight=1.5"],
            r"data.weight: must be a share in \[0, 1\], got 1.5",
        ),
        (
            "train",
            [*DATA["npz"], "data.anneal=0"],
            r"data.anneal: must be an integer of at least 1, got 0",
        ),
        ("train", [*DATA["npz"], "data.anneal_by=days"], r"data.anneal_by: must be one of"),
        ("train", ["data=npx"], r"data=npx.*npz"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(
    refusal, folder, recipe, arguments, message
):
    shutil.copy(folder / "demos.npz", ".")
    told = refusal(recipe, *TINY, "budget.updates=2", "run.name=mistake", *arguments)
    assert re.search(message, told), told


def test_a_preset_of_another_recipe_serves_offline_learning(play, folder):
    preset = ["experiment=cpu_tmaze", "encoder=gru"]
    settings = [*preset, *PLAYED[:2], "env.length=8", "agent=bc", *DATA["npz"]]
    status, _, err = play(
        "offline", folder, *settings, "evaluation.num_episodes=4", "run.name=preset"
    )
    assert status == 0, err
    assert json.loads((folder / "runs/preset/summary.json").read_text())["updates"] == 2


def test_trajectories_of_others_in_the_folder_of_a_new_run_are_never_deleted(refusal, tmp_path):
    held = tmp_path / "runs/mine/replay"
    mask = torch.ones(1, 3, 1, dtype=torch.bool)
    buffer = TrajectoryReplayBuffer(held, capacity=100, batch_size=1)
    buffer.extend(TensorDict({"observation": torch.zeros(1, 3, 2), "mask": mask}, [1, 3]))
    buffer.close()
    (tmp_path / "runs/mine/.lock").touch()
    before = {path: path.read_bytes() for path in held.iterdir()}
    told = refusal("train", *PLAYED, "run.name=mine", "resume=auto")
    assert re.search(r"replay must be new, .* learn from them with data=runs data.path=", told), (
        told
    )
    assert {path: path.read_bytes() for path in held.iterdir()} == before


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, play):
    pytest.importorskip("pyarrow")
    blocks = re.findall(
        r"```(sh|python)\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL
    )
    small = [text for text in PLAYED if not text.startswith(("env", "encoder="))]
    monkeypatch.chdir(tmp_path)
    names, played = {}, []
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, "data.md", "exec"), names)
            continue
        for line in text.splitlines():
            _, script, *arguments = shlex.split(line, comments=True)
            if script.startswith("examples/"):
                names |= {"demonstrate": load_example()}
                names["demonstrate"](arguments[0], *map(int, arguments[1:]))
                continue
            recipe = Path(script).stem
            if recipe == "export":
                assert play(recipe, tmp_path, *arguments)[0] == 0
                continue
            offline = [a for a in arguments if a.startswith("schedule.offline_updates")]
            fewer = ["schedule.offline_updates=2", "budget.updates=3"] if offline else []
            yamame.train(*small, *arguments, *fewer, recipe=recipe)
            played.append(recipe)
    assert (played.count("train"), played.count("offline")) == (3, 5)
    assert names["batch"].shape == (16, 34)


def test_demonstrations_are_cloned(folder, monkeypatch):
    """By an agent that remembers, to success; the sign is seen at the first step alone.

    The negative control: one without a memory.
    """
    monkeypatch.chdir(folder)
    settings = [
        *(each for each in PLAYED if not each.startswith("encoder")),
        *DATA["npz"],
        "schedule.warmup_updates=10",
        "optimizer.lr=3e-3",
        "budget.updates=200",
        "evaluation.interval=1000",
        "evaluation.num_episodes=16",
    ]

    def success(name, *encoder):
        run = yamame.train(*settings, *encoder, f"run.name={name}", recipe="offline")
        return run.summary["success"]

    assert success("cloned", "encoder=gru", "encoder.hidden_size=32") == 1.0
    assert success("forgetful", "encoder=memoryless", "encoder.d_model=16") < 1.0
