"""Links between Markdown files lead to files and headings that exist, so that they work in the repository too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors.index import slugify

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "core", "plugins", ".github")
PARSER = MarkdownIt("commonmark").enable("table")


def documents() -> list[Path]:
    """Every Markdown file of the repository, without generated ones."""
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    found = [path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *below]]
    return sorted(path for path in found if not any(part.startswith((".", "_")) for part in path.parts[:-1]))


def tokens(path: Path) -> Iterator[Token]:
    """All tokens of a document, inline ones too."""
    for token in PARSER.parse(path.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def targets(path: Path) -> list[str]:
    """Targets of links and images of a document that are in the repository."""
    found = [token.attrGet("href") or token.attrGet("src") for token in tokens(path)]
    return [unquote(str(target)) for target in found if target and not re.match(r"[a-z]+:", str(target))]


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as code hosts make them; repeated names get a number."""
    names: list[str] = []
    for opening, inline in pairwise(PARSER.parse(path.read_text(encoding="utf-8"))):
        if opening.type == "heading_open":
            text = "".join(part.content for part in inline.children or () if part.type in ("text", "code_inline"))
            names.append(slugify(text))
    earlier = [names[:index].count(name) for index, name in enumerate(names)]
    return {f"{name}-{count}" if count else name for name, count in zip(names, earlier, strict=True)}


def broken(path: Path) -> list[str]:
    """The links of a document whose target does not exist."""
    wrong = []
    for target in targets(path):
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("document", [str(path) for path in documents()])
def test_links_lead_somewhere(document: str) -> None:
    assert broken(ROOT / document) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# Here\n## `x` and y\n# Here\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#x-and-y) [c](there.md#here-1) [d](gone.md) [e](there.md#no) [f](#no)")
    assert broken(page) == ["gone.md", "there.md#no", "#no"]


def test_the_front_of_the_repository_is_among_them() -> None:
    assert Path("README.md") in documents()
    assert any(targets(ROOT / path) for path in documents())
