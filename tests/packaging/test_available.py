"""Every `available=` of the sources: what a message calls "Available:" lists options, or is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

VERB = re.compile(r"\b(is|are|was|were|has|have|had|must|can|cannot|does|do|will)\b")
"""A text with one of these says something; it belongs to the problem or its cause."""
NONE = re.compile(r"\s*(none|nothing|nobody|no|not|an empty)\b", re.IGNORECASE)
"""An empty text is left out of a message; one that begins so would stand there as an option."""


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The constants in what becomes `available`, with their lines; those of f-strings, too."""
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values = [keyword.value for keyword in node.keywords if keyword.arg == "available"]
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                values += [value for name, value in pairs if isinstance(name, ast.Name) and name.id == "available"]
        for value in values:
            for part in ast.walk(value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def wrong(source: str) -> list[str]:
    return [f"{line}: {text!r}" for line, text in texts(ast.parse(source)) if VERB.search(text) or NONE.match(text)]


def test_what_is_available_is_a_list_of_options(root: Path) -> None:
    sources = sorted([*root.glob("core/src/**/*.py"), *root.glob("plugins/*/src/**/*.py")])
    said = {path: wrong(path.read_text(encoding="utf-8")) for path in sources}
    assert {str(path.relative_to(root)): lines for path, lines in said.items() if lines} == {}
    assert sum(len(list(texts(ast.parse(path.read_text(encoding="utf-8"))))) for path in sources) > 200


@pytest.mark.parametrize(
    "call",
    [
        'E("p", available="no such folder")',
        'E("p", available=", ".join(names) or "none")',
        'E("p", available=f"frameworks whose plugin has {name!r}")',
        'available, hint = "it is empty", "h"',
        'available = f"row {row} has {value}"',
    ],
)
def test_the_rule_finds_what_is_no_option(call: str) -> None:
    assert wrong(call)
    assert not wrong('E("p", available=", ".join(names), cause="there is no folder")')
