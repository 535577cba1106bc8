"""The pages of the reference that are written by hand say what the sources say: nothing more and nothing less."""

from __future__ import annotations

import html
import inspect
import re
from pathlib import Path

import click
import pytest

import anyaccel
from anyaccel import errors, hookspecs
from anyaccel.cli.main import group
from anyaccel.distributions import NAMES, OFFERED

CONTEXT = click.Context(group)
COMMANDS = sorted(group.list_commands(CONTEXT))
OF_TESTS = "ANYACCEL_TEST_"  # of this repository's own tests, and of no interest to users


def page(root: Path, name: str) -> str:
    """A page of the reference."""
    return (root / "docs/reference" / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def first_cells(text: str) -> list[str]:
    """The first cell of every row of the tables of a text, heads left out."""
    rows = re.findall(r"^\| (.*?) \|", text, flags=re.MULTILINE)
    return [row for row in rows if row.startswith("`")]


def hooks() -> dict[str, list[str]]:
    """Every hook and its arguments, as pluggy knows them."""
    found = {name: value for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")}
    return {name: list(inspect.signature(value).parameters) for name, value in found.items()}


def test_every_hook_is_described_with_its_arguments(root: Path) -> None:
    beginning = page(root, "hooks.md").partition("\n## ")[0]
    calls = [re.fullmatch(r"`(\w+)\((.*)\)`", cell) for cell in first_cells(beginning)]
    described = {call[1]: [name for name in call[2].split(", ") if name] for call in calls if call}
    assert described == hooks()


def test_the_moments_are_described_in_the_order_of_their_calls(root: Path) -> None:
    cells = [cell[1:].partition("(")[0] for cell in first_cells(page(root, "hooks.md"))]
    assert [name for name in cells if name in hookspecs.HOOKS] == list(hookspecs.HOOKS)


def test_every_error_is_described(root: Path) -> None:
    cells = [cell.strip("`") for cell in first_cells(page(root, "errors.md"))]
    known = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.AnyaccelError) and value is not errors.AnyaccelError
    }
    assert len(cells) == len(set(cells))
    assert set(cells) == known


def test_every_error_names_the_bases_it_has(root: Path) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page(root, "errors.md"), flags=re.MULTILINE)
    described = {name: {base for base in re.split(r", | and ", bases.strip()) if base} for name, bases in rows}
    bases = {name: {base.__name__ for base in getattr(errors, name).__bases__} for name in described}
    assert described == {name: found - {"AnyaccelError"} for name, found in bases.items()}


def options(name: str) -> set[str]:
    """The long options of a command."""
    command = group.get_command(CONTEXT, name)
    assert command is not None
    found = [name for part in command.params if isinstance(part, click.Option) for name in part.opts]
    return {name for name in found if name.startswith("--")}


def test_every_command_is_described(root: Path) -> None:
    described = [title for title in sections(page(root, "cli.md")) if title.startswith("`anyaccel ")]
    assert sorted(title.strip("`").split()[1] for title in described) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_described(name: str, root: Path) -> None:
    text = sections(page(root, "cli.md"))[f"`anyaccel {name}`"]
    beginning = page(root, "cli.md").partition("\n## ")[0]  # says what --json does for all of them
    listed = {word for cell in first_cells(text) for word in re.findall(r"--[a-z][a-z-]*", cell)}
    assert listed <= options(name)
    missing = [option for option in options(name) if option not in text + beginning]
    assert not missing


def variables(root: Path) -> set[str]:
    """Every environment variable of our own that a source reads."""
    sources = [path for folder in ("core/src", "plugins") for path in (root / folder).rglob("src/**/*.py")]
    sources += (root / "core/src").rglob("*.py")
    found = {name for path in sources for name in re.findall(r"\bANYACCEL_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    return {name for name in found if not name.startswith(OF_TESTS)}


def test_every_environment_variable_is_described(root: Path) -> None:
    text = sections(page(root, "cli.md"))["Environment"]
    described = {cell.strip("`") for cell in first_cells(text)}
    assert {name for name in described if name.startswith("ANYACCEL_")} == variables(root)


def lines_of(page: Path) -> set[tuple[str, str]]:
    """The names of the tables at the beginning of a page of the reference, each with its line."""
    row = r'<tr class="row-\w+"><td><p>(.*?)</p></td>\n<td><p>(.*?)</p></td>'
    found = re.findall(row, page.read_text("utf-8"), re.S)
    return {(text_of(name), text_of(line)) for name, line in found}


def text_of(markup: str) -> str:
    """The text of a piece of a page."""
    return html.unescape(re.sub(r"<[^>]+>", "", markup)).strip()


def test_the_index_has_a_line_for_every_public_name(site: Path) -> None:
    listed = lines_of(site / "reference/api/index.html")
    names = {*anyaccel.__all__, *" ".join(OFFERED[NAMES].values()).split()} - {"errors", "hookimpl"}
    assert not names - {name for name, _ in listed}, "put them on a page of docs/reference/api"
    assert not [name for name, line in listed if not line], "give them a docstring"
    assert ("FeatureSet", "Named columns of equal length in read-only Arrow memory.") in listed


def test_a_page_of_the_reference_opens_with_its_names(root: Path, site: Path) -> None:
    index = lines_of(site / "reference/api/index.html")
    for path in (root / "docs/reference/api").glob("[!i]*.md"):
        listed = lines_of(site / f"reference/api/{path.stem}.html")
        assert listed <= index, path.stem
        assert len(listed) >= 3, path.stem


def test_signatures_have_types(site: Path) -> None:
    page = (site / "reference/api/results.html").read_text("utf-8")
    signature = re.search(r'<dt class="sig[^>]*id="anyaccel.find_learning_rate">.*?</dt>', page, re.S)
    assert signature and ": float" in text_of(signature[0])
    assert "→ RangeTest" in text_of(signature[0])
