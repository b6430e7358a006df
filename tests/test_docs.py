"""The pages: links, excerpts, tables and blocks of Python agree with the repository."""

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yamame
import yaml
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.cli.nodes import instantiate
from yamame.keys import ENTRIES, GOAL_COMPLETED, GOAL_PAD, GOAL_TOLERANCE
from yamame.runs.build import build_agent, build_env

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "lab"
"""Notes on experiments: outside of the navigation, in their own words, and about earlier code."""
PAGES = sorted(page for page in DOCS.rglob("*.md") if NOTEBOOK not in page.parents)
HOWTOS = sorted((DOCS / "howto").glob("*.md"))
OWN_ENVIRONMENT = DOCS / "howto" / "own_environment.md"
"""A page whose settings are those of ``env=gym``."""
NO_PAGES = {"MIN_IMAGE_SIZE", "Returns", "GlobalRNGState", "register"}
"""Public names that the reference leaves out: a constant, a former name, TorchRL's, and what is
called for us.
"""


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> list[tuple[str, str]]:
    """Path and anchor of every link to this repository."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)", text)


def anchors(page: Path) -> set[str]:
    """What headings of a page, and names of the reference, are linked by."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = [
        re.sub(r"[^\w\s-]", "", title.lower())
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {re.sub(r"\s", "-", title.strip()) for title in titles} | set(
        re.findall(r"^::: (\S+)", text, re.MULTILINE)
    )


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=page_name
)
def test_every_link_leads_somewhere(page):
    for path, anchor in links(page):
        target = page.parent / path if path else page
        assert target.exists(), f"{page_name(page)} links to {path}"
        if anchor:
            assert anchor in anchors(target), f"{page_name(page)} links to {path}#{anchor}"


