"""Pages name what there is: commands compose, settings and choices exist, tables have the columns
that the code prints.
"""

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yamame
import yaml
from yamame import conf_dir, recipes_dir
from yamame.checks import UsageError
from yamame.deploy import DeployedAgent
from yamame.runs.run import Run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "zoo/README.md")),
    *sorted(page for page in DOCS.rglob("*.md") if DOCS / "lab" not in page.parents),
]
WITH_COMMANDS = [page for page in PAGES if page.parent.name != "api"]
COMPOSED_ELSEWHERE = {"train", "offline", "ppo", "probe"}
"""Recipes whose commands on how-to pages `test_docs` composes, several at a time."""
RUN_ELSEWHERE = {"data.md", "deploy.md"}
NEED_A_RUN = {"evaluate", "play", "export", "serve", "sync"}
CODE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def spans(text: str) -> list[str]:
    """Inline code, also of tables and quotations."""
    return re.findall(r"`([^`\n]+)`", CODE.sub("", text))


def lines_of_blocks(text: str) -> list[str]:
    """Lines of shell blocks, with commands on several lines joined."""
    blocks = [block for language, block in CODE.findall(text) if language == "sh"]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines]


def first_job(arguments: list[str]) -> list[str]:
    """The settings of the first job of a sweep."""
    if "-m" not in arguments:
        return arguments
    settings = []
    for word in arguments:
        is_of_sweep = re.match(r"-m$|hydra\.|launcher=|sweeper=|\S*\(", word)
        if not is_of_sweep:
            is_list = "=[" in word
            settings.append(word if is_list else word.partition(",")[0])
    return settings


def commands(lines: list[str]) -> set[tuple[str, ...]]:
    """Recipe and settings of commands that can be run as they are written."""
    found = set()
    for line in lines:
        line = re.sub(r"python recipes/(\w+)\.py", r"yamame \1", line)
        is_pattern = re.search(r"<|\.\.\.|--help|--config-dir|NAME|COMMAND|\$|mylab|my_envs", line)
        if is_pattern or not re.match(r"(yamame|torchrun|srun|ray job|CUDA_\S+) ", line):
            continue
        words = shlex.split(line, comments=True)
        if "yamame" not in words[:-1]:
            continue
        recipe, *arguments = words[words.index("yamame") + 1 :]
        found.add((recipe, *first_job(arguments)))
    return found


def faults(text: str, composed_elsewhere: set[str] = frozenset()) -> list[str]:
    """Commands that no recipe accepts."""
    inline = commands(spans(text))
    mentioned = set()
    for recipe, *words in inline:
        # A part of a command, as in "`yamame evaluate control=true` wipes the memory".
        needs_run = recipe in NEED_A_RUN and not any(word.startswith("run=") for word in words)
        run = ["run=runs/mine"] if needs_run else []
        mentioned.add((recipe, *run, *words))

    found = []
    for recipe, *words in sorted(commands(lines_of_blocks(text)) | mentioned):
        if recipe in composed_elsewhere:
            continue
        if not (recipes_dir() / f"{recipe}.py").is_file():
            found.append(f"no recipe {recipe}")
            continue
        settings = [f"suite={word}" if "=" not in word else word for word in words]
        # `reproduce` composes contracts by itself; a name alone is no command.
        if recipe == "reproduce" or (not words and (recipe,) in inline):
            continue
        try:
            yamame.compose(*settings, recipe=recipe)
        except UsageError as error:
            found.append(f"{recipe} {' '.join(words)}: {error}")
    return found


def test_pages_have_many_commands():
    every = [commands(lines_of_blocks(page.read_text())) for page in WITH_COMMANDS]
    assert len(set().union(*every)) > 150


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)
def test_the_commands_of_a_page_compose(page):
    is_covered = page.parent == DOCS / "howto" or page.name in RUN_ELSEWHERE
    assert faults(page.read_text(), COMPOSED_ELSEWHERE if is_covered else set()) == []


def subkeys(tree: Any, prefix: str) -> Iterator[str]:
    """Dotted keys of a configuration, with the arguments of its classes."""
    if not isinstance(tree, Mapping):
        return
    for name, value in tree.items():
        key = f"{prefix}{name}"
        yield key
        yield from subkeys(value, f"{key}.")
    target = tree.get("_target_")
    if isinstance(target, str) and target.startswith(("yamame.", "yamame_envs.")):
        module, _, attribute = target.rpartition(".")
        owner = getattr(importlib.import_module(module), attribute)
        for name in inspect.signature(owner).parameters:
            yield f"{prefix}{name}"


def known_keys() -> set[str]:
    """Keys of all recipes and of all choices."""
    keys = set(re.findall(r"^\| `([a-z_.0-9]+)` \|", (DOCS / "settings.md").read_text(), re.M))
    for file in conf_dir().rglob("*.yaml"):
        text = file.read_text()
        folder = file.relative_to(conf_dir()).parent
        package = re.search(r"@package (\S+)", text)
        group = package[1] if package else ".".join(folder.parts)
        is_global = group in ("", "_global_")
        keys.update(subkeys(yaml.safe_load(text), "" if is_global else f"{group}."))
    return keys


FREE = re.compile(r"env\.(settings|options)\.|evaluation\.env\.|callbacks\.mine\.")
"""Keys below these belong to other packages, or repeat those of ``env``."""
FILES = re.compile(r"\.(py|json|md|yaml|csv|npz|hdf5|pt|pt2|onnx|db|jsonl)$")
OBJECTS = {"agent": DeployedAgent, "run": Run}
"""Variables of scripts on pages that have the name of a group."""


