"""Reading of datasets in the layout of LeRobot, versions v2.0, v2.1 and v3.0.

A dataset is a folder. ``meta/info.json`` names the version, the columns and the Parquet files, in
which every row is a step: the observation, the action that followed it, and the outcome of this
action.

=============================  =======================  ==========================================
column                         shape                    meaning
=============================  =======================  ==========================================
``observation.<name>``         ``[T, ...]``             observation before the action
``action``                     ``[T, ...]``             action
``next.reward``                ``[T]``                  reward
``next.done``                  ``[T]``                  end of the episode, in its last row
``next.success``               ``[T]``                  optional
``episode_index``              ``[T]``                  number of the episode
``frame_index``                ``[T]``                  step of the episode, from 0
=============================  =======================  ==========================================

The layout has no observation after the last action, and does not distinguish terminated from
truncated episodes. `yamame.data.lerobot_export` adds columns and a file for both
(``next.terminated``, ``next.truncated`` and `FINAL`).

Source: LeRobot, https://github.com/huggingface/lerobot, dataset versions v2.1 and v3.0.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tensordict.utils import NestedKey

from yamame.checks import ArgumentError, UsageError, require
from yamame.data.format import TrajectoryFormat
from yamame.data.parquet_files import ParquetFile, check_rows
from yamame.data.sizes import Sizes
from yamame.data.tables import SHOWN, unused
from yamame.files.paths import check_tree, inside, read_regular
from yamame.spaces.arrays import Array
from yamame.system.messages import one_line, print_stderr

Ends = Literal["terminated", "truncated"]
INFO = "meta/info.json"
FINAL = "meta/final.parquet"
"""Observations after the last action, a row per episode."""
FORMAT = "yamame_format"
"""Entry of `INFO` in datasets of `yamame.data.lerobot_export`."""
OBSERVATION = "observation"
_STATE = "observation.state"
_COUNTERS = ("timestamp", "index", "task_index", "episode_index", "frame_index")
_FLAGS = {
    "next.reward": "rewards",
    "next.success": "success",
    "next.terminated": "terminated",
    "next.truncated": "truncated",
}
"""Columns and the entries of a table (`yamame.data.tables`) that they are."""
_VERSION = re.compile(r"v(2|3)\.\d+")
_FIELD = re.compile(r"\{([a-z_]+)(?::0(\d{1,2})d)?\}")
_LONGEST_METADATA = 2**27
_MOST_EPISODES = 10**8


def column_of(key: NestedKey) -> str:
    """Return the column of an observation.

    >>> column_of("observation"), column_of(("observation", "camera")), column_of("position")
    ('observation.state', 'observation.camera', 'observation.position')
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    if parts[0] == OBSERVATION:
        parts = parts[1:]
    return ".".join([OBSERVATION, *parts]) if parts else _STATE


@dataclass(frozen=True)
class _Episode:
    """An episode in the metadata: its number, its steps, and the file that holds it."""

    number: int
    length: int
    file: str


