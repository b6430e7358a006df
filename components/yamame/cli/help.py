"""What ``--help`` shows: what a recipe does, examples, the groups, and every key with the comment
of its YAML file.
"""

import ast
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from yamame.cli.command_line import CommandLine
from yamame.files.config import flatten

_LINE = re.compile(
    r"(?P<indent> *)(?P<key>[\w/]+):(?P<value>(?:'[^']*'|\"[^\"]*\"|[^'\"#])*)(?:# ?(?P<comment>.*))?$"
)
_CONTINUED = re.compile(r" {8,}# ?(?P<comment>.*)$")
_PACKAGE = re.compile(r"# @package (\S+)")
_FLAGS = """\
Flags:
  -m                     a sweep: every combination of values with commas, encoder=gru,transformer seed=0,1
  --cfg job              shows the whole configuration, and runs nothing
  --config-dir DIR       YAML files of your own, beside those of the package
  -sc install=bash       completion: eval "$(... -sc install=bash)"; also zsh and fish"""


def help_text(line: CommandLine, recipe: Path) -> str:
    """The whole help for a command line: what it chooses is shown as chosen.

    Args:
        line: What was typed.
        recipe: The recipe's file, whose docstring begins with what it does, and then examples.
    """
    with line.composing():
        cfg = line.composed(line.overrides, whole=True)
    chosen = {
        group: choice
        for group, choice in cfg.hydra.runtime.choices.items()
        if not group.startswith("hydra/")
    }
    footer = str(cfg.hydra.help.footer or "").strip()
    parts = [_what(recipe), _groups(line, chosen), _keys(line, cfg, chosen), _FLAGS, footer]
    return "\n\n".join(part for part in parts if part)


def _what(recipe: Path) -> str:
    """What a recipe does, and its examples."""
    first, _, rest = (ast.get_docstring(ast.parse(recipe.read_text())) or "").partition("\n")
    examples = [text for text in rest.split("\n\n") if text.lstrip("\n").startswith("    ")]
    return "\n\n".join([first, *(text.strip("\n") for text in examples[:1])])


def _groups(line: CommandLine, chosen: dict[str, str | None]) -> str:
    """A line per group, with its choices; the chosen one has a star."""
    choices: dict[str, set[str]] = {}
    for root in line.roots:
        for path in root.rglob("*.yaml"):
            group = path.parent.relative_to(root).as_posix()
            if group in chosen or (group == "ablation" and "agent" in chosen):
                choices.setdefault(group, set()).add(path.stem)
    if not choices:
        return ""
    rows = []
    for group, names in sorted(choices.items()):
        starred = (f"*{name}" if chosen.get(group) == name else name for name in sorted(names))
        rows.append(_row(group if group in chosen else f"+{group}", " ".join(starred), width=20))
    return "\n".join(["Groups, as group=choice (a star is what is chosen):", *rows])


def _keys(line: CommandLine, cfg: Any, chosen: dict[str, str | None]) -> str:
    """A line per key: its value and what its YAML file says of it."""
    comments: dict[str, str] = {}
    for path, package in _files(line, cfg, chosen):
        comments = (
            dict(_comments(path.read_text(), package)) | comments
        )  # the first file that says something
    settings: Any = OmegaConf.to_container(cfg)
    rows = []
    for key, value in flatten(
        {name: node for name, node in settings.items() if name != "hydra"}
    ).items():
        if not key.endswith("._partial_"):
            text = (
                "null"
                if value is None
                else str(value).lower()
                if isinstance(value, bool)
                else value
            )
            rows.append(_row(f"{key}={text}", comments.get(key, "")))
    return "\n".join(["Keys, as key=value:", *rows])


def _row(left: str, right: str, *, width: int = 44) -> str:
    """A line of two columns, folded below the second one."""
    indent = " " * (width + 3)
    columns = shutil.get_terminal_size((120, 24)).columns
    return textwrap.fill(
        f"  {left:<{width}} {right}".rstrip(),
        max(columns, width + 40),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _files(
    line: CommandLine, cfg: Any, chosen: dict[str, str | None]
) -> Iterator[tuple[Path, str]]:
    """The YAML files that a configuration is made of, with the key that each stands below."""
    main = [line.config_name]
    for name in main:
        for path in (root / f"{name}.yaml" for root in reversed(line.roots)):
            if path.is_file():
                defaults = OmegaConf.select(OmegaConf.load(path), "defaults", default=[])
                main += [
                    entry for entry in defaults if isinstance(entry, str) and entry != "_self_"
                ]
                yield path, ""
    for group, choice in chosen.items():
        for path in (
            root / group.partition("@")[0] / f"{choice}.yaml" for root in reversed(line.roots)
        ):
            if path.is_file():
                yield path, group.partition("@")[2] or group.replace("/", ".")


def _comments(text: str, package: str) -> Iterator[tuple[str, str]]:
    """Dotted keys of a YAML file, each with its comment.

    >>> dict(_comments("run:\\n  name: null  # of the\\n          # run\\n  root: runs", "")), dict(
    ...     _comments("size: 9   # cells along a side", "env")
    ... )
    ({'run.name': 'of the run'}, {'env.size': 'cells along a side'})
    """
    if declared := _PACKAGE.search(text):
        package = {"_global_": ""}.get(declared[1], declared[1])
    above: list[tuple[int, str]] = []
    key, comment = "", ""
    for row in [*text.splitlines(), "end_of_file:"]:
        if (more := _CONTINUED.match(row)) and comment:
            comment = f"{comment} {more['comment'].strip()}"
        elif entry := _LINE.match(row):
            if comment:
                yield key, comment
            indent = len(entry["indent"])
            above = [*(parent for parent in above if parent[0] < indent), (indent, entry["key"])]
            key = ".".join([*([package] if package else []), *(name for _, name in above)])
            comment = (entry["comment"] or "").strip()
