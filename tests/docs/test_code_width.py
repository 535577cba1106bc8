"""Code on pages fits a window of 1,280 pixels: at most 88 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = 88
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/README.md")])
PAGES = [ROOT / "README.md", *(page for page in PAGES if "_build" not in page.parts)]
# Pages that show files of a project as they are, and decisions, which are kept as they were written.
AS_THEY_ARE = ("docs/how-to/write-a-backend.md", "docs/decisions/")
BLOCK = re.compile(r"^```(python|toml|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:\$ )?(?:python|anyaccel) .*$", re.MULTILINE)
INCLUDED = re.compile(r"^`{3,}\{literalinclude\} (\S+\.py)$", re.MULTILINE)


def long_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > COLUMNS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_of_a_page_is_narrow(page: Path) -> None:
    if page.relative_to(ROOT).as_posix().startswith(AS_THEY_ARE):
        return
    text = page.read_text("utf-8")
    found = []
    for kind, code in BLOCK.findall(text):
        found += long_lines("\n".join(COMMAND.findall(code)) if kind == "console" else code)
    for script in INCLUDED.findall(text):
        if "own-loop" not in script:  # shown as differences
            found += long_lines((page.parent / script).read_text("utf-8"))
    assert not found, "break these lines, or shorten their texts"


def test_long_lines_are_found() -> None:
    assert long_lines(f"{'a' * 88}\n{'b' * 89}\n") == ["b" * 89]
    assert BLOCK.findall("```python\na\n```\n") == [("python", "a\n")]
    assert COMMAND.findall("$ python a.py\noutput\n") == ["$ python a.py"]
    assert INCLUDED.findall("```{literalinclude} ../a.py\n") == ["../a.py"]