class LeRobotDataset:
    """A dataset in the layout of LeRobot.

    Args:
        folder: The dataset.
        format: Format of the environment to learn for.
        ends: Meaning of ``next.done``, as for `yamame.data.lerobot`.
        sizes: Sum of the sizes of what is read.

    Attributes:
        is_ours: Whether `yamame.data.lerobot_export` wrote it: actions count from 0, and the
            observations after the last actions are known.

    Raises:
        UsageError: The folder is no dataset, is damaged, or holds links.
    """

    def __init__(self, folder: Path, format: TrajectoryFormat, *, ends: Ends, sizes: Sizes) -> None:
        self._folder = folder
        self._name = str(folder)
        self._format = format
        self._ends = ends
        self._sizes = sizes
        is_dataset = (folder / INFO).is_file()
        condition = f"be the folder of a LeRobot dataset (it holds {INFO})"
        require("data", "path", self._name, is_dataset, condition)
        check_tree(folder)
        self._info = _Info(folder)
        self.is_ours = FORMAT in self._info.content
        self._episodes = self._read_episodes()
        # Lines about missing columns are printed once per dataset.
        self._reported: set[str] = set()

    def tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Read the data files, one after the other.

        Yields:
            Name of the file, and the table (`yamame.data.tables`) of its episodes.

        Raises:
            UsageError: A file is missing or damaged, a column is missing, or the rows are not those
                of the metadata.
        """
        by_file: dict[str, list[_Episode]] = {}
        for episode in self._episodes:
            by_file.setdefault(episode.file, []).append(episode)
        final = self._read_final() if self.is_ours else None
        for file, episodes in by_file.items():
            path = inside(self._folder, file)
            with ParquetFile(path, self._sizes) as parquet:
                yield str(path), self._table(parquet, str(path), episodes, final)

    def _read_episodes(self) -> list[_Episode]:
        """Return the episodes in the order of their numbers."""
        rows = self._rows_of_v2() if self._info.version == 2 else self._rows_of_v3()
        episodes = []
        for place, row in rows:
            number, length = row["episode_index"], row["length"]
            for label, value, least in (("episode_index", number, 0), ("length", length, 1)):
                fits = type(value) is int and least <= value <= _MOST_EPISODES
                require(place, label, value, fits, f"be in {least}..{_MOST_EPISODES}")
            episodes.append(_Episode(number, length, self._info.data_file(row)))
        episodes.sort(key=lambda episode: episode.number)
        require(self._name, "episodes", 0, bool(episodes), "be at least 1")
        for before, episode in pairwise(episodes):
            is_new = before.number != episode.number
            require(self._name, "episode_index", episode.number, is_new, "be of one episode")
        return episodes

    def _rows_of_v2(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        path = inside(self._folder, "meta/episodes.jsonl")
        # Texts may hold other ends of lines.
        for number, line in enumerate(_read(path).split("\n"), 1):
            if not line.strip():
                continue
            place = f"{path}: line {number}"
            row = _parse(line, place)
            for key in ("episode_index", "length"):
                require(place, "entries", sorted(row), key in row, f"hold {key!r}")
            yield place, row

    def _rows_of_v3(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        files = sorted((self._folder / "meta/episodes").glob("chunk-*/file-*.parquet"))
        condition = "include meta/episodes/chunk-000/file-000.parquet"
        require(self._name, "files", [], bool(files), condition)
        names = ("episode_index", "length", "data/chunk_index", "data/file_index")
        for path in files:
            with ParquetFile(path, self._sizes) as parquet:
                columns = parquet.read(names)
                for row in range(parquet.num_rows):
                    place = f"{path}: row {row}"
                    values = {}
                    for key, column in columns.items():
                        value = column[row].tolist()
                        is_number = len(value) == 1 and type(value[0]) is int and value[0] >= 0
                        require(place, key, value, is_number, "be a number, at least 0")
                        values[key] = value[0]
                    yield place, values

    def _table(
        self,
        parquet: ParquetFile,
        name: str,
        episodes: list[_Episode],
        final: Mapping[str, Array] | None,
    ) -> dict[str, Any]:
        """Read the rows of a file as a table."""
        lengths = np.array([episode.length for episode in episodes])
        num_rows = int(lengths.sum())
        condition = f"be {num_rows}, the sum of the lengths of its {len(episodes)} episodes"
        require(name, "rows", parquet.num_rows, parquet.num_rows == num_rows, condition)

        places = self._find_columns(parquet.columns, name)
        flags = [column for column in (*_FLAGS, "next.done") if column in parquet.columns]
        names = {"action", "episode_index", "frame_index", *places.values(), *flags}
        columns = parquet.read(sorted(names))
        ends = lengths.cumsum() - 1
        numbers = np.array([episode.number for episode in episodes])
        condition = "its episode in the metadata"
        label = f"{name}: column 'episode_index'"
        check_rows(label, columns["episode_index"], numbers.repeat(lengths), condition)
        frames = np.arange(num_rows) - (ends + 1 - lengths).repeat(lengths)
        condition = "its step in the episode"
        check_rows(f"{name}: column 'frame_index'", columns["frame_index"], frames, condition)

        table: dict[str, Any] = {"actions": columns["action"]}
        for column in flags:
            if column in _FLAGS:
                table[_FLAGS[column]] = columns[column]
        self._set_ends(table, columns.get("next.done"), ends, name)
        if "rewards" not in table:
            table["rewards"] = np.zeros(num_rows, np.float32)
            self._report("there is no column next.reward: rewards are 0, which suits agent=bc")
        _set_observations(table, columns, places)
        if final is not None:
            place = str(self._folder / FINAL)
            rows = _rows_of(final, numbers, place)
            following = {}
            for column in places.values():
                condition = f"include {column!r}, as {name}"
                require(place, "columns", sorted(final), column in final, condition)
                following[column] = _following(columns[column], final[column][rows], ends)
            _set_observations(table, following, places, prefix="next_")
        for column in set(parquet.columns) - names - set(_COUNTERS):
            # Only the name is of interest, unless it is that of an entry.
            table.update(dict.fromkeys(unused({column: None})))
        return table

    def _find_columns(self, found: list[str], name: str) -> dict[NestedKey, str]:
        """Return the columns of the environment's observations and of entries beside them."""
        places: dict[NestedKey, str] = {}
        observed = [key for key in self._format.observed if key not in SHOWN]
        candidates = [column for column in found if column.startswith(f"{OBSERVATION}.")]
        for key in observed:
            wanted = [column_of(key)]
            if len(observed) == 1:
                # Whatever its name, there is one observation.
                wanted += [OBSERVATION, _STATE, *(candidates if len(candidates) == 1 else [])]
            column = next((column for column in wanted if column in found), None)
            if column is None:
                raise self._missing(wanted, found, name)
            places[key] = column
        for key in [*(key for key in self._format.observed if key in SHOWN), "trial_start"]:
            # The reader of tables knows which of these entries can be missing.
            if key in found:
                places[key] = str(key)
        twice = [column for column, count in Counter(places.values()).items() if count > 1]
        condition = "be of different observations"
        require(self._name, "columns", twice, not twice, condition)
        return places

    def _missing(self, wanted: list[str], found: list[str], name: str) -> UsageError:
        """Return the error about an observation that no column holds."""
        remedy = "rename a column, or adapt the observation space of the environment"
        for column in wanted:
            feature = self._info.features.get(column)
            if isinstance(feature, Mapping) and feature.get("dtype") == "video":
                remedy = (
                    f"{column!r} is a video, and videos are not read: store its frames as numbers"
                )
        columns = sorted(column for column in found if column.startswith(OBSERVATION))
        condition = f"include {wanted[0]!r}"
        return ArgumentError(name, "columns of observations", columns, condition, remedy=remedy)

    def _set_ends(self, table: dict[str, Any], done: Array | None, ends: Array, name: str) -> None:
        """Add the flags of the ends of episodes, which are their last rows."""
        is_end = np.zeros(int(ends[-1]) + 1, bool)
        is_end[ends] = True
        flags = [table[key] for key in ("terminated", "truncated") if key in table]
        column = "next.terminated' or 'next.truncated" if flags else "next.done"
        if not flags and done is not None:
            flags = [done]
        for flag in flags:
            is_single = flag.shape == (len(is_end), 1)
            require(name, f"shape of {column!r}", flag.shape[1:], is_single, "be one flag")
        is_set = np.zeros(len(is_end), bool)
        for flag in flags:
            is_set |= flag[:, 0] != 0
        early = np.flatnonzero(is_set & ~is_end)
        condition = "be false before the last row of an episode"
        require(name, f"column {column!r}", f"true in row {early[:1]}", not len(early), condition)

        truncated = np.zeros(len(is_end), bool)
        if "terminated" in table or "truncated" in table:
            truncated = table.get("truncated", np.zeros((len(is_end), 1)))[:, 0] != 0
            terminated = table.get("terminated", np.zeros((len(is_end), 1)))[:, 0] != 0
        elif self._ends == "terminated":
            # Without a column of ends, all episodes count as complete.
            terminated = is_end if done is None else is_set
            self._report(
                "episodes are read as terminated, and later values as 0; data.source.ends=truncated"
                " reads them as cut off, without their last step"
            )
        else:
            terminated = np.zeros(len(is_end), bool)
        table["terminated"] = terminated
        # Where both are stored, both are kept.
        table["truncated"] = truncated | (is_end & ~terminated)

    def _read_final(self) -> dict[str, Array]:
        """Read the observations after the last actions."""
        with ParquetFile(inside(self._folder, FINAL), self._sizes) as parquet:
            places = self._find_columns(parquet.columns, str(self._folder / FINAL))
            return parquet.read(["episode_index", *places.values()])

    def _report(self, message: str) -> None:
        """Print a line, once per dataset."""
        if message not in self._reported:
            self._reported.add(message)
            print_stderr(f"data: {self._name}: {message}")


