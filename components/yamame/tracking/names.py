"""Names and values of metrics, parameters and tags as MLflow accepts them."""

import posixpath
import re
from functools import lru_cache
from typing import Any

_LONGEST_KEY = 250
_LONGEST_VALUE = 6000
_FORBIDDEN = re.compile(r"[^\w\-. :/]", re.ASCII)
# MLflow's own rule, which also takes letters that are not ASCII.
_ACCEPTED = re.compile(r"[\w\-. :/]+")


def clean_key(key: str) -> str:
    """Return a name without characters that MLflow refuses, and not too long.

    >>> clean_key("success@64")
    'success_64'
    """
    return _FORBIDDEN.sub("_", key)[:_LONGEST_KEY]


def clean_value(value: Any) -> str:
    """Return a parameter or tag value that MLflow accepts. A cut value ends in an ellipsis."""
    # Lone surrogates, as in file names that are not UTF-8, cannot be stored in a database.
    text = str(value).encode(errors="replace").decode()
    if len(text) <= _LONGEST_VALUE:
        return text
    return text[: _LONGEST_VALUE - 3] + "..."


# Each line of a log repeats the names of the lines before it.
@lru_cache(maxsize=1024)
def is_name(text: str) -> bool:
    """Return whether MLflow accepts a name of a metric, parameter or tag.

    >>> [is_name(text) for text in ("train/loss", "", "../x", "/x", "a//b", "x@5")]
    [True, False, False, False, False, False]
    """
    if len(text) > _LONGEST_KEY or not _ACCEPTED.fullmatch(text):
        return False
    return is_inner_path(text)


def is_inner_path(text: str) -> bool:
    """Return whether a path is relative, in its shortest form, and stays in its folder."""
    # MLflow stores names as paths in some stores, and refuses ``..x`` as well.
    if text.startswith(("/", "..")) or text == ".":
        return False
    return posixpath.normpath(text) == text
