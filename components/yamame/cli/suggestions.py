"""Existing names that resemble a wrong one."""

import difflib
from collections.abc import Sequence


def closest_of(wrong: str, known: Sequence[str]) -> str:
    """Return the names that are closest to a wrong one, in words; empty if none is close.

    A key also matches by its last part, because the groups before it are easily forgotten.

    >>> closest_of("sed", ["seed", "device"]), closest_of("minutes", ["budget.minutes"])
    (', did you mean seed?', ', did you mean budget.minutes?')
    """
    # A parent of the wrong key exists, and is no help.
    known = [name for name in known if not wrong.startswith(f"{name}.")]
    # 0.75 leaves typing errors alone; the default, 0.6, is tried where there are none.
    close = difflib.get_close_matches(wrong, known, n=3, cutoff=0.75)
    close = close or difflib.get_close_matches(wrong, known, n=3)
    if not close:
        by_leaf = {key.rpartition(".")[2]: key for key in known}
        leaves = difflib.get_close_matches(wrong.rpartition(".")[2], by_leaf, n=3)
        close = [by_leaf[leaf] for leaf in leaves]
    return f", did you mean {' or '.join(close)}?" if close else ""
