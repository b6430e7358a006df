"""Memory that columns of a Parquet file ask for, found before they are read.

The metadata of a file declare how many values a column has, but its pages can hold others: a run of
equal values takes a few bytes, whatever its length. The header of a page declares its values, and
is what a reader allocates memory for. So both are read here, from the bytes: pyarrow ends the
process when a description of a column is damaged and is looked at in Python.

Metadata and headers are structs of Thrift's compact protocol, see
https://github.com/apache/parquet-format.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any

_END = b"PAR1"
_LONGEST_HEADER = 2**10
_DEEPEST = 16
_WIDTHS = {0: 1, 1: 4, 2: 8, 4: 4, 5: 8}
"""Bytes of a value by its type: flags, whole numbers and floating point numbers of two sizes."""
_OTHER_WIDTH = 8
_LEVEL = 4
"""Bytes that a reader needs for the place of a value in a list."""

# Fields of the structs, by their numbers.
_ROW_GROUPS = 4
_COLUMNS, _NUM_ROWS = 1, 3
_COLUMN_METADATA = 3
_TYPE, _PATH, _NUM_VALUES, _COMPRESSED = 1, 3, 5, 7
_PAGES, _DICTIONARY = 9, 11
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED = 2, 3
_PAGES_OF_VALUES = (5, 7, 8)
"""Structs of data pages, dictionaries and data pages of version 2; their first field is the number
of values.
"""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)


def count_bytes(file: IO[bytes], names: Collection[str]) -> int:
    """Return the bytes of memory that columns ask for.

    Args:
        file: A Parquet file, open for reading.
        names: Names of columns.

    Raises:
        ValueError: The file is damaged.
    """
    file_size = file.seek(0, 2)
    num_bytes = 0
    for group in _structs(_read_metadata(file, file_size).get(_ROW_GROUPS, [])):
        num_rows = _number(group, _NUM_ROWS)
        if num_rows == 0:
            continue
        for chunk in _structs(group.get(_COLUMNS, [])):
            column = chunk.get(_COLUMN_METADATA)
            if not isinstance(column, dict):
                raise ValueError("a column must have metadata in the file itself")
            path = b".".join(column[_PATH]).decode()
            # pyarrow takes the texts before dots for the names of groups.
            if not any(path == name or path.startswith(f"{name}.") for name in names):
                continue
            width = _WIDTHS.get(_number(column, _TYPE), _OTHER_WIDTH) + _LEVEL
            in_pages, uncompressed = _count_pages(file, column, file_size)
            num_values = max(num_rows, _number(column, _NUM_VALUES), in_pages)
            num_bytes += max(num_values * width, uncompressed)
    return num_bytes


def _read_metadata(file: IO[bytes], file_size: int) -> dict[int, Any]:
    """Return the metadata at the end of a file."""
    file.seek(max(0, file_size - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _END or length > file_size - 12:
        raise ValueError("the metadata must stand at the end")
    file.seek(file_size - 8 - length)
    return _CompactReader(file.read(length)).read_struct()


def _structs(values: Any) -> Iterator[dict[int, Any]]:
    for value in values:
        if not isinstance(value, dict):
            raise ValueError("the metadata have a value in place of a struct")
        yield value


def _number(struct: Mapping[int, Any], field: int) -> int:
    """Return a field that must be a number, at least 0."""
    value = struct.get(field)
    if type(value) is not int or value < 0:
        raise ValueError(f"field {field} of the metadata must be a number, it is {value!r}")
    return value


def _count_pages(file: IO[bytes], column: Mapping[int, Any], file_size: int) -> tuple[int, int]:
    """Return the values in the pages of a column, dictionaries included, and their bytes."""
    place = _number(column, _PAGES)
    # Some writers store 0 where there is no dictionary.
    if column.get(_DICTIONARY):
        place = min(place, _number(column, _DICTIONARY))
    end = place + _number(column, _COMPRESSED)
    if end > file_size:
        raise ValueError("the pages of a column must lie in the file")
    num_values = num_bytes = 0
    while place < end:
        file.seek(place)
        reader = _CompactReader(file.read(min(_LONGEST_HEADER, end - place)))
        header = reader.read_struct()
        for field in _PAGES_OF_VALUES:
            if isinstance(header.get(field), dict):
                num_values += _number(header[field], 1)
        num_bytes += _number(header, _PAGE_UNCOMPRESSED)
        place += reader.place + _number(header, _PAGE_COMPRESSED)
    return num_values, num_bytes


class _CompactReader:
    """Reader of Thrift's compact protocol.

    Args:
        data: Bytes that begin with a struct.

    Attributes:
        place: Number of bytes that were read.

    >>> reader = _CompactReader(bytes([0x15, 0x04, 0x1C, 0x15, 0x06, 0x00, 0x00]))
    >>> reader.read_struct(), reader.place
    ({1: 2, 2: {1: 3}}, 7)
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def _bytes(self, length: int) -> bytes:
        if length > len(self._data) - self.place:
            raise ValueError("the metadata end too early")
        self.place += length
        return self._data[self.place - length : self.place]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("the metadata have a number of too many bytes")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by their numbers.

        Raises:
            ValueError: The bytes are not a struct.
        """
        if depth > _DEEPEST:
            raise ValueError("the metadata are nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            byte = self._bytes(1)[0]
            kind = byte & 0x0F
            if kind == 0:
                return fields
            number = number + (byte >> 4) if byte >> 4 else self._integer()
            # The value of a flag is its kind.
            is_flag = kind in (_TRUE, _FALSE)
            fields[number] = kind == _TRUE if is_flag else self._value(kind, depth + 1)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self._integer()
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._bytes(1)[0]
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.read_struct(depth)
        if kind not in (_LIST, _SET) or depth > _DEEPEST:
            raise ValueError(f"the metadata have a field of the unknown kind {kind}")
        byte = self._bytes(1)[0]
        length = byte >> 4
        if length == 15:
            length = self._varint()
        # Whatever the length declares, every value takes a byte.
        return [self._value(byte & 0x0F, depth + 1) for _ in range(length)]
