"""Files of agents of AMAGO: runs, states and weights are read; damaged and hostile ones are not."""

import os
import pickle
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from yamame.checks import UsageError
from yamame.deploy import DeployedAgent

sys.path.insert(0, str(Path(__file__).parent))
import amago_recordings as recordings

sys.path.pop(0)
ACTOR = "actor.base.out_layer.weight"


def state_folder(place, case="gru_bits"):
    """A state as accelerate leaves it, in the folder of a run, with pickles that are never read."""
    folder = place / "run" / "ckpts" / "training_states" / "run_epoch_3"
    folder.mkdir(parents=True)
    shutil.copy(recordings.FOLDER / case / "model.safetensors", folder)
    shutil.copy(recordings.FOLDER / case / "config.txt", place / "run" / "ckpts")
    for name in ("random_states_0.pkl", "custom_checkpoint_0.pkl", "optimizer.bin"):
        (folder / name).write_bytes(pickle.dumps(Evil(place / "hacked")))
    return folder


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def policy_file(place, case="gru_bits", change=dict):
    """A file as AMAGO writes with torch.save."""
    folder = place / "run" / "ckpts" / "policy_weights"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(recordings.FOLDER / case / "config.txt", folder.parent)
    weights = load_file(recordings.FOLDER / case / "model.safetensors")
    torch.save(change(weights), folder / "policy_epoch_3.pt")
    return folder / "policy_epoch_3.pt"


def prefixed(weights):
    return {f"module.{name}": value for name, value in weights.items()}


def halved(weights):
    return {name: value.to(torch.bfloat16) for name, value in weights.items()}


def test_all_files_of_a_run_give_the_same_agent(tmp_path):
    expected = recordings.imported("gru_bits").weights
    sources = [
        state_folder(tmp_path / "a"),
        policy_file(tmp_path / "b"),
        policy_file(tmp_path / "c", change=prefixed),
    ]
    for source in sources:
        found = recordings.imported("gru_bits", source).weights
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    rounded = recordings.imported("gru_bits", policy_file(tmp_path / "d", change=halved)).weights
    assert rounded["actor.mlp.0.weight"].dtype == torch.float32
    assert not list(tmp_path.rglob("hacked"))


def test_without_a_file_the_defaults_and_what_is_typed_count(tmp_path, capsys):
    source = tmp_path / "policy.pt"
    weights = load_file(recordings.FOLDER / "gru_bits" / "model.safetensors")
    torch.save(weights, source)
    with pytest.raises(UsageError, match=r"amago\.gin\.Multigammas\.continuous: .*2 numbers"):
        recordings.imported("gru_bits", source)
    typed = {"Multigammas": {"continuous": [0.9, 0.99]}}
    found = recordings.imported("gru_bits", source, typed=typed)
    assert "amago.config" in capsys.readouterr().err
    expected = recordings.imported("gru_bits")
    assert found.config["agent"]["gammas"] == expected.config["agent"]["gammas"]
    assert all(torch.equal(found.weights[name], value) for name, value in expected.weights.items())


def without(name):
    return lambda weights: {k: v for k, v in weights.items() if not k.startswith(name)}


def with_tensor(name, value):
    return lambda weights: {**weights, name: value}


def with_object(weights):
    return {**weights, "actor.extra": Evil("hacked")}


WEIGHTS = [
    (without("popart"), "popart.mu"),
    (without("traj_encoder"), "IdentityTrajEncoder"),
    (without("tstep_encoder.out_norm"), "out_norm"),
    (with_tensor("actor.extra", torch.ones(2)), "actor.extra"),
    (with_tensor(ACTOR, torch.ones(2, 2)), ACTOR),
    (with_tensor(ACTOR, torch.full((9, 16), torch.nan)), ACTOR),
    (with_tensor(ACTOR, torch.ones(9, 16, dtype=torch.int64)), ACTOR),
    (with_tensor(ACTOR, torch.ones(1, 1).expand(2**24, 2**14)), "policy_epoch_3.pt"),
    (with_tensor("popart.mu", torch.ones(0, 1)), "popart.mu"),
    (with_tensor("tstep_encoder.cnn.conv1.weight", torch.ones(1)), "CNNTstepEncoder"),
    (with_tensor("traj_encoder.mambas.0.x", torch.ones(1)), "MambaTrajEncoder"),
    (with_tensor("critics.net.output_layer.weight", torch.ones(2, 16, 5)), "output_layer"),
    (with_tensor("\x1b[2J", torch.ones(1)), "belongs to no part"),
    (with_tensor("tstep_encoder.in_norm._t", torch.tensor([1e30])), "in_norm._t"),
    (with_tensor("tstep_encoder.in_norm._t", torch.tensor([0.5])), "in_norm._t"),
    (with_tensor("popart._t", torch.full((3, 1), -5.0)), "popart._t"),
    (with_tensor("popart._t", torch.tensor([[13.0], [13.0], [1e30]])), "popart._t"),
    (with_tensor("popart.nu", torch.full((3, 1), -1.0)), "popart.nu"),
    (with_tensor("popart.w", torch.zeros(3, 1)), "popart.w"),
    (with_tensor("module.popart.mu", torch.ones(3, 1)), "popart.mu once"),
    (with_object, "objects of Python"),
    (lambda weights: [weights], "policy_epoch_3.pt"),
    (lambda weights: {3: torch.ones(1)}, "policy_epoch_3.pt"),
    (lambda weights: {}, "tstep_encoder"),
]


