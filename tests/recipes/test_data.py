"""Learning from data as people do it: alone, before the first environment step, and beside what is collected."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from yamame.replay import TrajectoryReplayBuffer

ROOT = Path(__file__).parents[2]
PLAYED = ["debug=tiny", "logger=none", "env=tmaze", "env.length=8", "encoder=gru", "encoder.hidden_size=16"]
TINY = [
    *PLAYED,
    "schedule.anneal_lr=false",
    "evaluation.num_episodes=4",
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
    "budget.env_steps=320",
]


def load_example():
    """The function that writes demonstrations."""
    spec = importlib.util.spec_from_file_location("demos", ROOT / "examples" / "tmaze_demonstrations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture(scope="module")
def folder(play, tmp_path_factory):
    """A folder with a run, and demonstrations in a file."""
    folder = tmp_path_factory.mktemp("data")
    settings = [*PLAYED, "schedule.learning_starts=0", "budget.updates=null", "budget.env_steps=640"]
    assert play("train", folder, *settings, "run.name=source")[0] == 0
    load_example()(str(folder / "demos.npz"), num_episodes=50, length=8)
    return folder


DATA = {
    "runs": ["data=runs", "data.path=runs/source"],
    "npz": ["data=npz", "data.path=demos.npz", "agent=bc"],
}


def summary(folder, name):
    return json.loads((folder / "runs" / name / "summary.json").read_text())


@pytest.mark.parametrize("kind", DATA)
def test_an_offline_run_extended_later_equals_one_that_was_never_stopped(
    play, folder, components, differing, kind
):
    def run(name, *settings):
        status, _, err = play("offline", folder, *TINY, *DATA[kind], f"run.name={kind}-{name}", *settings)
        assert status == 0, err

    run("whole", "budget.updates=30")
    run("parts", "budget.updates=13")
    whole, stopped = (components(folder / "runs" / f"{kind}-{name}") for name in ("whole", "parts"))
    assert differing(whole["agent"], stopped["agent"])
    run("parts", "budget.updates=30", "resume=true")
    parts = components(folder / "runs" / f"{kind}-parts")
    assert differing(whole, parts, skip=("/progress/curve",)) == []
    assert (summary(folder, f"{kind}-parts")["env_steps"], summary(folder, f"{kind}-parts")["updates"]) == (
        0,
        30,
    )


@pytest.mark.parametrize(("kind", "stops"), [("runs", (3, 7)), ("npz", (5,))])
def test_an_offline_to_online_run_extended_later_equals_one_that_was_never_stopped(
    play, folder, components, differing, kind, stops
):
    """It is stopped within the updates from data alone, after them, and between the two."""

    def run(name, *settings):
        name = f"online-{kind}-{name}"
        status, _, err = play("train", folder, *ONLINE, *DATA[kind], f"run.name={name}", *settings)
        assert status == 0, err
        return components(folder / "runs" / name)

    whole = run("whole")
    for stop in stops:
        stopped = run(f"parts-{stop}", f"budget.updates={stop}")
        assert stopped["progress"]["updates"] == stop < whole["progress"]["updates"] == 5 + 4 * 3
        assert stopped["progress"]["env_steps"] == (0 if stop <= 5 else 128)
        parts = run(f"parts-{stop}", "resume=true")
        skip = ("/progress/curve", "/replay/replay/_storage/owner", "/replay/replay/_storage/parts")
        assert differing(whole, parts, skip=skip) == []
    assert whole["progress"]["curve"][0]["env_steps"] == 0  # what data alone have made is evaluated
    if kind == "runs":
        other = run("less", "data.final_weight=0.9")
        assert differing(whole["agent"], other["agent"])


def test_data_that_changed_meanwhile_are_refused_on_resume(play, folder):
    (folder / "changing.npz").write_bytes((folder / "demos.npz").read_bytes())
    settings = [*TINY, "agent=bc", "data=npz", "data.path=changing.npz", "run.name=changing"]
    assert play("offline", folder, *settings, "budget.updates=2")[0] == 0
    load_example()(str(folder / "changing.npz"), num_episodes=49, length=8)
    status, _, err = play("offline", folder, *settings, "budget.updates=4", "resume=true")
    assert status == 2
    assert re.search(r"data must be what it was, .*'trajectories': 50.* got .*'trajectories': 49", err), err


@pytest.mark.parametrize(
    ("recipe", "arguments", "message"),
    [
        ("offline", [], r"data.source.path: must be a text or a list, got null"),
        ("offline", ["data=none"], r"data: must be given, got none; set data=runs"),
        ("offline", ["data.path=nowhere"], r"data.source: data: path must name something .* got 'nowhere'"),
        ("offline", ["data.path=demos.npz"], r"data.source: data: path must be a folder, got 'demos.npz'"),
        (
            "offline",
            ["data=npz", "data.path=demos.npz", "env.length=7"],
            r"demos.npz: steps of an episode must be at most 8, as the environment's, got 9",
        ),
        (
            "train",
            ["schedule.offline_updates=3"],
            r"schedule.offline_updates: needs data, got 3 with data=none",
        ),
        ("train", [*DATA["npz"], "data.weight=1.5"], r"data.weight: must be a share in \[0, 1\], got 1.5"),
        ("train", [*DATA["npz"], "data.anneal=0"], r"data.anneal: must be an integer of at least 1, got 0"),
        ("train", [*DATA["npz"], "data.anneal_by=days"], r"data.anneal_by: must be one of"),
        ("train", ["data=npx"], r"data=npx.*npz"),
    ],
)
def test_a_mistake_ends_with_one_line_and_nothing_written(play, folder, recipe, arguments, message):
    before = sorted(folder.rglob("*"))
    status, _, err = play(recipe, folder, *TINY, "budget.updates=2", "run.name=mistake", *arguments)
    assert status == 2, err
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert sorted(folder.rglob("*")) == before


def test_a_preset_of_another_recipe_serves_offline_learning(play, folder):
    settings = ["experiment=cpu_tmaze_gru", *PLAYED[:2], "env.length=8", "agent=bc", *DATA["npz"]]
    status, _, err = play("offline", folder, *settings, "evaluation.num_episodes=4", "run.name=preset")
    assert status == 0, err
    assert summary(folder, "preset")["updates"] == 2


def test_trajectories_of_others_in_the_folder_of_a_new_run_are_never_deleted(play, tmp_path):
    held = tmp_path / "runs/mine/replay"
    mask = torch.ones(1, 3, 1, dtype=torch.bool)
    buffer = TrajectoryReplayBuffer(held, capacity=100, batch_size=1)
    buffer.extend(TensorDict({"observation": torch.zeros(1, 3, 2), "mask": mask}, [1, 3]))
    buffer.close()
    (tmp_path / "runs/mine/.lock").touch()
    before = {path: path.read_bytes() for path in held.iterdir()}
    status, _, err = play("train", tmp_path, *PLAYED, "run.name=mine", "resume=auto")
    assert status == 2
    assert re.search(r"run.name: .*replay must be new, .* learn from them with data=runs data.path=", err), (
        err
    )
    assert {path: path.read_bytes() for path in held.iterdir()} == before


def test_the_page_runs_as_it_stands(play, tmp_path, monkeypatch):
    blocks = re.findall(r"```(sh|python)\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL)
    small = ["logger=none", "debug=tiny", "encoder.hidden_size=16", "schedule.learning_starts=0"]
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
            few = [s for s in small if recipe == "train" or "learning_starts" not in s]
            offline = [a for a in arguments if a.startswith("schedule.offline_updates")]
            fewer = ["schedule.offline_updates=2", "budget.updates=3"] if offline else []
            status, _, err = play(recipe, tmp_path, *few, *arguments, *fewer)
            assert status == 0, (line, err)
            played.append(recipe)
    assert (played.count("train"), played.count("offline")) == (3, 4)
    assert names["batch"].shape == (16, 34)


def test_demonstrations_are_cloned(play, folder):
    """By an agent that remembers, to success; the sign is seen at the first step alone."""
    settings = [*PLAYED[1:], *DATA["npz"], "schedule.warmup_updates=10", "evaluation.interval=1000"]
    status, _, err = play("offline", folder, *settings, "budget.updates=200", "run.name=cloned")
    assert status == 0, err
    assert summary(folder, "cloned")["success"] == 1.0
