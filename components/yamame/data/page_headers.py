"""Headers of the pages of a Parquet column, read before the pages are decompressed.

The metadata of a file declare how many values a column has, but its pages can hold others: a run of
equal values takes a few bytes, whatever its length. A header declares the values of its page, and
is what a reader allocates memory for. Headers are structs of Thrift's compact protocol.
"""

from dataclasses import dataclass
from typing import IO, Any

_LONGEST_HEADER = 2**10
_DEEPEST = 8
_UNCOMPRESSED, _COMPRESSED = 2, 3
_DATA_PAGES = (5, 8)
"""Fields of a header: sizes, and the structs of data pages of both versions, whose first field is
the number of values.
"""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)


@dataclass
class Pages:
    """Sums over the pages of a column.

    Attributes:
        num_values: Number of values in data pages, missing ones included.
        num_bytes: Bytes of the decompressed pages.
    """

    num_values: int = 0
    num_bytes: int = 0


def read_page_headers(file: IO[bytes], column: Any, file_size: int) -> Pages:
    """Read the headers of all pages of a column.

    Args:
        file: The Parquet file.
        column: Metadata of a column in a row group (``pyarrow.parquet.ColumnChunkMetaData``).
        file_size: Bytes of the file.

    Raises:
        ValueError: The pages are damaged, or lie outside of the file.
    """
    place = int(column.data_page_offset)
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        place = min(place, int(column.dictionary_page_offset))
    end = place + int(column.total_compressed_size)
    if not 0 <= place <= end <= file_size:
        raise ValueError(f"the pages of {column.path_in_schema} must lie in the file")
    pages = Pages()
    while place < end:
        file.seek(place)
        reader = _CompactReader(file.read(min(_LONGEST_HEADER, end - place)))
        header = reader.read_struct()
        sizes = (header.get(_UNCOMPRESSED), header.get(_COMPRESSED))
        is_size = all(type(size) is int and size >= 0 for size in sizes)
        if not is_size:
            raise ValueError(f"a page of {column.path_in_schema} has no size")
        for field in _DATA_PAGES:
            data_page = header.get(field)
            if isinstance(data_page, dict):
                num_values = data_page.get(1)
                if type(num_values) is not int or num_values < 0:
                    raise ValueError(f"a page of {column.path_in_schema} has no number of values")
                pages.num_values += num_values
        pages.num_bytes += header[_UNCOMPRESSED]
        place += reader.place + header[_COMPRESSED]
    return pages


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

    def _byte(self) -> int:
        if self.place >= len(self._data):
            raise ValueError("the header of a page ends too early")
        self.place += 1
        return self._data[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("the header of a page has a number of too many bytes")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def read_struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of a struct by their numbers.

        Raises:
            ValueError: The bytes are not a struct.
        """
        if depth > _DEEPEST:
            raise ValueError("the header of a page is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            byte = self._byte()
            kind = byte & 0x0F
            if kind == 0:
                return fields
            number = number + (byte >> 4) if byte >> 4 else self._integer()
            # The value of a flag is its kind.
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self._integer()
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind == _STRUCT:
            return self.read_struct(depth + 1)
        if kind in (_DOUBLE, _BINARY):
            length = 8 if kind == _DOUBLE else self._varint()
            if length > len(self._data) - self.place:
                raise ValueError("the header of a page ends too early")
            self.place += length
            return None
        # Neither lists nor maps stand in the header of a page.
        raise ValueError(f"the header of a page has a field of the unknown kind {kind}")
