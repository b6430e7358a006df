"""Writing of trajectories in the layout of LeRobot, version v3.0.

Columns are those of `yamame.data.lerobot_files`. What the layout does not have is added, so that
`yamame.data.lerobot` reads the same trajectories bit for bit:

- columns ``next.terminated`` and ``next.truncated`` beside ``next.done``;
- columns ``goal``, ``achieved``, ``achieved_mask``, ``world_hash``, ``action_mask`` and
  ``trial_start``, if the trajectories have them;
- ``meta/final.parquet`` with the observations after the last actions, a row per episode.

The rest of the context (`yamame.keys`) is left out, because it is computed from these. Discrete
observations are one-hot, and discrete actions count from 0.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey

from yamame.checks import Bounds, UsageError, check_bounds, require
from yamame.data.extras import import_extra
from yamame.data.lerobot_files import FINAL, FORMAT, INFO, column_of
from yamame.data.source import TrajectoryDataset
from yamame.data.tables import SHOWN
from yamame.files.paths import create_file, new_folder
from yamame.keys import CONTEXT
from yamame.replay.disk.files import flush
from yamame.replay.frequencies import Store
from yamame.spaces.arrays import Array
from yamame.system.messages import one_line, print_stderr, shortened

OWNER = "write_lerobot"
_ROW_GROUP = 2**24
"""Bytes of arrays that are written at once."""
_FILE_MB = 100
"""Size from which another data file is begun, as in LeRobot."""
_FILES_PER_CHUNK = 1000
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODES = "meta/episodes/chunk-000/file-000.parquet"
_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
Columns = dict[str, Array]
FramesPerSecond = Annotated[int, Bounds(least=1, most=10**6)]


@check_bounds
def write_lerobot(
    path: str | os.PathLike[str],
    source: TrajectoryDataset | Store,
    *,
    fps: FramesPerSecond = 1,
    task: str = "",
) -> Path:
    """Write trajectories as a dataset in the layout of LeRobot.

    The folder appears when it is complete. Needs pyarrow: ``pip install 'yamame[data]'``.

    Args:
        path: Folder to write, new or empty.
        source: A dataset of any source of this package, or a store of trajectories such as
            ``replay.storage``.
        fps: Steps per second, from which LeRobot computes times.
        task: Description of the task in words.

    Returns:
        The folder.

    Raises:
        UsageError: The folder holds something or cannot be made, or there are no trajectories of
            whole episodes.
        OSError: A file cannot be written.
    """
    folder = _checked_folder(path)
    is_dataset = isinstance(source, TrajectoryDataset)
    is_source = is_dataset or (hasattr(source, "lengths") and hasattr(source, "get"))
    condition = "be a dataset of yamame.data or a store of trajectories"
    require(OWNER, "source", type(source).__name__, is_source, condition)
    is_text = isinstance(task, str) and task.encode(errors="replace").decode() == task
    require(OWNER, "task", task, is_text, "be a text in UTF-8")
    stores = source.stores if isinstance(source, TrajectoryDataset) else [source]
    with new_folder(folder) as scratch:
        _write(scratch, stores, fps, task)
    flush(folder.absolute().parent)
    return folder


def _checked_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a new dataset, and make its parent.

    Raises:
        UsageError: There cannot be a new folder at the path.
    """
    is_path = isinstance(path, str | os.PathLike)
    require(OWNER, "path", path, is_path, "be the path of a folder")
    folder = Path(path)
    try:
        is_there = _is_there(folder)
        is_empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
        if is_there and not is_empty:
            remedy = "name another folder"
            raise UsageError(f"{OWNER}: {folder} must be new or empty", remedy=remedy)
        # The present folder cannot be replaced, under any of its names.
        is_other = folder.name != ".." and folder.resolve() != Path.cwd()
        require(OWNER, "path", str(path), is_other, "name a folder that is not the present one")
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        # In a new parent, only now a name is found to be too long.
        _is_there(folder)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        shown = shortened(str(folder))
        raise UsageError(f"{OWNER}: {shown} must be a path for a new folder: {reason}") from error
    return folder


