"""Reading of Minari datasets, after a look at their files.

Minari follows links between files, and makes the environment that a dataset names if its spaces are
missing, which runs code. So files are checked before Minari opens them.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from yamame.checks import UsageError, require
from yamame.data import hdf5_files
from yamame.data.sizes import Sizes
from yamame.files.paths import check_tree, inside, open_regular
from yamame.system.messages import one_line

_LONGEST_METADATA = 2**24
_MOST_EPISODES = 10**8


def read_episodes(
    dataset_id: str, library: Any, *, download: bool, sizes: Sizes
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Read the episodes of a dataset.

    Args:
        dataset_id: Id of the dataset.
        library: The module ``minari``.
        download: Whether to download a dataset that is not on this machine.
        sizes: Sum of the sizes of what is read.

    Yields:
        Name for messages, and arrays of an episode.

    Raises:
        UsageError: There is no such dataset, or it is damaged, has links or names other files.
    """
    try:
        folder = _folder(dataset_id, library, download=download)
        check_tree(folder)
        _check_metadata(folder / "data")
        _check_hdf5(folder / "data", sizes)
        dataset = library.load_dataset(dataset_id)
    except UsageError:
        raise
    except Exception as error:
        # A damaged dataset makes Minari raise almost anything.
        raise UsageError(
            f"minari: {dataset_id} must be a dataset on this machine: {one_line(error)}"
        ) from error

    episodes = iter(dataset.iterate_episodes())
    number = 0
    while True:
        try:
            episode = next(episodes, None)
        except Exception as error:
            raise UsageError(
                f"minari: {dataset_id} must hold whole episodes, number {number} cannot be read: "
                f"{one_line(error)}"
            ) from error
        if episode is None:
            return
        number += 1
        arrays = {
            "observations": episode.observations,
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminated": episode.terminations,
            "truncated": episode.truncations,
        }
        yield f"{dataset_id}: episode {episode.id}", arrays


def _folder(dataset_id: str, library: Any, *, download: bool) -> Path:
    """Return the folder of a dataset on this machine."""
    places = importlib.import_module(f"{library.__name__}.storage.datasets_root_dir")
    folder = Path(places.get_dataset_path(dataset_id))
    if not (folder / "data").exists() and download:
        library.download_dataset(dataset_id)
    if not (folder / "data").is_dir():
        raise FileNotFoundError(f"{folder / 'data'} does not exist")
    return folder


def _check_metadata(data: Path) -> None:
    """Raise unless the metadata describe the spaces."""
    path = inside(data, "metadata.json")
    with open_regular(path) as file:
        text = file.read(_LONGEST_METADATA + 1)
    fits = len(text) <= _LONGEST_METADATA
    require(str(path), "size", "more", fits, f"be at most {_LONGEST_METADATA}")
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: must be JSON: {one_line(error)}") from error
    require(
        str(path), "content", type(metadata).__name__, isinstance(metadata, dict), "be an object"
    )
    for key in ("observation_space", "action_space", "dataset_id", "data_format"):
        value = metadata.get(key)
        require(str(path), key, value, isinstance(value, str), "be a text")
    number = metadata.get("total_episodes")
    is_number = type(number) is int and 0 <= number <= _MOST_EPISODES
    require(str(path), "total_episodes", number, is_number, f"be in 0..{_MOST_EPISODES}")


def _check_hdf5(data: Path, sizes: Sizes) -> None:
    """Raise for an HDF5 file that names other files, or whose arrays are too large."""
    paths = sorted(data.glob("*.hdf5"))
    if not paths:
        # Minari's other formats have no names of files in them.
        return
    h5py = importlib.import_module("h5py")
    for path in paths:
        with hdf5_files.opened(path, h5py, sizes) as tree:
            hdf5_files.count_all(tree)
