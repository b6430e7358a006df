"""Sources of trajectories: runs, ``.npz`` and HDF5 files, Minari, and TorchRL's datasets.

They are only read, and become a `TrajectoryDataset` of trajectories as the environment's collector
would have stored them. Incomplete data, and data that do not fit the environment, are refused with
the name of the file and of the entry.
"""

import glob
import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer
from torchrl.envs.transforms import Transform

from yamame.checks import UsageError, at_source, require
from yamame.data.format import TrajectoryFormat
from yamame.data.source import MemoryStore, TrajectoryDataset
from yamame.data.tables import nested, read_tree, rollout, tables, unused
from yamame.keys import RELABELLING
from yamame.replay import TrajectoryFollower
from yamame.system.messages import one_line, print_stderr

SampleBy = Literal["trajectory", "timestep"]
Paths = str | list[str]


def runs(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    follow: bool = False,
) -> TrajectoryDataset:
    """The trajectories that runs have kept, read where they are.

    Args:
        path: Run directories, or folders of a `yamame.replay.TrajectoryStorage`; a list, or a
            pattern as ``runs/a*``.
        format: Of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        follow: See what a run appends and evicts while it goes on; such a source does not draw the
            same again when a run that uses it is resumed.

    Raises:
        ValueError: There are none, they are damaged, or they do not fit the environment.
    """
    for folder in (matching := _matching(path)):
        require("data", "path", str(folder), folder.is_dir(), "be a folder")
    folders = [folder / "replay" if (folder / "replay").is_dir() else folder for folder in matching]
    stores = [_RunStore(folder, format) for folder in folders]
    for store in stores:
        store.verify()
        format.check_fields(store.fields, str(store.path))
        if len(store):
            format.check_length(int(store.lengths.max()) - 1, str(store.path))
            format.check_time(store.get([int(store.lengths.argmax())])[0], str(store.path))

    def refresh() -> None:
        for store in stores:
            store.refresh()

    return TrajectoryDataset(
        stores, transform=transform, sample_by=sample_by, refresh=refresh if follow else None
    )


def npz(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    drop_unfinished: bool = False,
    indices: bool = False,
) -> TrajectoryDataset:
    """The trajectories in files of NumPy, see `yamame.data.tables`; a mapping is written
    ``observations/<key>``.

    Args:
        path: Files; a list, or a pattern as ``demos/*.npz``.
        format: Of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        drop_unfinished: Leave out the steps after the last end of an episode, which are refused
            otherwise.
        indices: Whether actions count from 0 where their space does not, as
            ``Discrete(4, start=1)`` (the files were written from a TorchRL rollout of the
            environment, not from Gymnasium).

    Raises:
        ValueError: A file cannot be read, or its trajectories do not fit the environment.
    """
    add = _Adder(format, drop_unfinished, indices)
    for file in _matching(path):
        try:
            with np.load(file, allow_pickle=False) as arrays:
                held = {key: arrays[key] for key in arrays.files}
        except Exception as error:  # damaged files make NumPy raise almost anything
            raise ValueError(
                f"{file}: must be a .npz file of plain arrays, it cannot be read: {one_line(error)}"
            ) from error
        with _naming(file):
            with at_source(str(file)):
                tree = nested(held)
            add.tree(tree, str(file))
    return TrajectoryDataset([add.store(path)], transform=transform, sample_by=sample_by)


def hdf5(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    drop_unfinished: bool = False,
    indices: bool = False,
) -> TrajectoryDataset:
    """The trajectories in HDF5 files, see `yamame.data.tables`: at the root as in D4RL, or a group
    per episode.

    Needs h5py: ``pip install 'yamame[data]'``. Arguments and errors are those of `npz`.
    """
    h5py = _imported("h5py")
    add = _Adder(format, drop_unfinished, indices)
    for file in _matching(path):
        try:
            opened = h5py.File(file, "r")
        except OSError as error:
            raise ValueError(
                f"{file}: must be an HDF5 file, it cannot be read: {one_line(error)}"
            ) from error
        with opened, _naming(file):
            add.tree(_inside(opened, h5py), str(file))
    return TrajectoryDataset([add.store(path)], transform=transform, sample_by=sample_by)


