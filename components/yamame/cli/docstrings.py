"""Descriptions of arguments, read from docstrings without importing the classes.

The help of the command line shows them, and must not import torch.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PACKAGES = ("yamame", "yamame_envs")
_ARGUMENTS = re.compile(r"^Args:\n((?: {4}.*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}([\w, ]+): (.*(?:\n {6,}.*)*)", re.MULTILINE)
_SAME_AS = re.compile(r"As for `([\w.]+)`\.")

Definition = ast.ClassDef | ast.FunctionDef


@cache
def argument_descriptions(path: str) -> dict[str, str]:
    """Return descriptions by argument, from the ``Args`` section of a class or function.

    Arguments that a class does not describe are looked up in its base classes. Those of other
    packages have no descriptions.

    Args:
        path: Dotted name, as in a ``_target_``.

    >>> argument_descriptions("yamame.system.budget.Budget")["updates"]
    'Largest number of updates, or None.'
    """
    module, _, name = path.rpartition(".")
    file = _file_of(module)
    found = None if file is None else _find(file, name)
    if found is None:
        return {}
    definition, file = found
    descriptions: dict[str, str] = {}
    # The class itself comes last, because its words take precedence.
    for base in _bases(definition, file):
        descriptions |= argument_descriptions(base)
    for docstring in _docstrings(definition):
        descriptions |= _parse_arguments(docstring)
    for argument, text in descriptions.items():
        reference = _SAME_AS.match(text)
        if reference is not None:
            owner = reference.group(1)
            path = owner if "." in owner else f"{_module_of(file)}.{owner}"
            other = argument_descriptions(path)
            descriptions[argument] = other.get(argument, text)
    return descriptions


def _file_of(module: str) -> Path | None:
    """Return the file of a module of ours; None for one of another package."""
    package, *rest = module.split(".")
    if package not in _PACKAGES:
        return None
    # Looking up a top-level package does not import it; a module inside of it would.
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent.joinpath(*rest)
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _imports(file: Path) -> dict[str, tuple[str, str]]:
    """Return module and name of everything that a file imports by name, wherever in it."""
    imports = {}
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imports[alias.asname or alias.name] = (node.module or "", alias.name)
    return imports


def _find(file: Path, name: str) -> tuple[Definition, Path] | None:
    """Return a definition and its file, which another module may only import."""
    for node in _parsed(file).body:
        if isinstance(node, Definition) and node.name == name:
            return node, file
    # Packages re-export names, some only for type checkers, because they load them on first use.
    module, original = _imports(file).get(name, ("", ""))
    home = _file_of(module)
    return None if home is None else _find(home, original)


def _bases(definition: Definition, file: Path) -> Iterator[str]:
    """Yield the dotted names of base classes in files of ours, those with precedence last."""
    if not isinstance(definition, ast.ClassDef):
        return
    imports = _imports(file)
    for base in reversed(definition.bases):
        # Bases written as module.Name are of other packages.
        if isinstance(base, ast.Name) and base.id in imports:
            yield ".".join(imports[base.id])
        elif isinstance(base, ast.Name):
            yield f"{_module_of(file)}.{base.id}"


def _module_of(file: Path) -> str:
    """Return the dotted name of a file of ours."""
    parts = file.with_suffix("").parts
    for package in _PACKAGES:
        if package in parts:
            return ".".join(parts[parts.index(package) :])
    raise AssertionError(file)


def _docstrings(definition: Definition) -> Iterator[str]:
    """Yield the docstrings of a function, or of a class and its constructor."""
    yield ast.get_docstring(definition) or ""
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            yield ast.get_docstring(node) or ""


def _parse_arguments(docstring: str) -> dict[str, str]:
    """Return the entries of the ``Args`` section of a docstring.

    >>> _parse_arguments("Adds.\\n\\nArgs:\\n    a, b: First\\n        and second.\\n")
    {'a': 'First and second.', 'b': 'First and second.'}
    """
    section = _ARGUMENTS.search(f"{docstring}\n")
    descriptions = {}
    if section is not None:
        for names, text in _ENTRY.findall(section.group(1)):
            for name in names.split(","):
                descriptions[name.strip()] = " ".join(text.replace("``", "").split())
    return descriptions
