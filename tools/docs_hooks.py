"""MkDocs hooks: pages for source files that are linked to, MathML, and the version in the header.

Pages are written for a reader of the repository: a link such as ``../components/yamame/keys.py``
works there. The site holds the files that pages name as pages of its own, below ``source/``, so
that it needs no network and no repository.
"""

import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

import notebooks
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
FETCH = re.compile(r'<(?:link\b[^>]*\bhref|\w+\b[^>]*\bsrc(?:set)?)=["\']?(?:https?:)?//[^>]*>')
BADGE = re.compile(r"\[!\[[^\]]*\]\(https?://[^)]*\)\]\([^)]*\)|!\[[^\]]*\]\(https?://[^)]*\)")
"""Picture of another site in Markdown, with its link."""
VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages in the navigation, which are built even if no page links to them."""


def on_config(config: Any, **_: Any) -> Any:
    """Show the version in the header, with the link to the repository."""
    found = VERSION.search((ROOT / "components" / "yamame" / "__init__.py").read_text())
    if found is None:
        raise PluginError("components/yamame/__init__.py must set __version__")
    config.repo_name = f"yamame {found[1]}"
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page for every file and folder that a page links to, and notebooks of tutorials."""
    notebooks.offer_notebooks(files, config)
    waiting, known = [*ALWAYS], set()
    for page in files.documentation_pages():
        waiting += outside(f"docs/{page.src_uri}", page.content_string)
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        text = page_of(ROOT / path)
        if path.endswith(".md"):
            waiting += outside(path, text)
        in_nav = InclusionLevel.UNDEFINED if path in ALWAYS else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, source_uri(path), content=text, inclusion=in_nav))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links to their pages; leave out badges."""
    here = page.file.src_uri
    if here == "index.md":
        # In the page itself, GitHub would show it as a table.
        page.meta["hide"] = ["navigation", "toc"]
    origin = here.removeprefix("source/") if here.startswith("source/") else f"docs/{here}"

    def replace(match: re.Match[str]) -> str:
        path = resolve(origin, match[1])
        if not (ROOT / path).exists():
            return match[0]
        target = path.removeprefix("docs/") if path.startswith("docs/") else source_uri(path)
        return posixpath.relpath(target, posixpath.dirname(here) or ".") + (match[2] or "")

    return LINK.sub(replace, BADGE.sub("", markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Render equations."""

    def render(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        return (
            f"<{match[1]} "
            f'class="equation">{convert(unescape(match[2]), display=display)}</{match[1]}>'
        )

    return EQUATION.sub(render, html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Raise if a page would load a resource from another site."""
    # The theme's script would ask GitHub for the number of stars in this element.
    output = output.replace(' data-md-component="source"', "")
    if fetched := FETCH.search(output):
        raise PluginError(f"{page.file.src_uri} must fetch nothing, got {fetched[0]}")
    return output


def outside(origin: str, text: str) -> list[str]:
    """Return the files and folders outside of ``docs`` that a page of the repository links to."""
    paths = [resolve(origin, match[1]) for match in LINK.finditer(text)]
    return [
        path for path in paths if not path.startswith((".", "docs/")) and (ROOT / path).exists()
    ]


def resolve(origin: str, link: str) -> str:
    """Return the path of a link in the repository, given the page that contains it."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def source_uri(path: str) -> str:
    """Return the URI of the page of a file or folder."""
    if path.endswith(".md"):
        return f"source/{path}"
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def page_of(path: Path) -> str:
    """Return the page of a file, or of the files of a folder."""
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT)
    files = sorted(path.glob("*.*")) if path.is_dir() else [path]
    blocks = [listing(file) for file in files if file.is_file()]
    return "\n".join(
        ["---", "hide: [navigation, toc]", "search: {exclude: true}", "---", f"# {name}", *blocks]
    )


def listing(path: Path) -> str:
    """Return the text of a file as a code block with its name."""
    language = {".py": "python", ".yaml": "yaml"}.get(path.suffix, "text")
    return f'\n~~~~~~{language} title="{path.relative_to(ROOT)}"\n{path.read_text()}~~~~~~\n'
