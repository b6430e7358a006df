"""Text of ``--help``: purpose and examples of a recipe, the groups, and every key with its
description.

Descriptions are those of the models of settings, of the docstrings of the classes that the
configuration names, and of the comments in YAML files.
"""

import ast
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from yamame.cli.command_line import CommandLine
from yamame.cli.comments import comments_of
from yamame.cli.docstrings import argument_descriptions
from yamame.cli.sections import Section
from yamame.cli.settings import CONFIGS
from yamame.cli.validation import fields_of, is_section
from yamame.files.config import flatten
from yamame.files.trusted import SPECIAL

_FLAGS = """\
Flags:
  -m                     a sweep: all combinations of values with commas, encoder=gru,lstm seed=0,1
  --cfg job              shows the whole configuration, and runs nothing
  --config-dir DIR       your own YAML files, beside those of the package
  -sc install=bash       completion: eval "$(... -sc install=bash)"; also zsh and fish
Environment variables:
  YAMAME_TRACEBACK=1     prints the traceback of an error, beside its line"""


def help_text(line: CommandLine, recipe: Path) -> str:
    """Return the help for a command line, with the choices that it makes.

    Args:
        line: The command line.
        recipe: File of the recipe, whose docstring begins with its purpose and examples.
    """
    with line.composing():
        cfg = line.composed(line.overrides, whole=True)
    chosen = {}
    for group, choice in cfg.hydra.runtime.choices.items():
        if not group.startswith("hydra/") and group not in line.fixed_groups:
            chosen[group] = choice
    footer = str(cfg.hydra.help.footer or "").strip()

    config: Any = OmegaConf.to_container(cfg)
    del config["hydra"]
    descriptions = _descriptions(CONFIGS.get(line.config_name), config)
    for group, choice in chosen.items():
        files = [root / group / f"{choice}.yaml" for root in line.roots]
        comments = comments_of([file for file in files if file.is_file()], group)
        # Classes of other libraries have nothing but these.
        for key, comment in comments.items():
            descriptions.setdefault(key, comment)
    parts = [_purpose(recipe), _groups(line, chosen), _keys(config, descriptions), _FLAGS, footer]
    return "\n\n".join(part for part in parts if part)


def _purpose(recipe: Path) -> str:
    """Return the first paragraph of a recipe's docstring, and its examples."""
    # Importing the recipe would import torch.
    docstring = ast.get_docstring(ast.parse(recipe.read_text())) or ""
    purpose, *paragraphs = docstring.split("\n\n")
    text = " ".join(purpose.split())
    for paragraph in paragraphs:
        if paragraph.startswith("    "):
            return f"{text}\n\n{paragraph.rstrip()}"
    return text


def _groups(line: CommandLine, chosen: dict[str, str | None]) -> str:
    """Return a line per group with its choices; a star marks the chosen one."""
    choices: dict[str, set[str]] = {}
    for root in line.roots:
        for path in root.rglob("*.yaml"):
            group = path.parent.relative_to(root).as_posix()
            # Ablations are in no defaults list, but can be added to an agent.
            if group in chosen or (group == "ablation" and "agent" in chosen):
                choices.setdefault(group, set()).add(path.stem)
    if not choices:
        return ""
    rows = ["Groups, as group=choice (a star is what is chosen):"]
    for group in sorted(choices):
        names = [f"*{name}" if chosen.get(group) == name else name for name in choices[group]]
        # A star does not change the order.
        names.sort(key=lambda name: name.lstrip("*"))
        rows.append(_row(group if group in chosen else f"+{group}", " ".join(names), width=20))
    return "\n".join(rows)


def _keys(config: dict[str, Any], descriptions: dict[str, str]) -> str:
    """Return a line per key with its value and description."""
    rows = ["Keys, as key=value:"]
    for key, value in flatten(config).items():
        # Hydra's own key; no choice of a user.
        if key.endswith("._partial_"):
            continue
        text = str(value)
        if value is None:
            text = "null"
        elif isinstance(value, bool):
            text = text.lower()
        rows.append(_row(f"{key}={text}", descriptions.get(key, "")))
    return "\n".join(rows)


def _row(left: str, right: str, *, width: int = 44) -> str:
    """Return two columns, the second one wrapped."""
    # Without a terminal, 120 columns are assumed.
    columns = shutil.get_terminal_size((120, 24)).columns
    return textwrap.fill(
        f"  {left:<{width}} {right}".rstrip(),
        max(columns, width + 40),
        subsequent_indent=" " * (width + 3),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _descriptions(model: type[Section] | None, config: dict[str, Any]) -> dict[str, str]:
    """Return descriptions by dotted key."""
    descriptions = {} if model is None else describe_fields(model)
    for key, value in config.items():
        _describe_arguments(key, value, descriptions)
    # Changes of an environment in evaluations are arguments of its class, too.
    for key in list(descriptions):
        if key.startswith("env."):
            descriptions[f"evaluation.{key}"] = descriptions[key]
    return descriptions


def describe_fields(model: type[Section], prefix: str = "") -> dict[str, str]:
    """Return the descriptions of a model's fields, and those of its sections, by dotted key.

    >>> from yamame.cli.settings import SyncConfig
    >>> describe_fields(SyncConfig)
    {'run': 'A run directory; several as [runs/a,runs/b].'}
    """
    descriptions: dict[str, str] = {}
    for name, hint in fields_of(model).items():
        if is_section(hint):
            descriptions |= describe_fields(hint, f"{prefix}{name}.")
            continue
        text = (model.model_fields[name].description or "").replace("``", "")
        descriptions[f"{prefix}{name}"] = " ".join(text.split())
    return descriptions


def _describe_arguments(key: str, value: Any, descriptions: dict[str, str]) -> None:
    """Add the descriptions of the arguments of every target in a node, by dotted key."""
    if not isinstance(value, dict):
        return
    if "_target_" in value:
        # The description of the node itself is about its class.
        descriptions[f"{key}._target_"] = descriptions.get(key, "")
    known = argument_descriptions(str(value.get("_target_", "")))
    for name, inner in value.items():
        if name in known and name not in SPECIAL:
            text = _in_yaml(known[name])
            descriptions[f"{key}.{name}"] = text
            # Free data has the description of the argument at each of its keys.
            if isinstance(inner, dict) and "_target_" not in inner:
                for deeper in flatten(inner):
                    descriptions[f"{key}.{name}.{deeper}"] = text
        _describe_arguments(f"{key}.{name}", inner, descriptions)


def _in_yaml(text: str) -> str:
    """Return a description with Python's constants as they are written on the command line.

    >>> _in_yaml("Largest number; None: no limit.")
    'Largest number; null: no limit.'
    """
    for python, yaml in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{python}\b", yaml, text)
    return text