class _Info:
    """Contents of ``meta/info.json``, checked.

    Args:
        folder: The dataset.

    Attributes:
        content: All entries.
        version: 2 or 3.
        features: Descriptions of columns, by name.

    Raises:
        UsageError: An entry is missing or wrong.
    """

    def __init__(self, folder: Path) -> None:
        path = inside(folder, INFO)
        self._name = str(path)
        self.content = _parse(_read(path), self._name)
        text = self.content.get("codebase_version")
        match = _VERSION.fullmatch(text) if isinstance(text, str) else None
        condition = "be v2.0, v2.1 or v3.0"
        remedy = "convert the dataset with the scripts of LeRobot"
        require(self._name, "codebase_version", text, match is not None, condition, remedy=remedy)
        assert match is not None
        self.version = int(match[1])
        features = self.content.get("features")
        is_object = isinstance(features, dict)
        require(self._name, "features", type(features).__name__, is_object, "be an object")
        self.features: Mapping[str, Any] = features if isinstance(features, dict) else {}
        self._template = self.content.get("data_path")
        is_text = isinstance(self._template, str)
        require(self._name, "data_path", self._template, is_text, "be a text")
        self._chunks_size = self.content.get("chunks_size", 1000)
        fits = type(self._chunks_size) is int and self._chunks_size > 0
        require(self._name, "chunks_size", self._chunks_size, fits, "be a positive number")

    def data_file(self, episode: Mapping[str, Any]) -> str:
        """Return the path of the file of an episode, relative to the folder of the dataset."""
        number = episode["episode_index"]
        values = {"episode_index": number, "episode_chunk": number // self._chunks_size}
        if self.version == 3:
            values = {
                "chunk_index": episode["data/chunk_index"],
                "file_index": episode["data/file_index"],
            }

        # Not str.format, by which a text could name attributes and make texts of any length.
        def value_of(match: re.Match[str]) -> str:
            condition = f"have fields {sorted(values)} alone"
            require(self._name, "data_path", self._template, match[1] in values, condition)
            return str(values[match[1]]).zfill(int(match[2] or 0))

        filled = _FIELD.sub(value_of, str(self._template))
        is_filled = "{" not in filled and "}" not in filled
        condition = f"have fields as {{{next(iter(values))}:03d}} alone"
        require(self._name, "data_path", self._template, is_filled, condition)
        return filled


def _read(path: Path) -> str:
    try:
        return read_regular(path, most=_LONGEST_METADATA).decode()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: must be an existing file, as of every dataset") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: must be a text in UTF-8: {one_line(error)}") from error