def minari(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    download: bool = False,
) -> TrajectoryDataset:
    """The episodes of Minari datasets. Needs Minari: ``pip install 'yamame[data]'``.

    Args:
        path: Ids such as ``D4RL/door/human-v2``, of datasets that are on this machine
            (``MINARI_DATASETS_PATH``).
        format: Of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        download: Fetch those that are not.

    Raises:
        ValueError: There is none of such an id, or its trajectories do not fit the environment.
    """
    library = _imported("minari")
    add = _Adder(format, drop_unfinished=False, indices=None)
    for dataset_id in [path] if isinstance(path, str) else path:
        try:
            dataset = library.load_dataset(dataset_id, download=download)
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(
                f"minari: {dataset_id} must be a dataset on this machine: {error}"
            ) from error
        for episode in dataset.iterate_episodes():
            arrays = {
                "observations": episode.observations,
                "actions": episode.actions,
                "rewards": episode.rewards,
                "terminated": episode.terminations,
                "truncated": episode.truncations,
            }
            add.tree(arrays, f"{dataset_id}: episode {episode.id}")
    return TrajectoryDataset([add.store(path)], transform=transform, sample_by=sample_by)


def torchrl(
    dataset: str | TensorDictBase | ReplayBuffer,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    indices: bool = True,
) -> TrajectoryDataset:
    """The trajectories of a TorchRL rollout or dataset: flat transitions ``[T]`` in order, or
    ``[N, T]``.

    Args:
        dataset: A TensorDict, the folder of one (``tensordict.memmap(folder)``), or a replay buffer
            with steps in the order in which they were made, such as the datasets of
            ``torchrl.data.datasets``.
        format: Of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        indices: Whether actions count from 0, as in rollouts of the environment. False: as in its
            Gymnasium space, as ``Discrete(4, start=1)`` (datasets of ``torchrl.data.datasets`` hold
            them as they were recorded).

    Raises:
        ValueError: There is none, its episodes are not whole, or they do not fit the environment.
    """
    name = str(dataset) if isinstance(dataset, str) else type(dataset).__name__
    steps = _read_folder(dataset) if isinstance(dataset, str) else dataset
    steps = steps[:] if isinstance(steps, ReplayBuffer) else steps
    require(
        name, "dataset", type(steps).__name__, isinstance(steps, TensorDictBase), "be a TensorDict"
    )
    require(name, "shape", tuple(steps.shape), steps.ndim in (1, 2), "be [T] or [N, T]")
    add = _Adder(format, drop_unfinished=False, indices=indices)
    for row in steps.unbind(0) if steps.ndim == 2 else [steps]:
        add.rollout(row, name)
    return TrajectoryDataset([add.store(name)], transform=transform, sample_by=sample_by)


class _RunStore(TrajectoryFollower):
    """Trajectories of a run, without entries for relabelling that the environment to learn for does
    not write.
    """

    def __init__(self, path: Path, format: TrajectoryFormat) -> None:
        self._left_out = [key for key in RELABELLING if key not in format.entries]
        super().__init__(path)

    @property
    def fields(self) -> dict[NestedKey, tuple[torch.Size, torch.dtype]]:
        """See `TrajectoryFollower.fields`."""
        return {key: field for key, field in super().fields.items() if key not in self._left_out}

    def get(self, index: Any) -> TensorDict:
        """See `TrajectoryFollower.get`."""
        return super().get(index).exclude(*self._left_out)


