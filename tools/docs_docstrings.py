"""Griffe extension that renders docstrings: doctests as code blocks, roles as plain names."""

import re
from itertools import groupby
from typing import Any

from griffe import Extension

ROLE = re.compile(r":\w+:(?=`)")


class Doctests(Extension):
    """Conversion of every docstring to Markdown before its sections are parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fence_doctests(ROLE.sub("", obj.docstring.value))


def fence_doctests(text: str) -> str:
    r"""Put a fence around each paragraph that is a doctest.

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
