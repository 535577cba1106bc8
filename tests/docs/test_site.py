"""The site has a page for every document, and an entry for every public name."""

from __future__ import annotations

import importlib
import inspect
import re
import zlib
from pathlib import Path

import pytest

import anyaccel
from anyaccel.distributions import NAMES, OFFERED

FOR_PLUGINS = ("adapter", "backend", "hookspecs", "segment", "testing")


@pytest.fixture(scope="module")
def documented(site: Path) -> dict[str, str]:
    """Every Python name that has an entry, and its address in the site."""
    content = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    rows = [line.split() for line in zlib.decompress(content).decode("utf-8").splitlines()]
    return {row[0]: row[3] for row in rows if row[1].startswith("py:")}


def is_code(value: object) -> bool:
    """Whether a value is a class or a function."""
    return inspect.isclass(value) or inspect.isroutine(value)


def entries(module: str, name: str) -> set[str]:
    """The names under which a value may have an entry: where it is offered, and where it is defined."""
    value = getattr(importlib.import_module(module), name)
    if inspect.ismodule(value):
        return {value.__name__}
    return {f"{module}.{name}", f"{getattr(value, '__module__', module)}.{name}"}


@pytest.mark.parametrize("name", [*anyaccel.__all__, *" ".join(OFFERED[NAMES].values()).split()])
def test_every_public_name_has_an_entry(name: str, documented: dict[str, str]) -> None:
    if name == "hookimpl":  # an object of pluggy; the page of hooks is about it
        return
    assert entries("anyaccel", name) & set(documented), f"put {name} on a page of docs/reference/api"


@pytest.mark.parametrize("module", FOR_PLUGINS)
def test_every_name_of_a_module_for_plugins_has_an_entry(module: str, documented: dict[str, str]) -> None:
    home = importlib.import_module(f"anyaccel.{module}")
    own = [name for name, value in vars(home).items() if getattr(value, "__module__", "") == home.__name__]
    names = getattr(home, "__all__", own)
    public = [name for name in names if not name.startswith("_") and is_code(getattr(home, name))]
    assert public
    missing = [name for name in public if not entries(home.__name__, name) & set(documented)]
    assert not missing, f"put {missing} on docs/reference/api/{module}.md"


def test_every_document_has_a_page(root: Path, site: Path) -> None:
    sources = [*root.glob("docs/**/*.md"), *root.glob("docs/**/*.ipynb"), *root.glob("docs/examples/*.py")]
    sources = [path.relative_to(root / "docs") for path in sources]
    expected = [path for path in sources if path.name != "CHANGELOG.md" and not path.parts[0].startswith("_")]
    assert len(expected) > 20
    missing = [path for path in expected if not (site / path.with_suffix(".html")).is_file()]
    assert not missing


def test_every_page_can_be_reached_from_the_front(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    linked = {target.partition("#")[0] for target in re.findall(r'href="([^"]+)"', front)}
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    pages -= {"search.html", "genindex.html", "py-modindex.html", "index.html"}
    pages = {page for page in pages if "/tests/" not in page}
    assert not sorted(pages - linked)


def test_a_script_is_shown_whole(site: Path) -> None:
    page = (site / "examples/two_frameworks.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert "def trained(encoder_mlp, head_mlp)" in text
    assert "Two frameworks in one graph" in text


def test_code_has_copy_buttons(site: Path) -> None:
    page = (site / "how-to/custom-loss.html").read_text(encoding="utf-8")
    assert "copybutton.js" in page
