"""Damaged files of a run: it refuses in one line, goes on from the checkpoint before, or ends with
the same parameters.

``YAMAME_CORRUPTED`` is the number of damaged files that the slow test tries.
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from yamame.checks import UsageError
from yamame.runs.trained import load_trained

TOLD = ("it is set aside", "it is written again at the end", ".pt")
KINDS = (
    "checkpoints/*.pt",
    "replay/*.steps",
    "replay/*.index",
    "replay/*.manifest",
    "*.json",
    "config.yaml",
)


def damage(folder: Path, draw: random.Random, kinds: tuple[str, ...] = KINDS) -> str:
    """Cuts a file of a run off, or flips one bit of it; says what was done."""
    file = draw.choice(sorted(folder.glob(draw.choice(kinds))) or [folder / "config.yaml"])
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    if draw.random() < 0.3:
        file.write_bytes(data[:place])
        return f"{file.name} cut at byte {place} of {len(data)}"
    data[place] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return f"{file.name} flipped in byte {place} of {len(data)}"


def resume_damaged(play, finished, work: Path, components, differing, draw) -> str:
    """Goes on with a damaged copy; gives what became of it, after checking that it is one of what
    may.
    """
    shutil.copytree(finished.folder, work)
    what = damage(work / "runs/a", draw)
    status, _, errors = play("train", work, *finished.goes_on)
    # A run as short as this one is advised to go on.
    told = finished.without_advice(errors)
    if status:
        assert (status, len(told)) == (2, 1) or told[0].endswith(TOLD), (what, errors)
        assert told[-1].startswith("train: "), (what, errors)
        result = "refused"
    else:
        assert differing(finished.expected, components(work / "runs/a")) == [], what
        assert all(line.endswith(TOLD) for line in told), (what, errors)
        result = "fell back" if told else "harmless"
    shutil.rmtree(work)
    return result


def load_damaged(folder: Path, work: Path, expected: dict, draw: random.Random) -> str:
    """Loads the best and the last checkpoint of a damaged copy, for an evaluation."""
    shutil.copytree(folder, work)
    what = damage(work / "runs/a", draw, KINDS[:1])
    results = []
    for which in ("best", "last"):
        weights, message = None, ""
        try:
            weights = load_trained(work / "runs/a", checkpoint=which).weights
        except UsageError as error:
            message = str(error)
        if weights is None:
            assert "\n" not in message, what
            assert ".pt must be a checkpoint, it cannot be read: " in message, what
        else:
            assert all(
                torch.equal(weights[key], value) for key, value in expected[which].items()
            ), what
        results.append("refused" if weights is None else "harmless")
    shutil.rmtree(work)
    return " ".join(results)


def weights_of(folder: Path) -> dict:
    return {
        which: load_trained(folder / "runs/a", checkpoint=which).weights
        for which in ("best", "last")
    }


def test_a_run_with_a_damaged_file_goes_on_to_the_same_parameters_or_refuses(
    finished, play, tmp_path, components, differing
):
    for seed in range(3):  # sizes of files, and so what is damaged, differ from one time to another
        resume_damaged(
            play, finished, tmp_path / "work", components, differing, random.Random(seed)
        )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_of_many_damaged_files_none_leads_to_other_parameters(
    finished, play, tmp_path, components, differing
):
    results = []
    for seed in range(int(os.environ.get("YAMAME_CORRUPTED", 200))):
        draw = random.Random(1000 + seed)
        results.append(
            resume_damaged(play, finished, tmp_path / "work", components, differing, draw)
        )
    print({result: results.count(result) for result in sorted(set(results))})
    assert set(results) == {"refused", "fell back", "harmless"}


def test_a_damaged_checkpoint_is_refused_by_an_evaluation_or_has_the_same_weights(
    finished, tmp_path
):
    folder = finished.folder
    expected, results = weights_of(folder), set()
    for seed in range(8):
        results.add(load_damaged(folder, tmp_path / "work", expected, random.Random(seed)))
    assert any("refused" in result for result in results)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_of_many_damaged_checkpoints_none_is_evaluated_with_other_weights(finished, tmp_path):
    folder = finished.folder
    expected, results = weights_of(folder), []
    for seed in range(int(os.environ.get("YAMAME_CORRUPTED", 200))):
        results.append(
            load_damaged(folder, tmp_path / "work", expected, random.Random(1000 + seed))
        )
    print({result: results.count(result) for result in sorted(set(results))})


def few_of(kinds: dict, *quick: str) -> list:
    """All kinds of damage; those that are not named take part only in slow sessions."""
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


def rewritten(change):
    def damage(file: Path) -> None:
        payload = torch.load(file, weights_only=True)
        change(payload)
        torch.save(payload, file)

    return damage


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


CHECKPOINTS = {
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("step: 3\n"),
    "another object": lambda file: torch.save([1, 2], file),
    "no step": rewritten(lambda payload: payload.pop("step")),
    "no config": rewritten(lambda payload: payload.pop("config")),
    "a list of components": rewritten(lambda payload: payload.update(components=[1])),
    "a component less": rewritten(lambda payload: payload["components"].pop("optimizer")),
    "a renamed key": rewritten(
        lambda payload: payload["components"]["agent"].update(other=torch.zeros(1))
    ),
    "a wrong state": rewritten(lambda payload: payload["components"].update(progress={"a": 1})),
    "a folder": replaced_by_a_folder,
}


@pytest.mark.parametrize("kind", few_of(CHECKPOINTS, "a folder", "a renamed key"))
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    finished, play, tmp_path, components, differing, kind, without_advice
):
    shutil.copytree(finished.folder, tmp_path / "work")
    *_, before, newest = sorted((tmp_path / "work/runs/a/checkpoints").glob("*.pt"))
    CHECKPOINTS[kind](newest)
    status, _, errors = play("train", tmp_path / "work", *finished.goes_on)
    (line,) = without_advice(errors)
    assert status == 0
    assert str(newest.relative_to(tmp_path / "work")) in line
    assert line.endswith(f"; continuing from {before.name}")
    assert differing(finished.expected, components(tmp_path / "work/runs/a")) == []
    assert newest.with_name(f"damaged-{newest.name}").exists()


def test_a_run_of_which_no_checkpoint_is_whole_is_refused_in_one_line_with_a_remedy(
    finished, play, tmp_path
):
    shutil.copytree(finished.folder, tmp_path / "work")
    files = sorted((tmp_path / "work/runs/a/checkpoints").glob("*.pt"))
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])
    status, _, errors = play("train", tmp_path / "work", *finished.goes_on)
    assert (status, errors.count("\n")) == (2, 1)
    assert (
        "none before it is left: restore a checkpoint from a copy, or start the run again" in errors
    )
    assert sorted((tmp_path / "work/runs/a/checkpoints").glob("*.pt")) == files


def each(pattern, change):
    def damage(folder: Path) -> None:
        for file in folder.glob(pattern):
            change(file)

    return damage


def with_dtype(name):
    def change(file: Path) -> None:
        from yamame.replay.disk.files import _checksum

        manifest = json.loads(file.read_text())
        del manifest["crc"]
        manifest["fields"][0][1] = name
        file.write_text(json.dumps({"crc": _checksum(manifest), **manifest}))

    return change


def half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


REPLAYS = {
    "gone": lambda folder: shutil.rmtree(folder),
    "steps gone": each("*.steps", Path.unlink),
    "index gone": each("*.index", Path.unlink),
    "manifest gone": each("*.manifest", Path.unlink),
    "steps cut": each("*.steps", half),
    "index short": each("*.index", half),
    "manifest cut": each("*.manifest", half),
    "steps zeroed": each("*.steps", lambda file: file.write_bytes(bytes(file.stat().st_size))),
    "index zeroed": each("*.index", lambda file: file.write_bytes(bytes(file.stat().st_size))),
    "index all ones": each("*.index", lambda file: file.write_bytes(b"\xff" * file.stat().st_size)),
    "unknown dtype": each("*.manifest", with_dtype("float99")),
    "a module as dtype": each("*.manifest", with_dtype("os")),
    "a list as manifest": each("*.manifest", lambda file: file.write_text("[1]")),
}


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", few_of(REPLAYS, "gone", "steps zeroed", "a module as dtype"))
def test_a_run_whose_trajectories_are_damaged_is_refused_in_one_line_and_stays_as_it_was(
    finished, play, tmp_path, kind
):
    shutil.copytree(finished.folder, tmp_path / "work")
    REPLAYS[kind](tmp_path / "work/runs/a/replay")
    before = files_of(tmp_path / "work")
    status, _, errors = play("train", tmp_path / "work", *finished.goes_on)
    *fallen, line = errors.splitlines()
    assert status == 2
    assert all("continuing from" in one for one in fallen)
    assert line.startswith("train: ")
    assert "replay" in line
    remedies = (
        "from a copy, or start",
        "restore it, or start again",
        "be those of torch",
        "empty or hold",
    )
    assert any(remedy in line for remedy in remedies)
    assert files_of(tmp_path / "work") == before