def nav_pages(entry: object) -> list[str]:
    """The pages of the navigation, from top to bottom."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in nav_pages(part)]


def test_the_navigation_holds_every_page_once():
    named = nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    own = [page for page in named if not page.startswith("source/")]
    assert sorted(own) == sorted(str(page.relative_to(DOCS)) for page in PAGES)
    assert all((ROOT / page.removeprefix("source/")).exists() for page in set(named) - set(own))


def excerpts() -> list[tuple[str, str]]:
    return re.findall(
        r'```python title="(\w+/.*?)"\n(.*?)```', (DOCS / "algorithm.md").read_text(), re.DOTALL
    )


def test_excerpts_on_the_algorithm_are_lines_of_their_files():
    assert len(excerpts()) > 10
    for path, excerpt in excerpts():
        lines = (ROOT / path).read_text().splitlines()
        size = excerpt.count("\n")
        parts = ("\n".join(lines[i : i + size]) + "\n" for i in range(len(lines)))
        assert excerpt in map(textwrap.dedent, parts), f"{path} has no such lines:\n{excerpt}"


def test_the_page_on_the_paper_names_what_there_is():
    text = (DOCS / "paper.md").read_text()
    for kind in ("experiment", "ablation", "encoder", "agent", "relabel", "exploration", "trials"):
        named = re.findall(rf"(?<![\w/.]){kind}=(\w+)", text)
        assert named, kind
        missing = {name for name in named if not (conf_dir() / kind / f"{name}.yaml").exists()}
        assert not missing, (kind, missing)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "](" in line]
    assert len(rows) > 25
    assert [row for row in rows if "](../tests/" not in row] == []


def test_the_glossary_of_keys_is_that_of_the_code():
    text = (DOCS / "keys.md").read_text()
    for entry in ENTRIES:
        dtype, meaning = entry.dtype or "of the environment", entry.meaning.replace("``", "`")
        flags = {"input": entry.is_input, "stored": entry.is_stored, "reserved": entry.is_reserved}
        uses = ", ".join(name for name, is_set in flags.items() if is_set)
        row = f"| `{entry.name}` | `{entry.shape}` {dtype} | {meaning} | {uses} |"
        assert row in text, f"docs/keys.md must have the row\n{row}"
    table = text[: text.index("- *input*")]
    assert len(re.findall(r"^\| `", table, re.MULTILINE)) == len(ENTRIES)
    assert all(f"`{value}`" in text for value in (GOAL_PAD, GOAL_COMPLETED, GOAL_TOLERANCE))


def texts_of(folder: str) -> set[str]:
    """Every text in the code of a folder; those of an f-string end at its values."""
    found = set()
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def pieces_of(message: str) -> list[str]:
    """The parts of a quoted message that stand in the code as they are: at least three words."""
    pieces = re.split(r"\N{HORIZONTAL ELLIPSIS}|: |; |, got |\bmust |'[^']*'", message)
    return [piece.strip(" ,;(") for piece in pieces if len(piece.split()) >= 3]


def missing_pieces(messages: list[str], texts: set[str]) -> list[str]:
    whole = "\n".join(texts)
    pieces = [piece for message in messages for piece in pieces_of(message)]
    return [piece for piece in pieces if piece not in whole]


def test_the_messages_of_the_faq_are_those_of_the_code():
    messages = re.findall(r"```text\n(.*?)\n```", (DOCS / "faq.md").read_text(), re.DOTALL)
    assert len(messages) > 30
    texts = set().union(*map(texts_of, ("components", "envs", "recipes")))
    assert missing_pieces(messages, texts) == []
    wrong = "train: run.name: runs/mine lies around; continue it with a prayer"
    assert missing_pieces([wrong], texts) == ["runs/mine lies around", "continue it with a prayer"]


def misquoted(text: str) -> list[str]:
    """Quotations in headings of a page that the message below them does not contain."""
    sections = re.findall(r"^### ([^\n]*)\n\n```text\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    assert sections

    wrong = []
    for heading, message in sections:
        quotations = re.findall("`([^`]+)`", heading)
        if not quotations or quotations[0] not in message:
            wrong.append(heading)
    return wrong


def test_headings_of_the_faq_quote_their_messages():
    assert misquoted((DOCS / "faq.md").read_text()) == []
    assert misquoted("### `no such key`\n\n```text\nno key\n```\n") == ["`no such key`"]


def public_names(init: Path) -> set[str]:
    """What an ``__init__`` passes on: ``from ... import X as X``."""
    imports = [
        node for node in ast.walk(ast.parse(init.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    return {alias.asname for node in imports for alias in node.names if alias.asname} - NO_PAGES


def test_the_reference_has_every_public_name_and_no_other():
    named = re.findall(r"^::: (\S+)", "\n".join(page.read_text() for page in PAGES), re.MULTILINE)
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    for page in (DOCS / "api").glob("*.md"):
        if page.stem in ("index", "yamame"):
            continue
        package = page.stem if page.stem == "yamame_envs" else f"yamame.{page.stem}"
        public = public_names(Path(importlib.import_module(package).__file__))
        missing = {f"{package}.{name}" for name in public} - set(named)
        assert not missing, f"{page.name} must have {sorted(missing)}"


def settings(page: Path) -> set[tuple[str, ...]]:
    """Recipe and overrides of each setting and command, but for sweeps and those with a package of
    one's own.
    """
    text = page.read_text()
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    commands = re.sub(r"\\\n\s*", "", commands).splitlines()  # a command on several lines
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = set()
    for line in (*commands, *spans):
        words = line.partition("#")[0].replace("python recipes/train.py", "yamame train").split()
        bare = "probe" if line.startswith("probe.") else "train"
        _, recipe, *overrides = words if words[:1] == ["yamame"] else ["yamame", bare, *words]
        is_setting = overrides and all(re.match(r"[+~]?[a-z_/.]+=[^.]", each) for each in overrides)
        if recipe in ("train", "offline", "ppo", "probe") and is_setting and "mylab" not in line:
            found.add((recipe, *overrides))
    return found - {("train", "key=value")}


def test_the_settings_that_how_tos_name_are_there():
    every = set().union(*(settings(page) for page in HOWTOS if page != OWN_ENVIRONMENT))
    assert len(every) > 60
    whole = [line for line in sorted(every) if not any(set(line) < set(other) for other in every)]
    presets = [line for line in whole if line[1].startswith("experiment=") and len(line) == 2]
    for _, preset in presets:  # test_conf composes each
        assert (conf_dir() / f"{preset.replace('=', '/')}.yaml").exists(), preset
    whole = [line for line in whole if line not in presets]
    lone = [line[1] for line in whole if line[0] == "train" and len(line) == 2]
    together = {text.partition("=")[0]: text for text in lone if "." in text.partition("=")[0]}
    yamame.compose(*together.values())  # in one, for each takes its time
    packs: list[tuple[str, set[str], list[str]]] = []
    for recipe, *overrides in whole:
        if recipe == "train" and set(overrides) <= set(together.values()):
            continue
        groups = {re.split("[=./]", text)[0] for text in overrides}
        for other, taken, pack in packs:  # none may need what another has chosen
            if (
                other == recipe
                and not taken & groups
                and not {"experiment", "hardware"} & (taken | groups)
            ):
                taken |= groups
                pack += overrides
                break
        else:
            packs.append((recipe, groups, list(overrides)))
    for recipe, _, overrides in packs:
        yamame.compose(*overrides, recipe=recipe)


def test_the_settings_of_gymnasium_environments_are_there():
    named = settings(OWN_ENVIRONMENT)
    lone = [line[1] for line in named if len(line) == 2]
    keys = {text.partition("=")[0]: text for text in lone if "." in text.partition("=")[0]}
    assert {"env.tasks", "env.success", "env.bounds"} <= keys.keys()
    yamame.compose("env=gym", *keys.values())
    for choice in set(lone) - set(keys.values()):
        group, _, name = choice.partition("=")
        if "." not in group:
            assert (conf_dir() / group / f"{name}.yaml").exists(), choice
    for recipe, *overrides in named:
        if len(overrides) > 1:
            yamame.compose(*overrides, recipe=recipe)


def commands(page: Path) -> set[tuple[str, ...]]:
    """Recipe and overrides of each command; of a sweep those of its first job."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    found = set()
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        is_build = words[:2] == ["docker", "build"]
        if "yamame" not in words[:-1] or is_build or "mylab" in line or "--config-dir" in words:
            continue
        recipe, *arguments = words[words.index("yamame") + 1 :]
        if "-m" in arguments:
            arguments.remove("-m")
            arguments = [
                word.partition(",")[0]
                for word in arguments
                if not re.match(r"hydra\.|launcher=|sweeper=|.*\(", word)
            ]
        found.add((recipe, *arguments))
    return found


