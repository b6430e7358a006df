"""Sources of trajectories: runs, files, and datasets of Minari, LeRobot, AMAGO and TorchRL.

Files are only read, and become a `TrajectoryDataset` of trajectories as the environment's collector
would have stored them. Incomplete data, and data that do not fit the environment, raise an error
that names the file and the entry.
"""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer
from torchrl.envs.transforms import Transform

from yamame.checks import check_bounds, require, require_choice
from yamame.data.amago_files import matching_files, read_segment
from yamame.data.extras import import_extra
from yamame.data.format import TrajectoryFormat
from yamame.data.hdf5_files import opened
from yamame.data.lerobot_files import Ends, LeRobotDataset
from yamame.data.loader import Loader, check_format, naming
from yamame.data.minari_files import read_episodes
from yamame.data.numpy_files import read_npz
from yamame.data.sizes import Sizes
from yamame.data.source import MemoryStore, SampleBy, TrajectoryDataset
from yamame.data.tables import nested
from yamame.data.tensordict_files import META, read_folder
from yamame.files.paths import check_tree, inside
from yamame.keys import RELABELLING
from yamame.replay import TrajectoryFollower

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Content: TypeAlias = Mapping[str, Any] | TensorDictBase
"""Arrays in nested mappings (`yamame.data.tables`), or a TorchRL rollout ``[T]``."""


@check_bounds
def runs(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    follow: bool = False,
) -> TrajectoryDataset:
    """Read the trajectories of runs in place.

    Args:
        path: Run directories, or folders of a `yamame.replay.TrajectoryStorage`; a list, or a
            pattern as ``runs/a*``.
        format: Format of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        follow: Whether to include trajectories that a run appends later, and exclude those that it
            evicts. A resumed run then does not sample the same trajectories again.

    Raises:
        ValueError: There are no trajectories, they are damaged, or they do not fit the environment.
    """
    check_format(format)
    stores = []
    for folder in _matching(path):
        require("data", "path", str(folder), folder.is_dir(), "be a folder")
        # A run directory has other folders, too.
        if (folder / "replay").is_dir():
            folder = inside(folder, "replay")
        check_tree(folder)
        stores.append(_RunStore(folder, format))
    for store in stores:
        # Runs may have been copied, or written by a machine that failed.
        store.verify()
        name = str(store.path)
        format.check_fields(store.fields, name)
        if len(store):
            longest = int(store.lengths.argmax())
            format.check_length(int(store.lengths[longest]) - 1, name)
            format.check_time(store.get([longest])[0], name)

    def refresh() -> None:
        for store in stores:
            store.refresh()

    return TrajectoryDataset(
        stores, transform=transform, sample_by=sample_by, refresh=refresh if follow else None
    )


@check_bounds
def npz(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    drop_unfinished: bool = False,
    indices: bool = False,
) -> TrajectoryDataset:
    """Read the trajectories in NumPy files, see `yamame.data.tables`.

    Entries of a mapping are arrays named ``observations/<key>``.

    Args:
        path: Files; a list, or a pattern as ``demos/*.npz``.
        format: Format of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        drop_unfinished: Whether to leave out the steps after the last end of an episode, which
            otherwise raise an error.
        indices: Whether actions count from 0 where their space does not, as
            ``Discrete(4, start=1)`` (the files were written from a TorchRL rollout of the
            environment, not from Gymnasium).

    Raises:
        ValueError: A file cannot be read, or its trajectories do not fit the environment.
    """
    reader = _read_npz(path)
    store = load(format, reader, name=path, drop_unfinished=drop_unfinished, indices=indices)
    return TrajectoryDataset([store], transform=transform, sample_by=sample_by)


def _read_npz(path: Paths) -> Iterator[tuple[str, Content]]:
    sizes = Sizes()
    for file in _matching(path):
        name = str(file)
        yield name, nested(read_npz(file, sizes), name)


@check_bounds
def hdf5(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    drop_unfinished: bool = False,
    indices: bool = False,
) -> TrajectoryDataset:
    """Read the trajectories in HDF5 files, see `yamame.data.tables`.

    Arrays are at the root as in D4RL, or in a group per episode. Needs h5py:
    ``pip install 'yamame[data]'``. Arguments and errors are those of `npz`.
    """
    h5py = import_extra("h5py")
    reader = _read_hdf5(path, h5py)
    store = load(format, reader, name=path, drop_unfinished=drop_unfinished, indices=indices)
    return TrajectoryDataset([store], transform=transform, sample_by=sample_by)


