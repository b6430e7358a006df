"""Agents load from files, runs, ids, folders and names; damaged and foreign content is refused."""

import json
import os
import re
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
import yamame
from safetensors.torch import load_file, save_file
from yamame.checks import UsageError
from yamame.deploy import DeployedAgent, folder
from yamame.deploy.card import model_card
from yamame.files.checkpoint import Checkpointer
from yamame.runs.trained import load_trained


@pytest.fixture(scope="module")
def run(maze, tmp_path_factory):
    """Return a run directory with a best checkpoint, of step 10, and a last one, of step 20."""
    directory = tmp_path_factory.mktemp("runs") / "mine"
    checkpoints = Checkpointer(directory / "checkpoints", config=maze.saved.config)
    curve = [
        {"env_steps": step, "success_mean": step / 40, "return_mean": float("nan")}
        for step in (10, 20)
    ]
    beside = {
        "interface": maze.saved.interface.encode(),
        "progress": {"unit": "env_steps", "curve": curve},
    }
    for step, metric, factor in ((10, 0.9, 1.0), (20, 0.1, -1.0)):
        weights = {name: value * factor for name, value in maze.saved.weights.items()}
        checkpoints.save({"agent": weights, **beside}, step=step, metric=metric)
    return directory


def actions(agent, observations) -> list[int]:
    agent.reset()
    seen = [observations(agent, seed=t) for t in range(12)]
    given = [{}, *({"reward": 0.5} for _ in seen[1:])]
    return [int(agent.act(entries, **more)) for entries, more in zip(seen, given, strict=True)]


def test_a_run_a_file_and_an_id_give_the_same_agent(
    run, maze, observations, start, tracking_uri, tmp_path, settle
):
    expected = actions(DeployedAgent(maze.saved, greedy=True), observations)
    files = {step: run / f"checkpoints/step-{step:012d}.pt" for step in (10, 20)}
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    with start(tmp_path) as tracker:
        for file in (tmp_path / "checkpoints").glob("*.pt"):
            tracker.log_artifact(file, folder="checkpoints")
    run_id = tracker.run.run_id
    for source in (run, str(run), files[10], run_id):
        agent = yamame.load(source, greedy=True, tracking_uri=tracking_uri)
        assert actions(agent, observations) == expected
        assert agent.saved.about["step"] == 10
        assert agent.saved.about["results"]["success_mean"] == 0.25
    for source, which in ((run, "last"), (files[20], "best"), (run_id, "last")):
        agent = yamame.load(source, greedy=True, checkpoint=which, tracking_uri=tracking_uri)
        assert actions(agent, observations) != expected


def test_a_folder_gives_the_same_actions_and_has_a_card(run, observations, tmp_path):
    agent = yamame.load(run, greedy=True, seed=3)
    written = agent.save_pretrained(tmp_path / "deep" / "mine")
    assert sorted(os.listdir(written)) == ["README.md", "config.json", "model.safetensors"]
    assert os.listdir(tmp_path / "deep") == ["mine"]
    assert actions(yamame.load(written, greedy=True), observations) == actions(agent, observations)
    sampled = [yamame.load(source, greedy=False, seed=3) for source in (run, written)]
    assert actions(sampled[0], observations) == actions(sampled[1], observations)
    again = yamame.load(written).save_pretrained(tmp_path / "again" / "mine")
    for name in os.listdir(written):
        assert (again / name).read_bytes() == (written / name).read_bytes()
    card = (written / "README.md").read_text()
    for part in (
        "MazeRunner(size=7, ",
        "| success_mean | 0.25 |",
        "| goal | float32 (2, 2) |",
        'yamame.load("mine")',
    ):
        assert part in card
    config = json.loads((written / "config.json").read_text())
    assert not {"run", "logger", "trust", "hydra"} & config["config"].keys()