def unknown_keys(text: str, known: set[str]) -> list[str]:
    """Dotted keys in inline code that no configuration has, and no class in a block of the page."""
    groups = {key.partition(".")[0] for key in known}
    written = {name for _, block in CODE.findall(text) for name in re.findall(r"\w+", block)}
    found = []
    for span in spans(text):
        for word in span.split():
            key = re.match(r"'?[+~]{0,2}([a-z_]+(?:\.[a-z_0-9]+)+)(?==|'?$)", word)
            if key is None or FREE.match(key[1]) or FILES.search(key[1]):
                continue
            group, _, rest = key[1].partition(".")
            if group in OBJECTS and hasattr(OBJECTS[group], rest.partition(".")[0]):
                continue
            is_known = key[1].removesuffix("._target_") in known or rest in written
            if group in groups and not is_known:
                found.append(key[1])
    return found


def unknown_choices(text: str) -> list[str]:
    """Choices ``group=name`` in inline code without a file."""
    found = []
    for span in spans(text):
        for word in span.split():
            choice = re.fullmatch(r"\+?([a-z_]+(?:/[a-z_]+)*)=([\w,]+)", word)
            if choice is None or not (conf_dir() / choice[1]).is_dir():
                continue
            for name in choice[2].split(","):
                file = conf_dir() / choice[1] / f"{name}.yaml"
                if name != "none" and not file.exists():
                    found.append(word)
    return found


def test_settings_that_pages_name_are_there():
    known = known_keys()
    wrong = {}
    for page in PAGES:
        text = page.read_text()
        named = unknown_keys(text, known) + unknown_choices(text)
        if named:
            wrong[page_name(page)] = named
    assert wrong == {}

    table = "| late | `schedule.warmup_update` | `encoder=grruu`, `+ablation=no_memories` |\n"
    assert unknown_keys(table, known) == ["schedule.warmup_update"]
    assert unknown_choices(table) == ["encoder=grruu", "+ablation=no_memories"]
    note = "> - Set `env.lengthh=3`, not `env.length=3`, `agent.act` or `runs/mine/error.txt`.\n"
    assert unknown_keys(note, known) == ["env.lengthh"]


def printed_columns(text: str) -> set[str]:
    """Names of the columns of tables that a page shows as printed."""
    blocks = [block for language, block in CODE.findall(text) if language == "text"]
    heads = re.findall(r"^\|([^\n]*)\|\n\|[-+]+\|$", "\n".join(blocks), re.MULTILINE)
    return {name.strip() for head in heads for name in head.split("|")}


def texts_of_code() -> set[str]:
    found = set()
    for folder in ("components", "recipes"):
        for file in (ROOT / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(file.read_text()))
            found |= {node.value for node in nodes if isinstance(node, ast.Constant)}
    return found


def test_printed_tables_have_the_columns_of_the_code():
    columns = set().union(*(printed_columns(page.read_text()) for page in PAGES))
    assert len(columns) >= 4
    texts = texts_of_code()
    assert columns - texts == set()
    shown = "```text\n| some column | return |\n|-------------+--------|\n```\n"
    assert printed_columns(shown) - texts == {"some column"}


def test_wrong_commands_of_a_page_are_found():
    page = "\n".join(
        (
            "```sh",
            "yamame evaluate run=runs/mine controll=true",
            "    yamame train env=tmaze encoder=gru  # right",
            "torchrun --no-python yamame train env=tmaze devise=cuda",
            "yamame trian env=tmaze",
            "python recipes/report.py evidense=docs/results",
            "```",
            "> Run `yamame doctor env=tmaze env.lengthh=3`, or `yamame evaluate run=... wrong=1`.",
            "",
        )
    )
    found = faults(page)
    assert len(found) == 5
    for wrong in ("controll", "devise", "trian", "evidense", "env.lengthh"):
        assert sum(wrong in fault for fault in found) == 1, wrong


def missing_parts(text: str) -> list[str]:
    """Scripts and sessions of the repository that a page names, and that are not there."""
    scripts = re.findall(r"(?<![\w/])(?:tools|examples|recipes|tests)/[\w/]+\.py\b", text)
    missing = [script for script in scripts if not (ROOT / script).is_file()]
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    for names in re.findall(r"\bnox -s ((?:[a-z]+ ?)+)", text):
        missing += [name for name in names.split() if name not in sessions]
    return missing


def test_scripts_and_sessions_that_pages_name_are_there():
    wrong = {page_name(page): missing_parts(page.read_text()) for page in PAGES}
    assert {name: parts for name, parts in wrong.items() if parts} == {}
    page = "Run `python tools/benchmarks.py`, `nox -s lint typing` or `nox -s tests`.\n"
    assert missing_parts(page) == ["tools/benchmarks.py", "typing"]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_of_a_page_can_be_parsed(page):
    for language, block in CODE.findall(page.read_text()):
        if language == "py":
            compile(block, page.name, "exec")


WIDE = {"docs/benchmarks.md", "docs/leaderboard.md"}
"""Pages of results, which are read on a wide screen."""


def wide_tables(text: str) -> list[str]:
    """First lines of tables with more than four columns, which a phone cannot show."""
    tables = re.findall(r"^(\|[^\n]*)\n\|[-| ]+\|$", CODE.sub("", text), re.MULTILINE)
    return [head for head in tables if re.sub(r"`[^`]*`", "", head).count("|") > 5]


def test_tables_have_at_most_four_columns():
    wrong = {page_name(page): wide_tables(page.read_text()) for page in PAGES}
    assert {name for name, tables in wrong.items() if tables} == WIDE
    assert len(wide_tables("| a | b | c | d | e |\n|---|---|---|---|---|\n| 1 |\n")) == 1
    assert wide_tables("| a | b | c | `d | e` |\n| --- | --- | --- | --- |\n") == []
