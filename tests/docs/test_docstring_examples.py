"""The examples in docstrings are run as a reader would paste them, and print what the docstring shows."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "core/src", *sorted(ROOT.glob("plugins/*/src"))]
OPTIONAL = ("pandas",)  # packages that core can use and does not require
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples() -> Iterator[object]:
    """Each docstring with an example: its package, its place and its text."""
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if ">>>" not in text:
                continue
            package = path.relative_to(source).parts[0]
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    docstring = ast.get_docstring(node) or ""
                    if ">>>" in docstring:
                        name = f"{path.relative_to(source)}:{getattr(node, 'name', 'module')}"
                        yield pytest.param(package, docstring, path, node.body[0].lineno, id=name)


@pytest.mark.parametrize(("package", "docstring", "path", "line"), list(examples()))
def test_an_example_in_a_docstring_prints_what_it_shows(
    package: str, docstring: str, path: Path, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, *(optional for optional in OPTIONAL if f" {optional} as" in docstring)):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(docstring, {"__name__": "__main__"}, path.stem, str(path), line)
    shown: list[str] = []
    results = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=shown.append)
    assert results.attempted
    assert not results.failed, "".join(shown)