def _read_hdf5(path: Paths, h5py: Any) -> Iterator[tuple[str, Content]]:
    sizes = Sizes()
    for file in _matching(path):
        name = str(file)
        with naming(name), opened(file, h5py, sizes) as tree:
            # Arrays are read when they are used, while the file is open.
            yield name, tree


@check_bounds
def minari(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    download: bool = False,
) -> TrajectoryDataset:
    """Read the episodes of Minari datasets. Needs Minari: ``pip install 'yamame[data]'``.

    Args:
        path: Ids such as ``D4RL/door/human-v2`` of datasets on this machine
            (``MINARI_DATASETS_PATH``).
        format: Format of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        download: Whether to download datasets that are not on this machine.

    Raises:
        ValueError: A dataset does not exist, or its trajectories do not fit the environment.
    """
    library = import_extra("minari")
    # Minari stores values of the action space: there is nothing to set.
    store = load(format, _read_minari(path, library, download), name=path, indices=None)
    return TrajectoryDataset([store], transform=transform, sample_by=sample_by)


def _read_minari(path: Paths, library: Any, download: bool) -> Iterator[tuple[str, Content]]:
    sizes = Sizes()
    for dataset_id in _texts(path):
        yield from read_episodes(dataset_id, library, download=download, sizes=sizes)


@check_bounds
def torchrl(
    dataset: str | os.PathLike[str] | TensorDictBase | ReplayBuffer,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    indices: bool = True,
) -> TrajectoryDataset:
    """Read a TorchRL rollout or dataset: transitions ``[T]`` in order, or ``[N, T]``.

    Args:
        dataset: A TensorDict, the folder of one (``tensordict.memmap(folder)``), or a replay buffer
            with steps in the order in which they were made, such as the datasets of
            ``torchrl.data.datasets``.
        format: Format of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        indices: Whether actions count from 0, as in rollouts of the environment. False: as in its
            Gymnasium space, as ``Discrete(4, start=1)`` (datasets of ``torchrl.data.datasets`` hold
            actions as they were recorded).

    Raises:
        ValueError: There is no dataset, its episodes are not whole, or they do not fit the
            environment.
    """
    name = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else type(dataset).__name__
    store = load(format, _read_torchrl(dataset, name), name=name, indices=indices)
    return TrajectoryDataset([store], transform=transform, sample_by=sample_by)


def _read_torchrl(
    dataset: str | os.PathLike[str] | TensorDictBase | ReplayBuffer, name: str
) -> Iterator[tuple[str, Content]]:
    steps: Any = dataset
    if isinstance(dataset, str | os.PathLike):
        condition = f"be the folder of a TensorDict (it holds {META})"
        require("torchrl", "path", name, (Path(name) / META).is_file(), condition)
        steps = read_folder(name, Sizes())
    elif isinstance(dataset, ReplayBuffer):
        steps = dataset[:]
    is_tensordict = isinstance(steps, TensorDictBase)
    require(name, "dataset", type(steps).__name__, is_tensordict, "be a TensorDict")
    require(name, "shape", tuple(steps.shape), steps.ndim in (1, 2), "be [T] or [N, T]")
    for row in steps.unbind(0) if steps.ndim == 2 else [steps]:
        yield name, row


@check_bounds
def amago(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
) -> TrajectoryDataset:
    """Read the trajectory files of AMAGO 3, see `yamame.data.amago_files`.

    Args:
        path: Files ``*.npz``, or folders of them, such as ``<dset_name>/buffer``; a list, or a
            pattern.
        format: Format of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.

    Raises:
        ValueError: A file cannot be read, is a pickle, or does not fit the environment.
    """
    # A file holds encoded actions: there is nothing to set.
    loader = Loader(format, False, None)
    sizes = Sizes()
    for file in matching_files(_matching(path)):
        with naming(str(file)):
            loader.add_segment(read_segment(file, format, sizes))
    return TrajectoryDataset([loader.finish(path)], transform=transform, sample_by=sample_by)