def _is_there(path: Path) -> bool:
    """Return whether anything lies at a path; unlike `os.path.lexists`, raise for wrong paths."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _write(folder: Path, stores: Sequence[Store], fps: int, task: str) -> None:
    """Write all files of a dataset."""
    data = _DataFiles(folder)
    last: list[Columns] = []
    for number, trajectory in enumerate(_trajectories(stores)):
        rows, final = _episode(trajectory, number)
        length = len(rows["action"])
        frames = np.arange(length)
        rows["timestamp"] = (frames / fps).astype(np.float32)
        rows["frame_index"] = frames
        rows["episode_index"] = np.full(length, number)
        rows["index"] = data.num_rows + frames
        rows["task_index"] = np.zeros(length, np.int64)
        data.add(rows)
        last.append(final)
    require(OWNER, "trajectories", 0, bool(last), "be at least 1, with a step")
    data.close()

    features = {}
    for column, values in data.first.items():
        shape = list(values.shape[1:]) or [1]
        features[column] = {"dtype": str(values.dtype), "shape": shape, "names": None}
    info = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(last),
        "total_frames": data.num_rows,
        "total_tasks": 1,
        "chunks_size": _FILES_PER_CHUNK,
        "data_files_size_in_mb": _FILE_MB,
        "video_files_size_in_mb": _FILE_MB,
        "fps": int(fps),
        "splits": {"train": f"0:{len(last)}"},
        "data_path": _DATA,
        "video_path": None,
        "features": features,
        FORMAT: 1,
    }
    _write_json(folder / INFO, info)
    described = {column: values.describe() for column, values in data.statistics.items()}
    _write_json(folder / "meta/stats.json", described)
    _write_tables(folder / _EPISODES, [data.episodes(task)])
    _write_tables(folder / "meta/tasks.parquet", [_tasks(task)])
    _write_last(folder / FINAL, last)


def _trajectories(stores: Sequence[Store]) -> Iterator[TensorDictBase]:
    """Yield the trajectories ``[L]`` that have a step."""
    num_empty = 0
    for store in stores:
        for number, length in enumerate(store.lengths.tolist()):
            if length < 2:
                num_empty += 1
                continue
            yield store.get([number])[0]
    if num_empty:
        print_stderr(f"data: {num_empty} trajectories without a step are left out")


def _episode(trajectory: TensorDictBase, number: int) -> tuple[Columns, Columns]:
    """Return the rows of a trajectory ``[L]``, and its last observations.

    Raises:
        UsageError: It is not a whole episode, or an entry cannot be stored.
    """
    name = f"{OWNER}: trajectory {number}"
    step_index = trajectory.get("step_index", None)
    is_start = step_index is None or not bool(step_index[:1].any())
    condition = "be 0: whole episodes are written, not parts of them"
    require(name, "first step_index", "others", is_start, condition)

    rows: Columns = {}
    final: Columns = {"episode_index": np.array([number])}
    for key in trajectory.keys(True, True):
        if key == "mask" or (key in CONTEXT and key != "trial_start"):
            continue
        column = _column(key)
        condition = "be of one entry, the names of entries give it twice"
        require(name, f"column {column!r}", key, column not in rows, condition)
        values = _to_numpy(trajectory.get(key), f"{name}: entry {key!r}")
        rows[column] = values[:-1]
        if key != "action" and not column.startswith("next."):
            final[column] = values[-1:]
    for column in ("action", "next.reward", "next.terminated", "next.truncated"):
        require(name, "columns", sorted(rows), column in rows, f"include {column!r}")
    done = np.zeros(len(trajectory) - 1, bool)
    for column in ("next.terminated", "next.truncated"):
        flags = rows[column]
        require(name, f"shape of {column!r}", flags.shape, flags.shape == done.shape, "be [T, 1]")
        done |= flags != 0
    is_end = done.tolist() == [False] * (len(done) - 1) + [True]
    ends = np.flatnonzero(done)[:3].tolist()
    require(name, "ends", ends, is_end, f"be the last of the {len(done)} steps alone")
    rows["next.done"] = done
    return rows, final


def _column(key: NestedKey) -> str:
    """Return the column of an entry."""
    if isinstance(key, tuple) and key[0] == "next":
        return ".".join(key)
    return str(key) if key in ("action", "trial_start", *SHOWN) else column_of(key)


def _to_numpy(values: torch.Tensor, name: str) -> Array:
    """Return the rows of an entry; single numbers have no dimension, as in LeRobot."""
    dtype = str(values.dtype).removeprefix("torch.")
    require(name, "dtype", dtype, dtype in _DTYPES, f"be one of {', '.join(_DTYPES)}")
    is_finite = bool(values.isfinite().all())
    require(name, "values", "NaN or infinite numbers", is_finite, "be finite")
    array: Array = values.cpu().contiguous().numpy()
    return array.reshape(len(array)) if array.shape[1:] in ((), (1,)) else array


@dataclass
class _DataFiles:
    """Writer of the data files, which begins another one whenever a file is large.

    Args:
        folder: Folder of the dataset.

    Attributes:
        first: Rows of the first episode.
        num_rows: Number of rows added.
        statistics: Statistics of the columns, complete once all is written.
    """

    folder: Path
    first: Columns = field(default_factory=dict)
    num_rows: int = 0
    statistics: dict[str, "_Statistics"] = field(default_factory=dict)
    _waiting: list[Columns] = field(default_factory=list)
    _num_bytes: int = 0
    _num_files: int = 0
    _open: Any = None
    _writer: Any = None
    _lengths: list[int] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)

    def add(self, rows: Columns) -> None:
        """Add the rows of an episode."""
        if not self.first:
            self.first = rows
        found = {column: (values.shape[1:], values.dtype) for column, values in rows.items()}
        for column, values in self.first.items():
            condition = f"be {values.shape[1:]} of {values.dtype}, as in the first trajectory"
            fits = found.pop(column, None) == (values.shape[1:], values.dtype)
            require(OWNER, f"column {column!r}", "another", fits, condition)
        require(OWNER, "columns", sorted(found), not found, "be those of the first trajectory")
        self._waiting.append(rows)
        self._lengths.append(len(rows["action"]))
        self.num_rows += self._lengths[-1]
        self._num_bytes += sum(values.nbytes for values in rows.values())
        if self._num_bytes >= _ROW_GROUP:
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write the rows of episodes as row groups; the file is closed if it is large."""
        if not self._waiting:
            return
        joined = {}
        for column in self.first:
            joined[column] = np.concatenate([rows[column] for rows in self._waiting])
            self.statistics.setdefault(column, _Statistics()).add(joined[column])
        for table in _tables(joined):
            if self._writer is None:
                chunk, file = divmod(self._num_files, _FILES_PER_CHUNK)
                path = self.folder / _DATA.format(chunk_index=chunk, file_index=file)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._open = create_file(path)
                self._writer = _writer(self._open, table.schema)
                self._num_files += 1
            self._writer.write_table(table)
        self._places += [self._num_files - 1] * len(self._waiting)
        self._waiting = []
        self._num_bytes = 0
        if self._open.tell() >= _FILE_MB * 10**6:
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            _sync(self._open)
            self._open.close()
        self._writer = self._open = None

    def close(self) -> None:
        """Write what is left."""
        self._write_waiting()
        self._close_file()

    def episodes(self, task: str) -> Any:
        """Return the metadata of the episodes as a table of pyarrow."""
        pyarrow = import_extra("pyarrow")
        lengths = np.array(self._lengths)
        ends = lengths.cumsum()
        places = np.array(self._places)
        zeros = np.zeros_like(lengths)
        columns = {
            "episode_index": np.arange(len(lengths)),
            "length": lengths,
            "data/chunk_index": places // _FILES_PER_CHUNK,
            "data/file_index": places % _FILES_PER_CHUNK,
            "dataset_from_index": ends - lengths,
            "dataset_to_index": ends,
            "meta/episodes/chunk_index": zeros,
            "meta/episodes/file_index": zeros,
        }
        arrays = {name: pyarrow.array(values) for name, values in columns.items()}
        tasks = pyarrow.array([[task]] * len(lengths), pyarrow.list_(pyarrow.string()))
        return pyarrow.table({**arrays, "tasks": tasks})


