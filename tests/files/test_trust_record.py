"""Runs of this user need no trust later; what a stranger writes into a directory gets none."""

import json
import multiprocessing
import os
import shutil
import sys

import pytest
import yamame
from yamame.checks import UsageError
from yamame.files import trust_record
from yamame.files.trust_record import VARIABLE, record_file, record_run, recorded
from yamame.files.trusted import UntrustedError, prefixes_of
from yamame.files.untrusted import check_file, needs_of
from yamame.runs.trained import load_trained

ENV = {"_target_": "yamame_envs.Gym", "id": "pusher_lab:Pusher-v0", "settings": {"arms": 3}}
CONFIG = {"env": ENV, "seed": 1, "optimizer": {"lr": 1e-3}}
NOTHING = trust_record.Recorded()


@pytest.fixture
def record(tmp_path, monkeypatch):
    """The record's file, in a place of its own."""
    file = tmp_path / "state" / "trusted.jsonl"
    monkeypatch.setenv(VARIABLE, str(file))
    return file


@pytest.fixture
def run(tmp_path, own_module, record):
    own_module("pusher_lab", "raise AssertionError('imported')")
    directory = tmp_path / "runs" / "mine"
    (directory / "checkpoints").mkdir(parents=True)
    record_run(directory, CONFIG)
    return directory


