"""Reading of columns of numbers in Parquet files.

Files are opened by `yamame.files.paths`, and the sizes of columns are added up before they are
read: a few bytes of a file can stand for any number of equal values. Columns of other kinds, such
as texts and encoded pictures, are not read.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from yamame.checks import UsageError, require
from yamame.data.extras import import_extra
from yamame.data.parquet_sizes import count_bytes
from yamame.data.sizes import Sizes
from yamame.files.paths import open_regular
from yamame.spaces.arrays import Array
from yamame.system.messages import one_line


class ParquetFile:
    """An open Parquet file, to be used in a ``with`` block.

    Args:
        path: A regular file.
        sizes: Sum of the sizes of what is read.

    Attributes:
        columns: Names of the columns.
        num_rows: Number of rows.

    Raises:
        UsageError: The file is missing, a link or damaged.
    """

    def __init__(self, path: Path, sizes: Sizes) -> None:
        self._name = str(path)
        self._sizes = sizes
        self._pyarrow = import_extra("pyarrow")
        parquet = import_extra("pyarrow.parquet")
        try:
            self._file = open_regular(path)
        except FileNotFoundError as error:
            raise UsageError(f"{path}: must be an existing file, the metadata name it") from error
        try:
            self._stored = os.fstat(self._file.fileno()).st_size
            self._parquet = parquet.ParquetFile(self._file, page_checksum_verification=True)
            self.columns: list[str] = list(self._parquet.schema_arrow.names)
            self.num_rows = int(self._parquet.metadata.num_rows)
        except Exception as error:
            self._file.close()
            # Damaged files make pyarrow raise almost anything.
            raise self._damaged(error) from error

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._parquet.close()
        self._file.close()

    def _damaged(self, error: Exception) -> UsageError:
        reason = one_line(error)
        return UsageError(
            f"{self._name}: must be a whole Parquet file, it cannot be read: {reason}"
        )

    def read(self, names: Iterable[str]) -> dict[str, Array]:
        """Read columns of numbers, or of lists of numbers that all have one shape.

        Args:
            names: Columns of the file.

        Returns:
            Arrays ``[num_rows, ...]`` by name; columns of single numbers are ``[num_rows, 1]``.

        Raises:
            UsageError: A column holds something else, missing values or lists of different lengths
                (names the row), is damaged, or asks for far more memory than the file takes.
        """
        names = list(names)
        for name in names:
            self._check_type(name)
        try:
            self._sizes.add(self._name, count_bytes(self._file, names), self._stored)
            table = self._parquet.read(columns=names, use_threads=False)
            arrays = {}
            for name in names:
                arrays[name] = self._to_numpy(table.column(name), f"{self._name}: column {name!r}")
        except UsageError:
            raise
        except Exception as error:
            raise self._damaged(error) from error
        return arrays

    def _check_type(self, name: str) -> None:
        """Raise unless a column is of numbers or of lists of them."""
        condition = f"be among its columns {sorted(self.columns)}, once"
        is_once = self.columns.count(name) == 1
        require(self._name, f"column {name!r}", "none or several", is_once, condition)
        types = self._pyarrow.types
        found = self._parquet.schema_arrow.field(name).type
        inner = self._storage(found)
        while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
            inner = self._storage(inner.value_type)
        is_number = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
        condition = "be of numbers, or of lists of numbers"
        remedy = "pictures and texts are not read; store the numbers themselves"
        require(self._name, f"column {name!r}", str(found), is_number, condition, remedy=remedy)

    def _storage(self, found: Any) -> Any:
        """Return the type of the values of a type that another library has registered."""
        while isinstance(found, self._pyarrow.BaseExtensionType):
            found = found.storage_type
        return found

    def _to_numpy(self, column: Any, name: str) -> Array:
        parts = []
        first_row = 0
        shape: tuple[int, ...] | None = None
        for chunk in column.chunks:
            if len(chunk) == 0:
                continue
            part = self._chunk_to_numpy(chunk, name, first_row)
            condition = f"be {shape}, as in the rows before"
            is_same = shape in (None, part.shape[1:])
            require(name, f"shape in row {first_row}", part.shape[1:], is_same, condition)
            shape = part.shape[1:]
            parts.append(part)
            first_row += len(chunk)
        return np.concatenate(parts) if parts else np.zeros((0, 1))

    def _chunk_to_numpy(self, chunk: Any, name: str, first_row: int) -> Array:
        types = self._pyarrow.types
        num_rows = len(chunk)
        # Values of the chunk that belong to one row.
        per_row = 1
        shape: list[int] = []
        while True:
            while isinstance(chunk, self._pyarrow.ExtensionArray):
                chunk = chunk.storage
            if chunk.null_count:
                missing = int(np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))[0])
                row = first_row + missing // max(1, per_row)
                require(name, f"row {row}", "null", False, "hold numbers, none missing")
            if types.is_fixed_size_list(chunk.type):
                length = chunk.type.list_size
            elif types.is_list(chunk.type) or types.is_large_list(chunk.type):
                lengths = chunk.value_lengths().to_numpy(zero_copy_only=False)
                length = int(lengths[0]) if len(lengths) else 0
                wrong = np.flatnonzero(lengths != length)
                row = first_row + (int(wrong[0]) // max(1, per_row) if len(wrong) else 0)
                found = int(lengths[wrong[0]]) if len(wrong) else length
                condition = f"be {length}, as that of the row before"
                require(name, f"length of a list in row {row}", found, not len(wrong), condition)
            else:
                break
            chunk = chunk.flatten()
            per_row *= length
            shape.append(length)
        array: Array = chunk.to_numpy(zero_copy_only=False)
        return array.reshape(num_rows, *(shape or [1]))


def check_rows(name: str, column: Array, expected: Array, condition: str) -> None:
    """Raise unless a column has the expected number in every row.

    Args:
        name: Name of file and column in messages.
        column: ``[num_rows, 1]``.
        expected: ``[num_rows]``.
        condition: Description of what is expected, in words that follow "must".
    """
    is_single = column.shape == (len(expected), 1)
    require(name, "shape of a row", column.shape[1:], is_single, "be a single number")
    wrong = np.flatnonzero(column[:, 0] != expected)
    if len(wrong):
        row = int(wrong[0])
        text = f"be {expected[row]}, {condition}"
        require(name, f"row {row}", column[row, 0].item(), False, text)
