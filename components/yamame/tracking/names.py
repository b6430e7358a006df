"""Names and values of metrics, parameters and tags as MLflow accepts them."""

import posixpath
import re
from functools import lru_cache
from typing import Any

_LONGEST_KEY = 250
_LONGEST_VALUE = 6000
_FORBIDDEN = re.compile(r"[^\w\-. :/]", re.ASCII)
_NAMELESS = "_"


# Each line of a log repeats the names of the lines before it.
@lru_cache(maxsize=4096)
def clean_key(key: str) -> str:
    """Return the name under which MLflow stores a value.

    Characters that MLflow refuses become underscores. MLflow also refuses names that are no path in
    its shortest form: parts that are empty, ``.`` or ``..`` are left out. A long name is cut.

    >>> [clean_key(key) for key in ("success@64", "goal//x", "../x/", "a/./b", "..x", "")]
    ['success_64', 'goal/x', 'x', 'a/b', '_..x', '_']
    """
    cleaned = _shortest_path(_FORBIDDEN.sub("_", key))
    if len(cleaned) > _LONGEST_KEY:
        # The cut may leave a slash at the end.
        cleaned = _shortest_path(cleaned[:_LONGEST_KEY])
    return cleaned


def _shortest_path(text: str) -> str:
    parts = [part for part in text.split("/") if part not in ("", ".", "..")]
    path = "/".join(parts) or _NAMELESS
    # MLflow takes any name that begins with two dots for a path out of its folder.
    return f"_{path}"[:_LONGEST_KEY] if path.startswith("..") else path


def clean_value(value: Any) -> str:
    """Return a parameter or tag value that MLflow accepts. A cut value ends in an ellipsis."""
    # Lone surrogates, as in file names that are not UTF-8, cannot be stored in a database, and NUL
    # not in PostgreSQL.
    text = str(value).encode(errors="replace").decode().replace("\0", "?")
    if len(text) <= _LONGEST_VALUE:
        return text
    return text[: _LONGEST_VALUE - 3] + "..."


def is_renamed(key: str) -> bool:
    """Return whether a name is stored with other parts, and not only with other characters.

    >>> [is_renamed(key) for key in ("success@64", "goal//x", "x" * 300)]
    [False, True, True]
    """
    return clean_key(key) != _FORBIDDEN.sub("_", key)


def is_inner_path(text: str) -> bool:
    """Return whether a path is relative, in its shortest form, and stays in its folder."""
    # MLflow stores names as paths in some stores, and refuses ``..x`` as well.
    if text.startswith(("/", "..")) or text == ".":
        return False
    return posixpath.normpath(text) == text
