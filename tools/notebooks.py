"""Turn tutorials into Jupyter notebooks.

    python tools/notebooks.py docs/tutorials/1_memory.md            # writes 1_memory.ipynb here
    python tools/notebooks.py docs/tutorials/*.md --folder /tmp

Blocks of Python become code cells, blocks of shell become ``%%bash`` cells, and Python with a title
becomes a ``%%writefile`` cell. Everything else is text. Pictures are embedded, and links lead to
the documentation site, so a notebook needs no other file. The build of the site makes one for every
tutorial.
"""

import argparse
import base64
import json
import posixpath
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*?) -->\n)?"
    r"```(?P<language>python|sh)(?: title=\"(?P<title>[^\"\n]*)\")?\n"
    r"(?P<text>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
IMAGE = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)\)")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
MEDIA_TYPES = {".gif": "image/gif", ".png": "image/png", ".svg": "image/svg+xml"}
BACKGROUND = "in the background"
"""Note of a command that keeps running while the reader goes on."""
WAIT = "A notebook does not show when the command is ready: wait ten seconds before the next cell."

Cell = dict[str, Any]


@dataclass
class Block:
    """Block of code on a page.

    Attributes:
        language: ``python`` or ``sh``.
        text: The lines between the fences.
        title: File that the reader saves the text as; empty if the text is run.
        note: Content of the comment above the block, for the tests; empty if there is none.
    """

    language: str
    text: str
    title: str = ""
    note: str = ""


def split(page: str) -> list[str | Block]:
    """Return the text and the blocks of a page, in their order."""
    parts: list[str | Block] = []
    end = 0
    for match in BLOCK.finditer(page):
        parts.append(page[end : match.start()])
        parts.append(
            Block(match["language"], match["text"], match["title"] or "", match["note"] or "")
        )
        end = match.end()
    parts.append(page[end:])
    return [part for part in parts if isinstance(part, Block) or part.strip()]


def make_notebook(path: Path) -> dict[str, Any]:
    """Return a page as a notebook, in the format nbformat 4.5.

    Args:
        path: Markdown file below ``docs``.
    """
    page = path.read_text(encoding="utf-8")
    introduction, heading, steps = page.partition("\n## ")
    cells = [text_cell(introduction.strip(), path), code_cell(setup(introduction))]
    for part in split(heading + steps):
        if isinstance(part, Block):
            cells.append(code_cell(source_of(part)))
            if part.note == BACKGROUND:
                cells.append(text_cell(WAIT, path))
        else:
            cells.append(text_cell(part.strip(), path))

    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index}"
    language = {"name": "python"}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": language}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def source_of(block: Block) -> str:
    """Return the source of a code cell."""
    text = block.text.rstrip("\n")
    if block.title:
        return f"%%writefile {block.title}\n{text}"
    if block.language == "python":
        return text
    magic = "%%bash --bg" if block.note == BACKGROUND else "%%bash"
    return f"{magic}\n{text}"


def setup(introduction: str) -> str:
    """Return the source of the cell that installs Yamame where it is missing.

    Args:
        introduction: Text above the first step, which may name extras in a ``pip install``.
    """
    named = re.search(r"pip install '(yamame\[[^']+)'", introduction)
    requirement = named[1] if named else f"yamame[train] @ git+{urls()['Repository']}"
    lines = [
        "try:",
        "    import yamame",
        "except ModuleNotFoundError:",
        f'    %pip install -q "{requirement}"',
    ]
    return "\n".join(lines)


def code_cell(source: str) -> Cell:
    """Return a code cell that has not been run."""
    empty = {"metadata": {}, "execution_count": None, "outputs": []}
    return {"cell_type": "code", "source": source, **empty}


def text_cell(text: str, path: Path) -> Cell:
    """Return a text cell, with the pictures that the text shows."""
    attachments = {}

    def embed(match: re.Match[str]) -> str:
        file = path.parent / match[2]
        content = base64.b64encode(file.read_bytes()).decode("ascii")
        attachments[file.name] = {MEDIA_TYPES[file.suffix]: content}
        return f"![{match[1]}](attachment:{file.name})"

    def lead_to_site(match: re.Match[str]) -> str:
        target = posixpath.normpath((path.parent / match[1]).relative_to(ROOT).as_posix())
        return address_of(target) + (match[2] or "")

    text = COMMENT.sub("", text)  # for the tests of a page
    text = IMAGE.sub(embed, text)
    text = LINK.sub(lead_to_site, text)
    cell: Cell = {"cell_type": "markdown", "metadata": {}, "source": text}
    if attachments:
        cell["attachments"] = attachments
    return cell


def address_of(path: str) -> str:
    """Return the address of a page of the site, or of another file in the repository."""
    if path.startswith("docs/") and path.endswith(".md"):
        page = path.removeprefix("docs/").removesuffix(".md")
        return f"{urls()['Documentation']}/{page}.html"
    return f"{urls()['Repository']}/blob/main/{path}"


def urls() -> dict[str, str]:
    """Return the addresses in ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]


def write(notebook: dict[str, Any]) -> str:
    """Return the text of a notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def offer_notebooks(files: Any, config: Any) -> None:
    """Add a notebook for every tutorial to the files of the site, and a link to its page.

    Args:
        files: The files of a MkDocs build.
        config: The configuration of the build.
    """
    from mkdocs.structure.files import File

    for file in list(files.documentation_pages()):
        if posixpath.dirname(file.src_uri) != "tutorials":
            continue
        uri = f"{file.src_uri.removesuffix('.md')}.ipynb"
        content = write(make_notebook(DOCS / file.src_uri))
        files.append(File.generated(config, uri, content=content))
        title, rest = file.content_string.split("\n", 1)
        link = f"[Download this page as a notebook]({posixpath.basename(uri)})"
        file.content_string = f"{title}\n\n{link}\n{rest}"


def main() -> None:
    """Write the notebooks of the pages on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    for page in arguments.pages:
        path = arguments.folder / f"{page.stem}.ipynb"
        path.write_text(write(make_notebook(page.resolve())), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