def _parse(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a text."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: must be JSON: {one_line(error)}") from error
    require(name, "content", type(content).__name__, isinstance(content, dict), "be an object")
    assert isinstance(content, dict)
    return content


def _set_observations(
    table: dict[str, Any],
    columns: Mapping[str, Array],
    places: Mapping[NestedKey, str],
    *,
    prefix: str = "",
) -> None:
    """Add observations to a table, nested as their keys, and the entries beside them."""
    tree: dict[str, Any] = {}
    for key, column in places.items():
        if key in (*SHOWN, "trial_start"):
            table[f"{prefix}{column}"] = columns[column]
            continue
        *parents, leaf = key if isinstance(key, tuple) else (key,)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = columns[column]
    if tree:
        table[f"{prefix}observations"] = tree


def _rows_of(final: Mapping[str, Array], numbers: Array, name: str) -> Array:
    """Return the rows of episodes in the file of last observations."""
    stored = final["episode_index"]
    order = stored[:, 0].argsort(kind="stable")
    rows = np.searchsorted(stored[order, 0], numbers).clip(max=len(order) - 1)
    rows = order[rows] if len(order) else rows
    is_found = stored[rows, 0] == numbers if len(order) else np.zeros(len(numbers), bool)
    missing = numbers[~is_found][:3].tolist()
    condition = "have a row, too"
    require(name, "episodes without a row", missing, not missing, condition)
    return rows


def _following(column: Array, last: Array, ends: Array) -> Array:
    """Return the values after each step: those of the next row, and ``last`` at ends."""
    condition = f"be {column.shape[1:]}, as in the rows"
    fits = last.shape[1:] == column.shape[1:]
    require(FINAL, "shape of a last observation", last.shape[1:], fits, condition)
    following = np.roll(column, -1, axis=0)
    following[ends] = last
    return following
