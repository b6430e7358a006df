"""AMAGO's ``config.txt``: the arguments of its classes, as the library gin has written them.

A line is ``Class.argument = value``, with a Python literal or a reference (``@Class``) as value; a
value may go on over indented lines. Nothing is evaluated but literals. Bindings of a scope
(``scope/Class.argument``), which hold within it alone, are not read.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yamame.checks import UsageError
from yamame.files.config import flatten
from yamame.files.paths import read_regular
from yamame.system.messages import print_stderr, printable, shortened

MOST_BYTES = 2**18
"""Largest size of a file; that of an ordinary run has 5 KB."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][\w./]*)\s*=\s*(.*)", re.DOTALL)
_REFERENCE = re.compile(r"@?([\w./]+)(\(\))?")


@dataclass(frozen=True)
class Unread:
    """Value that is no literal: a reference, a macro or a nested mixture of them.

    Attributes:
        text: Value as in the file.
    """

    text: str

    def __repr__(self) -> str:
        return printable(self.text)


def read_gin(path: Path) -> dict[str, Any]:
    """Read the arguments in a file, by ``Class.argument``.

    Raises:
        FileNotFoundError: There is no such file.
        UsageError: It is no regular file, too large, or no text of assignments.
    """
    content = read_regular(path, most=MOST_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: must be a text file in UTF-8") from error
    return parse_gin(text, str(path))


def parse_gin(text: str, name: str) -> dict[str, Any]:
    r"""Return the arguments in a text, by ``Class.argument``; values that are no literals `Unread`.

    Args:
        text: Content of a file.
        name: Name of the file in messages.

    Raises:
        UsageError: A line is no assignment.

    >>> parse_gin("Agent.gamma = 0.9\nActor.kind = @Beta\nM.list = \\\n    [1,\n     2]", "it")
    {'Agent.gamma': 0.9, 'Actor.kind': @Beta, 'M.list': [1, 2]}
    """
    values: dict[str, Any] = {}
    scoped: list[str] = []
    for statement in _statements(text):
        if statement.startswith(("import ", "from ", "include ")):
            continue
        matched = _ASSIGNMENT.fullmatch(statement)
        if matched is None:
            shown = printable(statement[:60])
            raise UsageError(f"{name}: must hold lines 'Class.argument = value', got {shown}")
        target, value = matched.groups()
        if "/" in target:
            scoped.append(target)
        else:
            values[_short(target)] = _value(value)
    if scoped:
        print_stderr(f"{name}: bindings of scopes are ignored: {shortened(', '.join(scoped))}")
    return values


def typed_values(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that a user has typed in nested mappings, by ``Class.argument``.

    >>> typed_values({"Agent": {"gamma": 0.9}})
    {'Agent.gamma': 0.9}
    """
    return {_short(name): value for name, value in flatten(typed).items()}


def class_name(value: Any) -> str | None:
    """Return the name of the class that a value refers to; None for any other value.

    >>> class_name(Unread("@amago.nets.policy_dists.Beta")), class_name("Beta"), class_name(3)
    ('Beta', 'Beta', None)
    """
    text = value.text if isinstance(value, Unread) else value
    if not isinstance(text, str):
        return None
    matched = _REFERENCE.fullmatch(text.strip())
    return None if matched is None else re.split(r"[./]", matched[1])[-1]


def _statements(text: str) -> list[str]:
    """Return the statements of a text, in one line each, without comments."""
    statements: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        rest = line.strip().removesuffix("\\").rstrip()
        # Only lines that go on are indented.
        if line[0].isspace() and statements:
            statements[-1] = f"{statements[-1]} {rest}"
        else:
            statements.append(rest)
    return statements


def _short(name: str) -> str:
    """Return ``Class.argument`` of a name with modules before it."""
    return ".".join(name.split(".")[-2:])


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    # Deep nesting ends the parser, too.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return Unread(text)
