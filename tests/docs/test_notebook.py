"""The notebooks are stored clean, and are short; each says the same as the script beside it, which is run as a test."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob("tutorial/*.ipynb"))
SCRIPTS = {"tutorial/bring-your-data.ipynb": "examples/parquet_to_pandas.py"}
MOST_LINES = 40


def read(name: str) -> dict[str, Any]:
    """A notebook of docs/, as plain data."""
    content: dict[str, Any] = json.loads((DOCS / name).read_text(encoding="utf-8"))
    return content


def cells(notebook: dict[str, Any]) -> list[str]:
    """The code of each cell that has some."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def lines_of_code(source: str) -> int:
    """How many lines are neither empty nor a comment."""
    lines = [line.strip() for line in source.splitlines()]
    return sum(1 for line in lines if line and not line.startswith("#"))


def printed(cell: str) -> list[ast.stmt]:
    """The statements of a cell; a value that it shows in the end is printed, as a script has to; a call just is."""
    body = ast.parse(cell).body
    if isinstance(body[-1], ast.Expr) and not isinstance(body[-1].value, ast.Call):
        body[-1] = ast.parse(f"print({ast.unparse(body[-1])})").body[0]
    return body


def split_imports(body: list[ast.stmt]) -> tuple[set[str], list[str]]:
    """The imports, whose order is the formatter's, and the other statements."""
    text = [ast.unparse(node) for node in body]
    imports = {line for line, node in zip(text, body, strict=True) if isinstance(node, (ast.Import, ast.ImportFrom))}
    return imports, [line for line in text if line not in imports]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_what_it_gave(name: str) -> None:
    for cell in read(name)["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None, "clear its outputs before it is stored"
        assert not cell["metadata"], "metadata of a cell are a trace of somebody's editor"
    assert set(read(name)["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_short(name: str) -> None:
    assert 5 < sum(map(lines_of_code, cells(read(name)))) < MOST_LINES


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_and_its_script_say_the_same(name: str) -> None:
    script = ast.parse((DOCS / SCRIPTS[name]).read_text(encoding="utf-8")).body[1:]  # without its docstring
    imports, rest = split_imports([statement for cell in cells(read(name)) for statement in printed(cell)])
    assert split_imports(script) == ({"from __future__ import annotations", *imports}, rest)


def test_there_is_a_notebook() -> None:
    assert list(SCRIPTS) == NOTEBOOKS


def test_lines_are_counted_as_they_should() -> None:
    assert lines_of_code("import a\n\n# why\nb = 1  # one\n    c\n") == 3


def test_what_a_cell_shows_is_printed() -> None:
    assert [ast.unparse(node) for node in printed("a = 1\na + 1")] == ["a = 1", "print(a + 1)"]
    for silent in ("a = 1", "save(1)"):
        assert [ast.unparse(node) for node in printed(silent)] == [silent]