class _Adder:
    """Gathers trajectories of one format in memory.

    Args:
        format: Format of the environment.
        drop_unfinished: As for `npz`.
        indices: As for `npz`; None if the source always holds values of the space.
    """

    def __init__(
        self, format: TrajectoryFormat, drop_unfinished: bool, indices: bool | None
    ) -> None:
        self._format, self._drop, self._indices = format, drop_unfinished, indices
        self._parts: list[tuple[TensorDict, torch.Tensor]] = []
        self._unused: set[str] = set()
        self._ambiguous = False

    def tree(self, tree: Mapping[str, Any], name: str) -> None:
        """Adds all tables of nested mappings."""
        number = 0
        for number, (place, table) in enumerate(tables(tree, name), 1):  # noqa: B007 (the last one counts)
            self._unused |= unused(table)
            with _naming(place):
                steps = rollout(
                    table, self._format, place, drop_unfinished=self._drop, indices=self._indices
                )
            if len(steps):
                self._notice(read_tree(table, "actions", place))
                self._add(steps, place, indices=True)  # they are stored entries now
        require(
            name, "arrays", sorted(tree), number > 0, "hold 'actions', at the root or in groups"
        )

    def rollout(self, steps: TensorDictBase, name: str) -> None:
        """Adds the episodes of a rollout."""
        self._add(steps, name, indices=bool(self._indices))
        self._notice(steps.get("action").cpu())

    def _add(self, steps: TensorDictBase, name: str, *, indices: bool) -> None:
        with _naming(name):
            self._parts += self._format.trajectories(steps, name, indices=indices)

    def _notice(self, actions: Any) -> None:
        """Remembers that actions were read which ``indices`` would give another meaning."""
        self._ambiguous |= self._format.actions.depends_on_indices(
            actions, indices=bool(self._indices)
        )

    def store(self, path: Any) -> MemoryStore:
        """All that was added."""
        require("data", "trajectories", f"none in {path}", bool(self._parts), "be at least one")
        if self._indices is not None and self._ambiguous:
            ways = {
                False: f"from {self._format.actions.first_numbers}, as in their space",
                True: "from 0",
            }
            print_stderr(
                f"data: {path}: actions are read as numbers that count {ways[self._indices]}; set "
                f"+data.source.indices={str(not self._indices).lower()} if they count {ways[not self._indices]}"
            )
        if self._unused:
            print_stderr(f"data: {path}: not read: {', '.join(sorted(self._unused))}")
        return MemoryStore(self._parts)


@contextmanager
def _naming(name: Any) -> Iterator[None]:
    """Within the block, turn errors of reading a damaged array into a `UsageError` with its name.

    A `UsageError` of this package names the array itself and is raised as it is.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # damaged files make libraries raise almost anything
        reason = one_line(error)
        raise UsageError(f"{name}: must hold whole arrays, it does not: {reason}") from error


def _inside(group: Any, h5py: Any) -> dict[str, Any]:
    """The groups and datasets of an HDF5 file, none of which may be in another file."""
    inside = {}
    for key in group:
        link = group.get(key, getlink=True)
        own = not isinstance(link, h5py.ExternalLink)
        require(
            group.file.filename, f"entry {key!r}", "a link to another file", own, "be in this one"
        )
        inside[key] = (
            _inside(group[key], h5py) if isinstance(group[key], h5py.Group) else group[key]
        )
    return inside


def _matching(path: Paths) -> list[Path]:
    """Files or folders that paths and patterns name, in order; each at least one."""
    paths: list[Path] = []
    for one in [path] if isinstance(path, str) else path:
        names = sorted(glob.glob(os.path.expanduser(one)))
        require("data", "path", one, bool(names), "name something that is there")
        paths += map(Path, names)
    require("data", "path", path, bool(paths), "name something")
    return paths


def _imported(library: str) -> Any:
    """A library that only some sources need."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise UsageError(
            f"data: {library} must be installed, with pip install 'yamame[data]': {error}"
        ) from error


def _read_folder(path: str) -> TensorDictBase:
    """A TensorDict on disk, of which nothing is run."""
    condition = "be the folder of a TensorDict (it holds meta.json)"
    require("torchrl", "path", path, (Path(path) / "meta.json").is_file(), condition)
    try:
        return TensorDict.load_memmap(path, allow_pickle=False)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{path}: must be a TensorDict of tensors, it cannot be read: {one_line(error)}"
        ) from error
