"""An extension of Griffe, which reads docstrings for the site: doctests become blocks of code,
roles plain names.
"""

import re
from itertools import groupby
from typing import Any

from griffe import Extension

ROLE = re.compile(r":\w+:(?=`)")


class Doctests(Extension):
    """Rewrites every docstring as Markdown before its sections are read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fence_doctests(ROLE.sub("", obj.docstring.value))


def fence_doctests(text: str) -> str:
    r"""Puts a fence around each paragraph that is a doctest.

    >>> print(fence_doctests("Adds.\n\n>>> 1 + 1\n2\n"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    paragraphs = groupby(text.splitlines(), lambda line: not line.strip())
    blocks = ["\n".join(lines) for is_blank, lines in paragraphs if not is_blank]
    return "\n\n".join(
        f"```pycon\n{block}\n```" if block.startswith(">>> ") else block for block in blocks
    )