@pytest.mark.parametrize(("change", "part"), WEIGHTS)
def test_strange_weights_are_refused_in_one_line(tmp_path, monkeypatch, change, part):
    monkeypatch.chdir(tmp_path)
    source = policy_file(tmp_path, change=change)
    before = sorted(tmp_path.rglob("*"))
    recordings.refused("gru_bits", part, source=source)
    assert sorted(tmp_path.rglob("*")) == before


def test_two_hot_critics_are_refused(tmp_path):
    def change(weights):
        last = weights["critics.net.output_layer.weight"]
        bias = weights["critics.net.output_layer.bias"]
        wider = {
            "critics.net.output_layer.weight": last.repeat(1, 1, 9),
            "critics.net.output_layer.bias": bias.repeat(1, 1, 1, 9),
        }
        return {**weights, **wider}

    recordings.refused("gru_bits", "NCriticsTwoHot", source=policy_file(tmp_path, change=change))


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def as_text(file):
    file.write_text("no weights")


def as_pickle(file):
    file.write_bytes(pickle.dumps(Evil(file.parent / "hacked")))


def as_link(file):
    target = file.parent.parent / "elsewhere.pt"
    file.rename(target)
    file.symlink_to(target)


def as_pipe(file):
    file.unlink()
    os.mkfifo(file)


def as_nothing(file):
    file.unlink()


def as_empty_folder(file):
    file.unlink()
    file.mkdir()


DAMAGES = (cut, as_text, as_pickle, as_link, as_pipe, as_nothing, as_empty_folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_hostile_files_are_refused_in_one_line(tmp_path, damage):
    source = policy_file(tmp_path)
    damage(source)
    before = sorted(tmp_path.rglob("*"))
    recordings.refused("gru_bits", source.name, source=source)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("damage", [cut, as_text, as_pipe, as_link])
def test_damaged_states_are_refused_in_one_line(tmp_path, damage):
    folder = state_folder(tmp_path)
    damage(folder / "model.safetensors")
    recordings.refused("gru_bits", "model.safetensors", source=folder)


def test_any_damage_of_a_file_is_told_in_one_line(tmp_path):
    """Bytes are changed all over a file; it is imported as it is, or refused."""
    whole = policy_file(tmp_path).read_bytes()
    generator = torch.Generator().manual_seed(0)
    for trial in range(30):
        content = bytearray(whole)
        places = torch.randint(len(content), (20,), generator=generator).tolist()
        for place in places:
            content[place] ^= 1 << (trial % 8)
        source = tmp_path / "run" / "ckpts" / "policy_weights" / f"{trial}.pt"
        source.write_bytes(bytes(content))
        with suppress(UsageError):
            assert recordings.imported("gru_bits", source).weights
            continue
        with pytest.raises(UsageError, match=re.escape(source.name)):
            recordings.imported("gru_bits", source)


def test_a_saved_folder_of_safetensors_without_metadata_is_read(tmp_path):
    weights = load_file(recordings.FOLDER / "gru_bits" / "model.safetensors")
    save_file(weights, tmp_path / "other.safetensors")
    shutil.copy(recordings.FOLDER / "gru_bits" / "config.txt", tmp_path)
    found = recordings.imported("gru_bits", tmp_path / "other.safetensors")
    assert DeployedAgent(found).gammas[-1] == 0.999