class _Statistics:
    """Statistics of a column over all rows, merged part by part."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._least: Any = None
        self._most: Any = None

    def add(self, values: Array) -> None:
        """Add rows ``[R, ...]``."""
        least, most = values.min(0), values.max(0)
        self._least = least if self._least is None else np.minimum(self._least, least)
        self._most = most if self._most is None else np.maximum(self._most, most)
        # The merge of Chan et al. does not lose digits, as a sum of squares would.
        exact = values.astype(np.float64)
        count = self._count + len(exact)
        mean = exact.mean(0)
        change = mean - self._mean
        self._squares = self._squares + ((exact - mean) ** 2).sum(0)
        self._squares = self._squares + change**2 * (self._count * len(exact) / count)
        self._mean = self._mean + change * (len(exact) / count)
        self._count = count

    def describe(self) -> dict[str, list[Any]]:
        """Return the statistics in lists, as LeRobot stores them."""
        found = {
            "min": self._least,
            "max": self._most,
            "mean": self._mean,
            "std": np.sqrt(self._squares / self._count),
        }
        described = {name: np.atleast_1d(values).tolist() for name, values in found.items()}
        return {**described, "count": [self._count]}


def _tables(columns: Columns) -> Iterator[Any]:
    """Yield tables of pyarrow with the rows of columns, of at most `_ROW_GROUP` bytes or one row.

    The lists in an array of pyarrow begin at places of 32 bits.
    """
    pyarrow = import_extra("pyarrow")
    num_rows = max(len(values) for values in columns.values())
    num_bytes = sum(values.nbytes for values in columns.values())
    step = max(1, num_rows * _ROW_GROUP // max(1, num_bytes))
    for first in range(0, num_rows, step):
        arrays = {}
        for name, values in columns.items():
            arrays[name] = _to_arrow(values[first : first + step])
        yield pyarrow.table(arrays)


def _to_arrow(values: Array) -> Any:
    """Return rows ``[R, ...]`` as numbers, lists of fixed length, or nested lists."""
    pyarrow = import_extra("pyarrow")
    array = pyarrow.array(values.reshape(-1))
    if values.ndim == 2 and values.shape[1] > 0:
        return pyarrow.FixedSizeListArray.from_arrays(array, values.shape[1])
    for axis in range(values.ndim - 1, 0, -1):
        num_lists = int(np.prod(values.shape[:axis]))
        offsets = np.arange(num_lists + 1, dtype=np.int32) * np.int32(values.shape[axis])
        array = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), array)
    return array


def _tasks(task: str) -> Any:
    """Return the table of tasks, whose texts are the index of a table of pandas in LeRobot."""
    pyarrow = import_extra("pyarrow")
    columns = []
    for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object")):
        column = {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype}
        columns.append({**column, "metadata": None})
    index = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    described = {
        "index_columns": ["task"],
        "column_indexes": [{**index, "metadata": {"encoding": "UTF-8"}}],
        "columns": columns,
    }
    table = pyarrow.table({"task_index": pyarrow.array([0], pyarrow.int64()), "task": [task]})
    return table.replace_schema_metadata({"pandas": json.dumps(described)})


def _write_last(path: Path, last: list[Columns]) -> None:
    """Write the last observations, a row per episode."""
    columns = {}
    for column in last[0]:
        columns[column] = np.concatenate([rows[column] for rows in last])
    _write_tables(path, _tables(columns))


def _write_tables(path: Path, tables: Iterable[Any]) -> None:
    """Write at least one table of pyarrow as a file, a row group each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with create_file(path) as file:
        writer: Any = None
        for table in tables:
            writer = writer or _writer(file, table.schema)
            writer.write_table(table)
        writer.close()
        _sync(file)


def _writer(file: Any, schema: Any) -> Any:
    """Return a writer of Parquet.

    The size of a file must bound the memory that its columns take, by which `yamame.data.sizes`
    tells them from harmful ones. So there are no dictionaries, and values of less than four bytes
    are not compressed; Parquet stores small integers in four.
    """
    parquet = import_extra("pyarrow.parquet")
    types = import_extra("pyarrow").types
    codecs = {}
    for column in schema:
        path, kind = column.name, column.type
        while types.is_list(kind) or types.is_fixed_size_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        is_small = types.is_boolean(kind) or types.is_float16(kind)
        codecs[path] = "none" if is_small else "snappy"
    return parquet.ParquetWriter(
        file, schema, compression=codecs, use_dictionary=False, write_page_checksum=True
    )


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with create_file(path) as file:
        file.write((json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
        _sync(file)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