def test_commands_that_repeat_scripts_of_amago_have_their_exploration_and_probabilities():
    wanted = ("experiment=frozenlake", "experiment=amago_defaults")
    found = [words for _, *words in commands(DOCS / "howto" / "migrate_from_amago.md")]
    chosen = [words for words in found if words[0] in wanted]
    assert len(chosen) == 2
    for words in chosen:
        cfg = yamame.compose(*words)
        env = build_env(cfg, num_envs=1, seed=0)
        agent = build_agent(cfg, env)
        logits = torch.zeros(agent.action_space.num_params)
        logits[0] = 100.0
        probs = agent.action_space.distribution(logits).probs
        assert (probs[1] / probs[0]).item() == pytest.approx(0.001 / 0.99)
        noise = instantiate(cfg.exploration, action_space=agent.action_space)
        assert noise.start == noise.end == (1.0, 0.05)

    cfg.agent.probability_floor = 0.01  # that of the preset
    with pytest.raises(UsageError, match="probability_clip"):
        build_agent(cfg, env)


@pytest.mark.parametrize("outcome", [0, 1, 75])
def test_the_script_of_a_slurm_job_requeues_an_interrupted_run(outcome, tmp_path):
    (script,) = re.findall(r"```bash.*?\n(.*?)```", (DOCS / "install.md").read_text(), re.DOTALL)
    programs = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "yamame": f'echo "$@" > {tmp_path}/trained; exit {outcome}',
        "scontrol": f'echo "$@" > {tmp_path}/requeued',
    }
    folder = tmp_path / "yamame/.venv/bin"
    folder.mkdir(parents=True)
    (folder / "activate").write_text(f'PATH="{folder}:$PATH"\n')
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    slurm = {"HOME": str(tmp_path), "SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_ID": "7"}
    job = subprocess.run(["bash", "-c", script], env={**os.environ, **slurm}, check=False)
    assert job.returncode == outcome
    requeued = tmp_path / "requeued"
    assert requeued.exists() == (outcome == 75)
    if outcome == 75:
        assert requeued.read_text() == "requeue 7\n"
    recipe, *overrides = (tmp_path / "trained").read_text().split()
    assert (recipe, overrides[-1]) == ("train", "resume=auto")


@pytest.mark.parametrize("page", [*HOWTOS, DOCS / "keys.md"], ids=lambda page: page.stem)
def test_the_python_of_a_how_to_runs(page, empty_store, tmp_path, monkeypatch):
    if page.stem == "own_jax_game":
        pytest.importorskip("jax")
    shutil.copy(empty_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mylab", "mylab_curriculum"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = ModuleType("how_to")  # classes that a page defines are found when they are copied
    monkeypatch.setitem(sys.modules, "how_to", module)
    names = module.__dict__
    for _, title, text in re.findall(
        r'```(python|yaml)(?: title="(.*?)")?\n(.*?)```', page.read_text(), re.DOTALL
    ):
        if title:
            file = tmp_path / title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        else:
            exec(compile(text, page.name, "exec"), names)
    if "run" in names:
        assert names["run"].summary["status"] == "FINISHED"
    if "losses" in names:
        assert names["losses"][-1] < names["losses"][0]


def test_modules_that_pages_wrote_are_forgotten(own_module):
    """After the pages above: a later test may have a package of the same name."""
    assert "mylab" not in sys.modules
    own_module("mylab", "VALUE = 3\n")
    assert importlib.import_module("mylab").VALUE == 3
