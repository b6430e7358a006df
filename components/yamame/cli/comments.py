"""Comments of YAML files as descriptions of settings.

The arguments of classes of other libraries have no docstring that the help can show. The YAML file
of the choice describes them instead.
"""

import re
from collections.abc import Iterable
from pathlib import Path

_LINE = re.compile(r"^( *)([\w.]+):(?:\s[^#]*)?(?:# *(.*))?$")


def comments_of(files: Iterable[Path], group: str) -> dict[str, str]:
    """Return the comments behind the keys of a choice, by dotted key.

    Args:
        files: YAML files of the choice, those with precedence first.
        group: Group of the choice, whose keys are below it unless the file is ``@package
            _global_``.
    """
    comments: dict[str, str] = {}
    for file in files:
        text = file.read_text()
        is_global = text.startswith("# @package _global_")
        prefix = [] if is_global else group.split("/")
        for key, comment in _parse(text):
            comments.setdefault(".".join([*prefix, *key]), comment)
    return comments


def _parse(text: str) -> list[tuple[list[str], str]]:
    """Return the keys of a YAML file that have a comment on their line.

    >>> _parse("lr: 0.1   # learning rate\\nmore:\\n  size: 3  # of all\\n  plain: 4")
    [(['lr'], 'Learning rate.'), (['more', 'size'], 'Of all.')]
    """
    commented = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent = len(match.group(1))
        # Deeper or equal keys before are no parents of this one.
        while path and path[-1][0] >= indent:
            path.pop()
        path.append((indent, match.group(2)))
        comment = match.group(3)
        if comment:
            sentence = comment[0].upper() + comment[1:].rstrip(".") + "."
            commented.append(([name for _, name in path], sentence))
    return commented
