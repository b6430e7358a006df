"""Write docs/settings.md, the reference of all settings, from the models of `yamame.cli.settings`.

    python tools/settings_page.py

A test fails if the page is not up to date.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yamame.cli.help import describe_fields
from yamame.cli.sections import Config, Section
from yamame.cli.settings import CONFIGS, TrainedConfig
from yamame.cli.training_settings import TrainConfig, TrainingConfig
from yamame.cli.validation import describe, fields_of, is_section

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
INTRODUCTION = """\
# Settings

<!-- written by tools/settings_page.py -->

Look up the keys of every recipe's configuration, with their values and meaning. `yamame train
--help` also shows the values set by a command line, the choices of each group, and the arguments of
the selected classes. Those arguments, below a `_target_` such as `encoder.d_model`, are described
in the [API](api/index.md). Defaults are in the YAML files in [conf/](../conf).

Select a class by its group, such as `encoder=gru`. `null` means no value. If the command line is
wrong, the first unknown key, or else every wrong value, is reported before anything is written.
"""
SHARED: dict[str, tuple[str, type[Config]]] = {
    "Recipes that train": (
        "`train`, `offline`, `ppo`, `distill`, `doctor`, `probe`",
        TrainingConfig,
    ),
    "Recipes that evaluate": ("`evaluate`, `play`", TrainedConfig),
}
"""Headings of settings that several recipes have, with these recipes."""


def page() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION]
    for heading, (recipes, model) in SHARED.items():
        parts.append(f"## {heading}\n\nSettings that {recipes} have in common.\n\n{table(model)}")
    for recipe, model in CONFIGS.items():
        base = base_of(model)
        text = f"## {recipe}\n\n"
        if base is not None:
            name = "train" if base is TrainConfig else heading_of(base)
            text += f"All settings of [{name}](#{name.lower().replace(' ', '-')}), and:\n\n"
        parts.append(text + table(model, base))
    return "\n".join(parts)


def base_of(model: type[Config]) -> type[Config] | None:
    """Return the model whose table comes before, and has most of the settings."""
    shared = [TrainConfig, *(each for _, each in SHARED.values())]
    for base in model.__mro__[1:]:
        if base in shared:
            assert issubclass(base, Config)
            return base
    return None


def heading_of(model: type[Config]) -> str:
    """Return the heading of a shared model."""
    for heading, (_, each) in SHARED.items():
        if each is model:
            return heading
    raise KeyError(model)


def table(model: type[Section], base: type[Section] | None = None) -> str:
    """Return the settings of a model as a table, without those that its base has as well."""
    known = {} if base is None else dict(rows(base))
    lines = ["| key | value | meaning |", "|---|---|---|"]
    for key, row in rows(model):
        if known.get(key) != row:
            lines.append(row)
    return "\n".join([*lines, ""])


def rows(model: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield every setting with its row."""
    descriptions = describe_fields(model)
    for key, hint in leaves(model):
        values = describe(hint).replace("a mapping with a _target_", "a class")
        meaning = descriptions[key].replace("<", "&lt;")  # Markdown would take it for HTML
        yield key, f"| `{key}` | {values} | {meaning} |"


def leaves(model: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and annotation of every setting."""
    for name, hint in fields_of(model).items():
        if is_section(hint):
            yield from leaves(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


if __name__ == "__main__":
    PAGE.write_text(page())
