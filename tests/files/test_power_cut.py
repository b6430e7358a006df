"""A power cut at any moment leaves a complete checkpoint with its trajectories: every prefix of
what reached the disk.

The layer records each flush of a file and of a folder, and each rename and deletion. What a disk
may hold after a cut is made of that: a file has what was in it when it was flushed, a folder the
names it had when it was flushed; of what came later any part may be there as well.
"""

import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from yamame.files.checkpoint import Checkpointer
from yamame.replay.disk.storage import TrajectoryStorage

SAVES, BEST, CAPACITY = 5, 1, 60


class Disk:
    """Records, while files below a folder are written, what a power cut could leave of them."""

    def __init__(self, root: Path, graveyard: Path) -> None:
        self.root, self.graveyard = root, graveyard
        graveyard.mkdir()
        self.flushed: dict[int, bytes] = {}  # content by inode
        self.names: dict[Path, dict[str, int]] = {root: {}}  # entries by folder
        self.moments: list[tuple[dict, dict, dict, dict]] = []
        self.real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink")}

    def patches(self) -> dict:
        return {
            "fsync": self.fsync,
            "replace": self.replace,
            "rename": self.rename,
            "unlink": self.unlink,
        }

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if self.root not in (path, *path.parents):
            return self.real["fsync"](descriptor)
        inode = os.fstat(descriptor).st_ino
        if path.is_dir():
            self.names[path] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        else:
            self.flushed[inode] = path.read_bytes()
        return self.note()

    def replace(self, source, target) -> None:
        self.bury(target)
        self.real["replace"](source, target)
        self.note()

    def rename(self, source, target) -> None:
        self.bury(target)
        self.real["rename"](source, target)
        self.note()

    def unlink(self, path, **options) -> None:
        self.bury(path)
        self.real["unlink"](path, **options)
        self.note()

    def bury(self, path) -> None:
        """Keeps the inode of a file that goes, or a later one would have its number."""
        if self.root in Path(path).parents and os.path.exists(path):
            os.link(path, self.graveyard / str(len(list(self.graveyard.iterdir()))))

    def note(self) -> None:
        """What is flushed at this moment, and what is there beside it."""
        now, contents = {}, {}
        for folder in (self.root, *(path for path in self.root.rglob("*") if path.is_dir())):
            now[folder] = {entry.name: entry.stat().st_ino for entry in folder.iterdir()}
            contents |= {e.stat().st_ino: e.read_bytes() for e in folder.iterdir() if e.is_file()}
        flushed_names = {folder: dict(names) for folder, names in self.names.items()}
        self.moments.append((dict(self.flushed), flushed_names, contents, now))

    def after_a_cut(self, moment: int, target: Path, draw: random.Random | None) -> None:
        """Makes what the disk holds after a cut at a moment; ``draw``: what was not flushed is
        there in part.
        """
        flushed, flushed_names, contents, now = self.moments[moment]
        everything = {
            inode: content
            for *_, held, _ in self.moments[: moment + 1]
            for inode, content in held.items()
        }
        inodes = {self.root.stat().st_ino: self.root}
        inodes |= {path.stat().st_ino: path for path in self.root.rglob("*") if path.is_dir()}

        def make(folder: Path, place: Path) -> None:
            place.mkdir()
            names = dict(flushed_names.get(folder, {}))
            present = now.get(folder, {})
            for name in {*names, *present} if draw else ():
                if names.get(name) != present.get(name) and draw.random() < 0.5:
                    names[name] = present.get(name)
            for name, inode in names.items():
                if inode in inodes:
                    make(inodes[inode], place / name)
                elif inode is not None:
                    content = flushed.get(inode, b"")
                    if draw:
                        later = contents.get(inode, everything.get(inode, b""))
                        content += later[len(content) : draw.randint(0, len(later) + 1)]
                        if inode not in flushed and draw.random() < 0.3:
                            content = bytes(len(content))  # blocks that were never written
                    (place / name).write_bytes(content)

        make(self.root, target)