def test_a_recorded_run_is_known_by_any_path_to_it_and_to_files_in_it(run, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(run)
    monkeypatch.chdir(tmp_path / "runs")
    for source in (run, tmp_path / "link", "mine", run / "checkpoints", "../runs/mine"):
        own = recorded(source, CONFIG)
        assert own.packages == ("pusher_lab.",)
        assert own.files
    check_file(CONFIG, prefixes_of(own.packages))
    assert "pusher_lab" not in sys.modules


def test_settings_outside_of_what_needs_trust_may_differ(run):
    assert recorded(run, {**CONFIG, "seed": 2}).packages == ("pusher_lab.",)


@pytest.mark.parametrize(
    "env",
    [
        {**ENV, "id": "pusher_lab:Other-v0"},
        {**ENV, "id": "pusher_lab.inner:Pusher-v0"},
        {**ENV, "settings": {"arms": 4}},
        {**ENV, "settings": {"xml_file": "/etc/passwd"}},
        {"_target_": "pusher_lab.make", "arms": 3},
    ],
)
def test_another_configuration_in_the_same_directory_is_not_trusted(run, env):
    assert recorded(run, {**CONFIG, "env": env}) == NOTHING


def test_further_names_are_not_trusted_beside_recorded_ones(run):
    assert recorded(run, {**CONFIG, "encoder": {"_target_": "pusher_lab.Encoder"}}) == NOTHING
    assert recorded(run, {**CONFIG, "encoder": {"_target_": "os.system"}}) == NOTHING


def test_a_copy_another_directory_and_another_owner_are_not_trusted(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "copy")
    assert recorded(tmp_path / "runs" / "copy", CONFIG) == NOTHING
    assert recorded(tmp_path / "runs", CONFIG) == NOTHING

    run.rename(tmp_path / "runs" / "moved")
    run.mkdir()  # what a stranger's archive would make there, as long as the former one exists
    assert recorded(run, CONFIG) == NOTHING
    assert recorded(tmp_path / "runs" / "moved", CONFIG) == NOTHING

    run.rmdir()
    (tmp_path / "runs" / "moved").rename(run)
    assert recorded(run, CONFIG) != NOTHING
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert recorded(run, CONFIG) == NOTHING


def test_a_module_of_the_same_name_elsewhere_is_not_imported(run, tmp_path, monkeypatch):
    other = tmp_path / "strangers"
    other.mkdir()
    (other / "pusher_lab.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(other))
    own = recorded(run, CONFIG)
    assert own.packages == ()
    assert own.elsewhere == {"pusher_lab": str(tmp_path)}
    assert "pusher_lab" not in sys.modules


def test_a_record_that_others_may_write_is_ignored(run, record):
    record.chmod(0o622)
    assert recorded(run, CONFIG) == NOTHING
    record.chmod(0o600)
    content = record.read_bytes()
    record.unlink()
    (record.parent / "elsewhere").write_bytes(content)
    record.symlink_to(record.parent / "elsewhere")
    assert recorded(run, CONFIG) == NOTHING


def test_the_record_is_private_and_holds_only_runs_that_need_trust(run, record):
    assert record.stat().st_mode & 0o777 == 0o600
    record_run(run, CONFIG)  # the same again
    record_run(run, {"env": {"_target_": "yamame_envs.TMaze"}})
    lines = record.read_text().splitlines()
    assert [json.loads(line)["packages"] for line in lines] == [["pusher_lab."]]


def test_a_home_that_cannot_be_written_to_and_damaged_lines_are_no_failure(run, record):
    record.write_bytes(b'\xff\n[1]\n{"digest": \n' + record.read_bytes())
    assert recorded(run, CONFIG) != NOTHING
    record.unlink()
    record.mkdir()
    record_run(run, CONFIG)
    assert recorded(run, CONFIG) == NOTHING


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"path": "a\\u0000b"}', b"\xff", b"9" * 5000])
def test_a_line_of_garbage_hides_no_other(run, record, monkeypatch, line):
    record.write_bytes(line + b"\n" + record.read_bytes())
    assert recorded(run, CONFIG).files
    monkeypatch.setattr(trust_record, "_LARGEST", 1)
    record_run(run, {**CONFIG, "env": {**ENV, "id": "pusher_lab:New-v0"}})
    assert line not in record.read_bytes()
    assert recorded(run, CONFIG).files


def test_the_place_of_the_record(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "off")
    assert record_file() is None
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert record_file() == tmp_path / "yamame" / "trusted.jsonl"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert record_file() == tmp_path / ".local" / "state" / "yamame" / "trusted.jsonl"


def _record_many(root, first):
    for number in range(first, first + 40):
        directory = root / str(number)
        directory.mkdir()
        record_run(directory, CONFIG)


def test_many_processes_write_and_prune_the_record_at_once(run, record, tmp_path, monkeypatch):
    monkeypatch.setattr(trust_record, "_LARGEST", 20_000)
    root = tmp_path / "many"
    root.mkdir()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_record_many, args=(root, 100 * n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    assert record.stat().st_size <= 21_000
    assert len({entry["path"] for entry in entries}) == len(entries) > 20
    assert list(record.parent.iterdir()) == [record]


def test_a_refused_name_ends_with_all_packages_to_add():
    config = {
        "env": ENV,
        "encoder": {"_target_": "mylab.deep.Encoder"},
        "agent": {"loss": {"_target_": "trusted.Loss"}},
    }
    with pytest.raises(UntrustedError) as raised:
        check_file(config, prefixes_of(["trusted."]))
    assert str(raised.value).endswith("add trust=[trusted.,pusher_lab.,mylab.]")
    raised.value.as_in_python()
    assert str(raised.value).endswith('add trust=["trusted.", "pusher_lab.", "mylab."]')
    check_file(config, prefixes_of(["trusted.", "pusher_lab.", "mylab."]))


FILES = (
    ("env", {"settings": {"xml_file": "/etc/passwd"}}),
    ("env", {"settings": {"xml_file": "~/x.xml"}}),
    ("env", {"settings": {"deep": [{"frame": "../x.png"}]}}),
    ("env", {"settings": {"url": "https://evil/x"}}),
    ("evaluation", {"env": {"settings": {"map": "maps/a.txt"}}}),
    ("encoder", {"settings": {"backbone": "resnet18"}}),
    ("encoder", {"settings": {"use_pretrained_backbone": True}}),
    ("encoder", {"settings": {"x": "hub/model"}}),
)


@pytest.mark.parametrize(("section", "settings"), FILES)
def test_a_file_names_no_files_and_downloads(section, settings):
    config = {"env": {"_target_": "yamame_envs.Gym", "id": "ALE/Pong-v5"}}
    check_file(config)
    config[section] = {**config.get(section, {}), **settings}
    assert [need.prefix for need in needs_of(config)] == [None]
    with pytest.raises(UsageError, match="must name no file or download"):
        check_file(config)
    check_file(config, files=True)
    own = {**config, section: {**config[section], "_target_": "mylab.Thing"}}
    if section != "evaluation":
        check_file(own, prefixes_of(["mylab."]))


def test_objects_under_any_name_are_judged_by_what_they_are():
    backbone = {"_target_": "yamame.trajectory.causal_transformer", "_partial_": True}
    encoder = {"_target_": "yamame.trajectory.TorchRLEncoder", "backbone": backbone}
    check_file({"encoder": encoder})
    backbone["_target_"] = "mylab.Backbone"
    with pytest.raises(UntrustedError, match=r"^encoder\.backbone\._target_: "):
        check_file({"encoder": encoder})
    check_file({"encoder": encoder}, prefixes_of(["mylab."]))
    backbone["_target_"] = "yamame.trajectory.causal_transformer"
    with pytest.raises(UsageError, match="must name no file or download"):
        check_file({"encoder": {**encoder, "backbone": {**backbone, "pretrained": True}}})


PUSHER = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Pusher(CartPoleEnv):
    def __init__(self, arms=3, **settings):
        super().__init__(**settings)

gymnasium.register("PusherMade-v0", entry_point=Pusher, max_episode_steps=9)
"""


def test_a_run_is_loaded_without_trust_only_where_it_was_made(
    own_module, tmp_path, record, monkeypatch
):
    own_module("pusher_made", PUSHER)
    settings = ("env=gym", "env.id=pusher_made:PusherMade-v0", "debug=tiny", "logger=none")
    run = yamame.train(*settings, f"run.root={tmp_path / 'runs'}", "run.name=mine").path
    trained = load_trained(run)
    assert trained.config.trust == ["pusher_made."]
    shutil.copytree(run, tmp_path / "copy")
    for source in (tmp_path / "copy", tmp_path / "copy" / "checkpoints"):
        path = max(source.rglob("step-*.pt")) if source.name == "checkpoints" else source
        with pytest.raises(UntrustedError, match=r"add trust=\[pusher_made\.\]$"):
            load_trained(path)
    monkeypatch.setenv(VARIABLE, "off")
    with pytest.raises(UntrustedError, match=r"add trust=\[pusher_made\.\]$"):
        load_trained(run)
    assert load_trained(run, trust=["pusher_made."]).step == trained.step