@check_bounds
def lerobot(
    path: Paths,
    *,
    format: TrajectoryFormat,
    transform: Transform | None = None,
    sample_by: SampleBy = "trajectory",
    ends: Ends = "terminated",
    indices: bool = False,
) -> TrajectoryDataset:
    """Read datasets in the layout of LeRobot, see `yamame.data.lerobot_files`.

    Needs pyarrow: ``pip install 'yamame[data]'``.

    Args:
        path: Folders with ``meta/info.json``; a list, or a pattern.
        format: Format of the environment to learn for.
        transform, sample_by: As for `TrajectoryDataset`.
        ends: Meaning of ``next.done``, where ``next.terminated`` and ``next.truncated`` are
            missing. ``terminated``: the task ended, and later values are 0. ``truncated``: the
            episode was cut, and its last step is left out, because the observation after it is
            unknown. Episodes whose last ``next.done`` is false are always truncated.
        indices: As for `npz`. Datasets of `write_lerobot` need no choice.

    Raises:
        ValueError: A dataset cannot be read, or does not fit the environment.
    """
    require_choice("lerobot", "ends", ends, get_args(Ends))
    loader = Loader(format, False, indices)
    sizes = Sizes()
    for folder in _matching(path):
        dataset = LeRobotDataset(folder, format, ends=ends, sizes=sizes)
        for name, table in dataset.tables():
            with naming(name):
                loader.add_tables(table, name, is_stored=dataset.is_ours)
    return TrajectoryDataset([loader.finish(path)], transform=transform, sample_by=sample_by)


def load(
    format: TrajectoryFormat,
    reader: Iterable[tuple[str, Content]],
    *,
    name: Any,
    drop_unfinished: bool = False,
    indices: bool | None = False,
) -> MemoryStore:
    """Load all trajectories of a reader into memory.

    Entries that are not used are printed to the standard error, and so is the meaning of actions
    that ``indices`` would change.

    Args:
        format: Format of the environment to learn for.
        reader: Names for messages, and contents of files, episodes or datasets.
        name: Name of the whole in messages.
        drop_unfinished: As for `npz`.
        indices: As for `npz`; None if the reader always returns values of the action space.

    Raises:
        ValueError: There are no trajectories, an array is damaged, or trajectories do not fit the
            environment.
    """
    loader = Loader(format, drop_unfinished, indices)
    for item, content in reader:
        with naming(item):
            # A TensorDict is a mapping as well.
            if isinstance(content, TensorDictBase):
                loader.add_rollout(content, item)
            else:
                loader.add_tables(content, item)
    return loader.finish(name)


class _RunStore(TrajectoryFollower):
    """Trajectories of a run, without entries for relabelling that the environment does not have."""

    def __init__(self, path: Path, format: TrajectoryFormat) -> None:
        self._left_out = [key for key in RELABELLING if key not in format.entries]
        super().__init__(path)

    @property
    def fields(self) -> dict[NestedKey, tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes of entries, see `TrajectoryFollower.fields`."""
        return {key: field for key, field in super().fields.items() if key not in self._left_out}

    def get(self, index: Any) -> TensorDict:
        """Copy trajectories out, see `TrajectoryFollower.get`."""
        return super().get(index).exclude(*self._left_out)


def _texts(path: Paths) -> list[str]:
    """Return one path, or a list of them, as a list of texts."""
    paths = [path] if isinstance(path, str | os.PathLike) else path
    is_list = isinstance(paths, Sequence) and not isinstance(paths, bytes)
    fits = is_list and all(isinstance(each, str | os.PathLike) for each in paths)
    require("data", "path", path, fits, "be a path or a list of paths")
    return [os.fspath(each) for each in paths]


def _matching(path: Paths) -> list[Path]:
    """Return the files or folders that paths and patterns match, in order; at least one each."""
    found: list[Path] = []
    for pattern in _texts(path):
        name = os.path.expanduser(pattern)
        # A name may hold the characters of patterns.
        names = [name] if os.path.lexists(name) else sorted(glob.glob(name))
        require("data", "path", pattern, bool(names), "name an existing file or folder")
        found += [Path(name) for name in names]
    require("data", "path", path, bool(found), "name at least one file or folder")
    return found
