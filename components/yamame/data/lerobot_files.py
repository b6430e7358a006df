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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tensordict.utils import NestedKey

from yamame.checks import ArgumentError, UsageError, require
from yamame.data.format import TrajectoryFormat, as_flags
from yamame.data.parquet_files import ParquetFile, check_rows
from yamame.data.sizes import Sizes
from yamame.data.tables import SHOWN, unused
from yamame.files.paths import check_tree, inside, read_regular
from yamame.spaces.arrays import Array
from yamame.system.messages import format_value, one_line, print_stderr

Ends = Literal["terminated", "truncated"]
INFO = "meta/info.json"
FINAL = "meta/final.parquet"
"""Observations after the last action, a row per episode."""
FORMAT = "yamame_format"
"""Entry of `INFO` in datasets of `yamame.data.lerobot_export`, the version of their additions."""
OBSERVATION = "observation"
_STATE = "observation.state"
_COUNTERS = ("timestamp", "index", "task_index", "episode_index", "frame_index")
_FLAGS = {
    "next.success": "success",
    "next.terminated": "terminated",
    "next.truncated": "truncated",
    "next.done": "done",
}
"""Columns of flags, and their entries of a table (`yamame.data.tables`)."""
_VERSIONS = {"v2.0": 2, "v2.1": 2, "v3.0": 3}
_FIELDS = {
    2: {"episode_chunk", "episode_index"},
    3: {"chunk_index", "file_index"},
}
"""Fields of ``data_path``, by version."""
_FIELD = re.compile(r"\{([a-z_]+)(?::0(\d{1,2})d)?\}")
_LONGEST_METADATA = 2**27
_MOST_EPISODES = 10**7
_LARGEST = 10**8
"""Largest number of an episode or a file, and largest length."""


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
class _Episodes:
    """Episodes in the metadata.

    Attributes:
        numbers: Numbers of the episodes ``[E]``.
        lengths: Their steps ``[E]``.
        places: Values of the fields of the path of the file that holds each, ``[E]`` by name.
    """

    numbers: Array
    lengths: Array
    places: Mapping[str, Array]

    def in_order(self) -> "_Episodes":
        """Return the episodes in the order of their numbers."""
        return self.at(self.numbers.argsort(kind="stable"))

    def at(self, rows: Array) -> "_Episodes":
        """Return some of the episodes."""
        places = {name: values[rows] for name, values in self.places.items()}
        return _Episodes(self.numbers[rows], self.lengths[rows], places)

    def by_file(self, fields: Iterable[str]) -> Iterator["_Episodes"]:
        """Yield the episodes of one file after the other, by the fields that its path has."""
        keys = np.zeros_like(self.numbers)
        for name in fields:
            # There are at most two.
            keys = keys * (_LARGEST + 1) + self.places[name]
        _, first, files, counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        rows = files.argsort(kind="stable")
        ends = counts.cumsum()
        for file in first.argsort():
            yield self.at(rows[ends[file] - counts[file] : ends[file]])


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
        final = self._read_final() if self.is_ours else None
        for episodes in self._episodes.by_file(self._info.fields):
            path = inside(self._folder, self._info.data_file(episodes.places))
            with ParquetFile(path, self._sizes) as parquet:
                yield str(path), self._table(parquet, str(path), episodes, final)

    def _read_episodes(self) -> _Episodes:
        """Return the episodes in the order of their numbers."""
        is_old = self._info.version == 2
        episodes = (self._episodes_of_v2() if is_old else self._episodes_of_v3()).in_order()
        numbers = episodes.numbers
        require(self._name, "episodes", 0, len(numbers) > 0, "be at least 1")
        twice = numbers[1:][numbers[1:] == numbers[:-1]][:1].tolist()
        require(self._name, "episode_index", twice, not twice, "be of one episode")
        # A copy that was interrupted can lack files at the end.
        self._check_total("total_episodes", "episodes", len(numbers))
        self._check_total("total_frames", "steps", int(episodes.lengths.sum()))
        return episodes

    def _check_total(self, key: str, name: str, found: int) -> None:
        """Raise if the metadata declare another total than is found."""
        total = self._info.content.get(key)
        is_same = total is None or (type(total) is int and total == found)
        condition = f"be {format_value(total)}, as in info.json"
        require(self._name, name, found, is_same, condition, remedy="download the dataset again")

    def _episodes_of_v2(self) -> _Episodes:
        path = inside(self._folder, "meta/episodes.jsonl")
        found: dict[str, list[int]] = {"episode_index": [], "length": []}
        # Texts may hold other ends of lines.
        for number, line in enumerate(_read(path).split("\n"), 1):
            if not line.strip():
                continue
            place = f"{path}: line {number}"
            row = _parse(line, place)
            for (key, values), least in zip(found.items(), (0, 1), strict=True):
                require(place, "entries", sorted(row), key in row, f"hold {key!r}")
                value = row[key]
                fits = type(value) is int and least <= value <= _LARGEST
                require(place, key, value, fits, f"be in {least}..{_LARGEST}")
                values.append(value)
        numbers = np.array(found["episode_index"], np.int64)
        places = {"episode_index": numbers, "episode_chunk": numbers // self._info.chunks_size}
        return _Episodes(numbers, np.array(found["length"], np.int64), places)

    def _episodes_of_v3(self) -> _Episodes:
        files = sorted((self._folder / "meta/episodes").glob("chunk-*/file-*.parquet"))
        condition = "include meta/episodes/chunk-000/file-000.parquet"
        require(self._name, "files", [], bool(files), condition)
        least = {"episode_index": 0, "length": 1, "data/chunk_index": 0, "data/file_index": 0}
        parts: dict[str, list[Array]] = {key: [] for key in least}
        num_rows = 0
        for path in files:
            with ParquetFile(path, self._sizes) as parquet:
                num_rows += parquet.num_rows
                condition = f"be at most {_MOST_EPISODES}"
                require(self._name, "episodes", num_rows, num_rows <= _MOST_EPISODES, condition)
                for key, values in parts.items():
                    values.append(parquet.read_numbers(key, least=least[key], most=_LARGEST))
        columns = {key: np.concatenate(values) for key, values in parts.items()}
        places = {key: columns[f"data/{key}"] for key in ("chunk_index", "file_index")}
        return _Episodes(columns["episode_index"], columns["length"], places)

    def _table(
        self,
        parquet: ParquetFile,
        name: str,
        episodes: _Episodes,
        final: Mapping[str, Array] | None,
    ) -> dict[str, Any]:
        """Read the rows of a file as a table."""
        numbers, lengths = episodes.numbers, episodes.lengths
        num_rows = int(lengths.sum())
        condition = f"be {num_rows}, the sum of the lengths of its {len(numbers)} episodes"
        require(name, "rows", parquet.num_rows, parquet.num_rows == num_rows, condition)

        places = self._find_columns(parquet.columns, name)
        optional = [column for column in ("next.reward", *_FLAGS) if column in parquet.columns]
        names = {"action", "episode_index", "frame_index", *places.values(), *optional}
        columns = parquet.read(sorted(names))
        ends = lengths.cumsum() - 1
        condition = "its episode in the metadata"
        label = f"{name}: column 'episode_index'"
        check_rows(label, columns["episode_index"], numbers.repeat(lengths), condition)
        frames = np.arange(num_rows) - (ends + 1 - lengths).repeat(lengths)
        condition = "its step in the episode"
        check_rows(f"{name}: column 'frame_index'", columns["frame_index"], frames, condition)

        table: dict[str, Any] = {"actions": columns["action"]}
        for column, entry in _FLAGS.items():
            if column in columns:
                table[entry] = _flags(columns[column], name, f"column {column!r}")
        self._set_ends(table, ends, name)
        table["rewards"] = columns.get("next.reward", np.zeros(num_rows, np.float32))
        if "next.reward" not in columns:
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

    def _set_ends(self, table: dict[str, Any], ends: Array, name: str) -> None:
        """Replace the flags of the ends of episodes, which are their last rows.

        An end that is not truncated is terminated, and the other way round, if there is a column
        for one of them alone.
        """
        is_end = np.zeros(int(ends[-1]) + 1, bool)
        is_end[ends] = True
        done = table.pop("done", None)
        flags = {key: table.get(key) for key in ("terminated", "truncated")} | {"done": done}
        for key, flag in flags.items():
            if flag is None:
                continue
            early = np.flatnonzero(flag & ~is_end)
            condition = "be false before the last row of an episode"
            found = f"true in row {early[:1]}"
            require(name, f"column 'next.{key}'", found, not len(early), condition)

        truncated = np.zeros(len(is_end), bool)
        if "terminated" in table:
            terminated = table["terminated"]
            truncated = table.get("truncated", truncated)
        elif "truncated" in table:
            truncated = table["truncated"]
            terminated = (is_end if done is None else done) & ~truncated
        elif self._ends == "terminated":
            # Without a column of ends, all episodes count as complete.
            terminated = is_end if done is None else done
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
            numbers = parquet.read_numbers("episode_index", least=0, most=_LARGEST)
            return {**parquet.read(places.values()), "episode_index": numbers}

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
        chunks_size: Episodes per chunk, in version 2.
        fields: Fields of the path of a data file.

    Raises:
        UsageError: An entry is missing or wrong.
    """

    def __init__(self, folder: Path) -> None:
        path = inside(folder, INFO)
        name = str(path)
        self.content = _parse(_read(path), name)
        text = self.content.get("codebase_version")
        is_known = isinstance(text, str) and text in _VERSIONS
        condition = "be v2.0, v2.1 or v3.0"
        remedy = "convert the dataset with the scripts of LeRobot"
        require(name, "codebase_version", text, is_known, condition, remedy=remedy)
        self.version = _VERSIONS[str(text)]
        found = self.content.get(FORMAT, 1)
        remedy = "update yamame, or write the dataset again"
        is_known = type(found) is int and found == 1
        require(name, FORMAT, found, is_known, "be 1", remedy=remedy)
        features = self.content.get("features")
        is_object = isinstance(features, dict)
        require(name, "features", type(features).__name__, is_object, "be an object")
        self.features: Mapping[str, Any] = features if isinstance(features, dict) else {}
        self.chunks_size = self.content.get("chunks_size", 1000)
        fits = type(self.chunks_size) is int and 0 < self.chunks_size <= _LARGEST
        require(name, "chunks_size", self.chunks_size, fits, f"be in 1..{_LARGEST}")

        template = self.content.get("data_path")
        require(name, "data_path", template, isinstance(template, str), "be a text")
        self._template = str(template)
        # Not str.format, by which a text could name attributes and make texts of any length.
        self.fields = {match[1] for match in _FIELD.finditer(self._template)}
        known = _FIELDS[self.version]
        rest = _FIELD.sub("", self._template)
        fits = self.fields <= known and "{" not in rest and "}" not in rest
        condition = f"have fields {sorted(known)} alone, as {{{min(known)}:03d}}"
        require(name, "data_path", template, fits, condition)

    def data_file(self, places: Mapping[str, Array]) -> str:
        """Return the path of the file of some episodes, relative to the folder of the dataset."""

        def value_of(match: re.Match[str]) -> str:
            return str(places[match[1]][0]).zfill(int(match[2] or 0))

        return _FIELD.sub(value_of, self._template)


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


def _flags(column: Array, name: str, label: str) -> Array:
    """Return a column of flags ``[num_rows, 1]`` as bool ``[num_rows]``."""
    require(name, f"shape of {label}", column.shape[1:], column.shape[1:] == (1,), "be one flag")
    # torch cannot compare all dtypes of files.
    flags: Array = as_flags(torch.from_numpy(column[:, 0].astype(np.float64)), name, label).numpy()
    return flags


def _rows_of(final: Mapping[str, Array], numbers: Array, name: str) -> Array:
    """Return the rows of episodes in the file of last observations."""
    stored = final["episode_index"]
    order = stored.argsort(kind="stable")
    ordered = stored[order]
    twice = ordered[1:][ordered[1:] == ordered[:-1]][:3].tolist()
    require(name, "episodes with several rows", twice, not twice, "have one")
    rows = np.searchsorted(ordered, numbers).clip(max=len(order) - 1)
    rows = order[rows] if len(order) else rows
    is_found = stored[rows] == numbers if len(order) else np.zeros(len(numbers), bool)
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