def test_a_folder_is_replaced_and_other_peoples_files_are_not(run, observations, tmp_path):
    agent, other = yamame.load(run), yamame.load(run, checkpoint="last")
    mine = other.save_pretrained(tmp_path / "mine")
    (mine / "notes.txt").write_text("mine")
    agent.save_pretrained(mine)
    assert actions(yamame.load(mine, greedy=True), observations) == actions(
        yamame.load(run, greedy=True), observations
    )
    assert (mine / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    agent.save_pretrained(tmp_path / "empty")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "file").write_text("a file")
    for name in ("theirs", "file"):
        with pytest.raises(
            UsageError, match=rf"{name} must be new, empty, or written by save_pretrained"
        ):
            agent.save_pretrained(tmp_path / name)
    assert os.listdir(tmp_path / "theirs") == ["config.json"]


def test_a_folder_whose_writing_was_cut_off_is_refused_or_not_there(run, tmp_path, monkeypatch):
    agent, other = yamame.load(run), yamame.load(run, checkpoint="last")
    mine = other.save_pretrained(tmp_path / "mine")

    def cut(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(folder, "write_json", cut)
    for place in ("mine", "new"):
        with pytest.raises(OSError, match="No space left"):
            agent.save_pretrained(tmp_path / place)
    assert sorted(os.listdir(tmp_path)) == ["mine"]
    with pytest.raises(UsageError, match=r"checksum.*; write the folder again"):
        yamame.load(mine)


def test_agents_of_the_zoo_have_names(run, observations, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "ZOOS", (tmp_path / "wheel", tmp_path / "checkout"))
    with pytest.raises(UsageError, match=r"the zoo is empty, got 'zoo:maze'"):
        yamame.load("zoo:maze")
    yamame.load(run).save_pretrained(tmp_path / "checkout" / "maze")
    assert actions(yamame.load("zoo:maze", greedy=True), observations)
    for name in ("", "mase", "../checkout/maze", ".."):
        with pytest.raises(UsageError, match=rf"one of zoo:maze, got 'zoo:{re.escape(name)}'"):
            yamame.load(f"zoo:{name}")


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in folder.ZOOS[1].glob("*/config.json"))
)
def test_agents_of_the_zoo_act(name, observations):
    agent = yamame.load(f"zoo:{name}", greedy=True)
    for t, more in enumerate([{}, {"reward": 0.5}, {"reward": 1.0, "done": True}]):
        action = agent.act(observations(agent, seed=t), **more)
        agent.action_spec.assert_is_in(torch.as_tensor(action))
    assert agent.saved.about["step"] > 0
    assert agent.saved.about["results"]


def test_the_zoo_stays_small():
    files = [file for file in folder.ZOOS[1].rglob("*") if file.is_file()]
    assert {file.name for file in files} == {"README.md", "config.json", "model.safetensors"}
    assert sum(file.stat().st_size for file in files) <= 5_000_000


def test_a_small_folder_has_what_acting_needs(maze, observations, tmp_path):
    whole, small = DeployedAgent(maze.saved, greedy=True), tmp_path / "small"
    whole.save_pretrained(small, small=True)
    whole.save_pretrained(tmp_path / "whole")
    kept, every = (load_file(tmp_path / name / "model.safetensors") for name in ("small", "whole"))
    assert {name.partition(".")[0] for name in every.keys() - kept.keys()} == {"critic", "returns"}
    for name, value in kept.items():
        is_matrix = value.ndim > 1
        assert value.dtype == (torch.float16 if is_matrix else every[name].dtype)
    sizes = [sum(value.nbytes for value in weights.values()) for weights in (kept, every)]
    assert sizes[0] < 0.5 * sizes[1]
    again = yamame.load(small, greedy=True)
    weights = zip(whole.step.parameters(), again.step.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-3, rtol=1e-3) for a, b in weights)
    assert actions(again, observations)
    trained = load_trained(small)
    with closing(trained.build_env(num_envs=2, seed=0)) as env:
        policy = trained.build_agent(env).policy()
    assert torch.equal(next(policy.parameters()), next(again.step.policy.parameters()))
    assert trained.folder is None