def trajectories(first: int) -> list[TensorDict]:
    lengths = enumerate((7, 5, 9))
    return [
        TensorDict({"x": torch.arange(length) + 1000 * (first + i)}, [length])
        for i, length in lengths
    ]


def content(storage: TrajectoryStorage) -> list[int]:
    batch = storage.get(range(len(storage)))
    return batch["x"][batch["mask"].squeeze(-1)].tolist()


def play(folder: Path, disk: Disk) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Trains as recipes do: what replay held at each checkpoint, and the moment when each was made,
    by step.
    """
    held, made = {}, {}
    checkpoints = Checkpointer(folder / "checkpoints", keep_last=2)
    storage = TrajectoryStorage(folder / "replay", capacity=CAPACITY)
    for step in range(SAVES):
        for _ in range(3):
            storage.append(trajectories(storage.num_appended))
        held[step] = content(storage)
        checkpoints.save({"replay": storage, "step": step}, step=step, metric=-abs(step - BEST))
        made[step] = len(disk.moments) - 1
        storage.protect()
    storage.close()
    return held, made


def resume(folder: Path, held: dict[int, list[int]], least: int) -> int:
    """Goes on from what a cut left, as recipes do, from no checkpoint before a step; the step of
    the one it found.
    """
    if least < 0 and not list(folder.glob("checkpoints/step-*.pt")):
        return -1  # the run begins again
    with contextlib.closing(
        TrajectoryStorage(folder / "replay", capacity=CAPACITY, resume=True)
    ) as storage:
        loaded = Checkpointer(folder / "checkpoints").load({"replay": storage, "step": None})
        assert loaded.values["step"] == loaded.step >= least
        assert content(storage) == held[loaded.step]
        storage.append(trajectories(storage.num_appended))
        assert len(content(storage)) <= CAPACITY
        storage.state_dict()
    assert not list(folder.glob("checkpoints/damaged-*"))
    return loaded.step


def cut_everywhere(tmp_path: Path, variants: int, **broken) -> Iterator[tuple[int | None, str]]:
    """Cuts the power after every operation: the step that a run goes on from, or None and what went
    wrong.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    disk = Disk(folder, tmp_path / "graveyard")
    with pytest.MonkeyPatch.context() as patch:
        for name, function in disk.patches().items():
            patch.setattr(os, name, function)
        for name, function in broken.items():
            patch.setattr(f"yamame.{name.replace('__', '.')}", function)
        held, made = play(folder, disk)
    for moment in range(len(disk.moments)):
        least = max((step for step, done in made.items() if done <= moment), default=-1)
        for variant in range(variants):
            left = tmp_path / "left"
            disk.after_a_cut(
                moment, left, random.Random(f"{moment} {variant}") if variant else None
            )
            try:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(os, "fsync", lambda descriptor: None)  # which takes milliseconds
                    step, wrong = resume(left, held, least), ""
            except (AssertionError, ValueError, OSError) as error:
                step, wrong = None, f"moment {moment}, variant {variant}: {error!r}"
            shutil.rmtree(left)
            yield step, wrong


def test_a_power_cut_at_any_moment_leaves_a_complete_checkpoint_with_its_trajectories(tmp_path):
    ends = list(cut_everywhere(tmp_path, int(os.environ.get("YAMAME_CUT_VARIANTS", 2))))
    assert [wrong for _, wrong in ends if wrong] == []
    assert {step for step, _ in ends} == {-1, *range(SAVES)}


@pytest.mark.parametrize(
    "broken",
    ["replay__disk__storage__flush", "replay__disk__files__flush", "files__atomic__flush_folder"],
)
def test_without_any_one_of_the_flushes_a_cut_would_be_noticed(tmp_path, broken):
    assert any(wrong for _, wrong in cut_everywhere(tmp_path, 1, **{broken: lambda path: None}))


def test_a_checkpoint_that_is_written_before_its_trajectories_would_be_noticed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        TrajectoryStorage, "state_dict", lambda self: {"owner": "", **self._manifest["held"]}
    )
    assert any(wrong for _, wrong in cut_everywhere(tmp_path, 1))
