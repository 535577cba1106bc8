"""Notebooks are stored without outputs, are short, and have the code of a script that runs as a test."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob("tutorial/*.ipynb"))
SCRIPTS = {
    "tutorial/a-day.ipynb": "examples/path_a_day.py",
    "tutorial/an-hour.ipynb": "examples/path_an_hour.py",
    "tutorial/bring-your-data.ipynb": "examples/parquet_to_pandas.py",
    "tutorial/ten-minutes.ipynb": "examples/path_ten_minutes.py",
}
MOST_LINES = 60


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
    """The statements of a cell, with print() around a value at its end, as in a script."""
    body = ast.parse(cell).body
    if isinstance(body[-1], ast.Expr) and not isinstance(body[-1].value, ast.Call):
        body[-1] = ast.parse(f"print({ast.unparse(body[-1])})").body[0]
    return body


def split_imports(body: list[ast.stmt]) -> tuple[set[str], list[str]]:
    """The imports, whose order the formatter decides, and the other statements."""
    text = [ast.unparse(node) for node in body]
    imports = {line for line, node in zip(text, body, strict=True) if isinstance(node, (ast.Import, ast.ImportFrom))}
    return imports, [line for line in text if line not in imports]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    for cell in read(name)["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None, "clear the outputs"
        assert not cell["metadata"], "remove the metadata of cells"
    assert set(read(name)["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_short(name: str) -> None:
    assert 5 < sum(map(lines_of_code, cells(read(name)))) < MOST_LINES


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_the_code_of_its_script(name: str) -> None:
    script = ast.parse((DOCS / SCRIPTS[name]).read_text(encoding="utf-8")).body[1:]  # without its docstring
    imports, rest = split_imports([statement for cell in cells(read(name)) for statement in printed(cell)])
    assert split_imports(script) == ({"from __future__ import annotations", *imports}, rest)


def test_there_is_a_notebook() -> None:
    assert list(SCRIPTS) == NOTEBOOKS


def test_lines_of_code_are_counted_without_comments() -> None:
    assert lines_of_code("import a\n\n# why\nb = 1  # one\n    c\n") == 3


def test_a_value_at_the_end_of_a_cell_is_printed() -> None:
    assert [ast.unparse(node) for node in printed("a = 1\na + 1")] == ["a = 1", "print(a + 1)"]
    for silent in ("a = 1", "save(1)"):
        assert [ast.unparse(node) for node in printed(silent)] == [silent]