def test_a_checkpoint_of_an_earlier_version_names_the_remedy(maze, tmp_path):
    Checkpointer(tmp_path / "checkpoints", config=maze.saved.config).save(
        {"agent": {}}, step=1, metric=0.0
    )
    with pytest.raises(
        UsageError, match=r"write a folder with: .*export(\.py)? run=.* path=<folder>"
    ):
        yamame.load(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("runs/none", r"runs/none must be a run directory or a checkpoint, it does not exist"),
        ("none.pt", r"none.pt must be a run directory or a checkpoint"),
        (".", r"no best checkpoint in \."),
    ],
)
def test_a_missing_source_is_one_line(source, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        yamame.load(source)
    assert "\n" not in str(caught.value)


def edited(mine, change) -> None:
    config = json.loads((mine / "config.json").read_text())
    change(config)
    config = folder.sealed(config)  # as a stranger may do
    (mine / "config.json").write_text(json.dumps(config))


DAMAGES = {
    "no json": (
        lambda mine: (mine / "config.json").write_text("{"),
        r"config.json must be a file of JSON",
    ),
    "no weights": (
        lambda mine: (mine / "model.safetensors").unlink(),
        r"must hold weights, it cannot be read",
    ),
    "a later format": (
        lambda m: edited(m, lambda c: c.update(yamame_format=3)),
        r"it has yamame_format 3",
    ),
    "no specs": (
        lambda m: edited(m, lambda c: c.pop("observation_spec")),
        r"must hold specs and a horizon",
    ),
    "a huge spec": (
        lambda m: edited(m, lambda c: c["action_spec"].update(shape=[10**12])),
        r"shape must have at most 268435456 numbers",
    ),
    "a wrong horizon": (
        lambda m: edited(m, lambda c: c.update(horizon=0.5)),
        r"horizon must be a positive integer",
    ),
    "no encoder": (lambda m: edited(m, lambda c: c["config"].pop("encoder")), r"it has no encoder"),
    "another width": (
        lambda m: edited(m, lambda c: c["config"]["encoder"].update(d_model=32)),
        r"the weights of .* must fit its configuration: .*size mismatch",
    ),
    "an unknown argument": (
        lambda m: edited(m, lambda c: c["config"]["encoder"].update(bogus=1)),
        r"encoder: .*unexpected keyword argument 'bogus'",
    ),
    "a stranger's class": (
        lambda m: edited(m, lambda c: c["config"]["encoder"].update(_target_="os.system")),
        r"encoder._target_: must be a class of Yamame that belongs there.*got 'os.system'",
    ),
    "a class in the wrong place": (
        lambda m: edited(
            m, lambda c: c["config"]["encoder"].update(_target_="yamame.heads.ActorHead")
        ),
        r"encoder._target_: must be a class of Yamame that belongs there",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_one_line(run, tmp_path, damage):
    mine = yamame.load(run).save_pretrained(tmp_path / "mine")
    harm, message = DAMAGES[damage]
    harm(mine)
    with pytest.raises(UsageError, match=message) as caught:
        yamame.load(mine)
    assert "\n" not in str(caught.value)
    assert str(mine) in str(caught.value)


def test_a_flipped_bit_of_a_folders_configuration_is_refused_or_changes_nothing(run, tmp_path):
    mine = yamame.load(run).save_pretrained(tmp_path / "mine")
    expected, whole = folder.read_folder(mine), (mine / "config.json").read_bytes()
    harmless, step = 0, 1 if os.environ.get("YAMAME_EVERY_BIT") else 97
    for bit in range(0, 8 * len(whole), step):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (mine / "config.json").write_bytes(damaged)
        try:
            found = folder.read_folder(mine)
        except UsageError:
            continue
        harmless += 1
        assert (found.config, found.about, found.interface.encode()) == (
            expected.config,
            expected.about,
            expected.interface.encode(),
        )
    assert harmless < 8 * len(whole) // step // 10


def test_a_folder_of_the_earlier_format_loads_without_checksum(run, tmp_path):
    mine = yamame.load(run).save_pretrained(tmp_path / "mine")
    config = json.loads((mine / "config.json").read_text())
    del config["config_sha256"]
    (mine / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"config\.json does not match its checksum"):
        yamame.load(mine)
    (mine / "config.json").write_text(json.dumps({**config, "yamame_format": 1}))
    assert yamame.load(mine).saved.config == config["config"]


def test_weights_that_are_not_finite_are_refused(run, tmp_path):
    import hashlib

    mine = yamame.load(run).save_pretrained(tmp_path / "mine")
    weights = load_file(mine / "model.safetensors")
    name = next(name for name, value in weights.items() if value.is_floating_point())
    weights[name] = torch.full_like(weights[name], torch.nan)
    save_file(weights, mine / "model.safetensors")
    content = (mine / "model.safetensors").read_bytes()
    edited(mine, lambda config: config.update(weights_sha256=hashlib.sha256(content).hexdigest()))
    with pytest.raises(UsageError, match=rf"must be finite, {re.escape(name)} is not"):
        yamame.load(mine)


def test_classes_of_a_custom_package_need_trust(run, tmp_path, own_module, observations):
    own_module(
        "mylab",
        "from yamame.trajectory import TransformerEncoder\nclass Own(TransformerEncoder): pass\n",
    )
    mine = yamame.load(run).save_pretrained(tmp_path / "mine")
    edited(mine, lambda config: config["config"]["encoder"].update(_target_="mylab.Own"))
    with pytest.raises(
        UsageError, match=r"got 'mylab.Own'; a custom package must be in trust=\[...\]"
    ):
        yamame.load(mine)
    agent = yamame.load(mine, trust="mylab", greedy=True)
    assert type(agent.step.policy.trajectory_encoder).__name__ == "Own"
    with pytest.raises(UsageError, match=r"trust: must be a list of packages, as \[mylab.\]"):
        yamame.load(run, trust="my lab")
    agent = yamame.load(mine, trust=["mylab."], greedy=True)
    assert np.isin(actions(agent, observations), range(5)).all()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            "zoo:cpu_tmaze_gru",
            {"context_length": 5},
            "context_length: must be left out, for GRUEncoder has a memory of",
        ),
        (
            "zoo:cpu_tmaze",
            {"context_length": 0},
            "context_length: must be a whole number of at least 1, got 0",
        ),
        (
            "zoo:cpu_tmaze",
            {"context_length": "five"},
            "context_length: must be a whole number .*, got 'five'",
        ),
        ("zoo:cpu_tmaze", {"device": "cpuu"}, "device: must be available, got 'cpuu'; "),
        ("zoo:cpu_tmaze", {"checkpoint": "lastt"}, "checkpoint must be best or last, got 'lastt'"),
        (3, {}, "source must be a path, zoo:NAME or the id of an MLflow run, got 3"),
        (None, {}, "source must be .*, got None"),
    ],
)
def test_options_that_do_not_fit_are_one_line(source, options, message):
    with pytest.raises(UsageError, match=rf"^load: (zoo:\w+: )?{message}") as caught:
        yamame.load(source, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_missing_gpu_is_one_line():
    with pytest.raises(
        UsageError, match=r"^load: zoo:cpu_tmaze: device: must be available, got 'cuda'; \S.*$"
    ):
        yamame.load("zoo:cpu_tmaze", device="cuda")


def test_the_context_length_can_be_chosen():
    assert yamame.load("zoo:cpu_tmaze", context_length=5).context_length == 5


def test_cards_of_the_zoo_are_up_to_date_and_name_the_evaluated_tasks():
    cards = sorted((Path(__file__).parents[2] / "zoo").glob("*/README.md"))
    assert len(cards) >= 7
    for path in cards:
        name = path.parent.name
        card, saved = path.read_text(), yamame.load(f"zoo:{name}").saved
        assert f"Evaluated on {saved.about['evaluated_on']}." in card, name
        assert card == model_card(saved, f"zoo:{name}")


def test_a_card_has_the_cost_if_the_summary_of_the_run_has(run, tmp_path):
    told = ("| CPU-seconds of its run | 12.5 |", "Evaluated on new mazes.")
    for name, summary, knows in (
        ("whole", {"git_revision": "1a2b3c", "cpu_s": 12.5, "evaluated_on": "new mazes"}, True),
        ("old", {}, False),
        ("damaged", None, False),
    ):
        path = shutil.copytree(run, tmp_path / name)
        (path / "summary.json").write_text("{" if summary is None else json.dumps(summary))
        for source in (path, yamame.load(path).save_pretrained(tmp_path / f"{name}-folder")):
            card = (
                yamame.load(source).save_pretrained(tmp_path / f"{name}-again") / "README.md"
            ).read_text()
            assert [line in card for line in told] == [knows] * 2
