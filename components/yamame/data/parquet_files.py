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
                (names the row), is damaged, asks for far more memory than the file takes, or has
                another number of rows than the file declares.
        """
        names = list(names)
        for name in names:
            self._check_type(name)
        try:
            self._sizes.add(self._name, count_bytes(self._file, names), self._stored)
            # One after the other: a column of pyarrow is freed before the next one is read.
            return {name: self._read_column(name) for name in names}
        except UsageError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def read_numbers(self, name: str, *, least: int, most: int) -> Array:
        """Read a column of whole numbers.

        Args:
            name: Column of the file.
            least, most: Range of the numbers.

        Returns:
            ``[num_rows]`` int64.

        Raises:
            UsageError: A number is outside of the range (names the row), and as for `read`.
        """
        column = self.read([name])[name]
        label = f"{self._name}: column {name!r}"
        is_whole = column.dtype.kind in "iu" and column.shape[1:] == (1,)
        is_whole |= len(column) == 0
        found = f"{column.dtype} of shape {column.shape[1:]}"
        require(label, "row", found, is_whole, "be one whole number")
        numbers = column[:, 0]
        wrong = np.flatnonzero((numbers < least) | (numbers > most))
        row = int(wrong[0]) if len(wrong) else 0
        value = numbers[row].item() if len(wrong) else None
        require(label, f"row {row}", value, not len(wrong), f"be in {least}..{most}")
        return numbers.astype(np.int64)

    def _read_column(self, name: str) -> Array:
        try:
            column = self._parquet.read(columns=[name], use_threads=False).column(name)
        except self._pyarrow.ArrowInvalid as error:
            # pyarrow reads no missing lists of fixed size, and has no error of its own for them.
            found = self._storage(self._parquet.schema_arrow.field(name).type)
            if not self._pyarrow.types.is_fixed_size_list(found):
                raise
            condition = f"be whole, with a list in every row, none of them null: {one_line(error)}"
            raise UsageError(f"{self._name}: column {name!r} must {condition}") from error
        # The metadata declare rows that the pages need not have.
        is_whole = len(column) == self.num_rows
        condition = f"be {self.num_rows}, as its metadata declare"
        require(self._name, f"rows of column {name!r}", len(column), is_whole, condition)
        return self._to_numpy(column, f"{self._name}: column {name!r}")

    def _check_type(self, name: str) -> None:
        """Raise unless a column is of numbers or of lists of them."""
        count = self.columns.count(name)
        require(self._name, "columns", sorted(self.columns), count > 0, f"include {name!r}")
        require(self._name, f"columns of the name {name!r}", count, count == 1, "be 1")
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
        if len(parts) == 1:
            return parts[0]
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
        column: ``[num_rows, ...]``.
        expected: ``[num_rows]``.
        condition: Description of what is expected, in words that follow "must".
    """
    is_single = column.shape[1:] == (1,)
    require(name, "shape of a row", column.shape[1:], is_single, "be a single number")
    wrong = np.flatnonzero(column[:, 0] != expected)
    if len(wrong):
        row = int(wrong[0])
        text = f"be {expected[row]}, {condition}"
        require(name, f"row {row}", column[row, 0].item(), False, text)
