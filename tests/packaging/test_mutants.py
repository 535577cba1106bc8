"""The list of surviving mutants names lines that exist, each with a reason."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/mutants"

if not (ROOT / "core/src").is_dir():
    pytest.skip("the sources are not here", allow_module_level=True)


def test_every_survivor_is_a_line_of_its_file_and_has_a_reason() -> None:
    survivors = tomllib.loads((FOLDER / "survivors.toml").read_text("utf-8")).get("survivor", [])
    for each in survivors:
        lines = map(str.strip, (ROOT / each["file"]).read_text("utf-8").splitlines())
        assert each["before"] in lines, f"{each['file']} has no line {each['before']!r} any more"
        assert len(each["reason"].split()) > 3, each


def test_every_area_has_sources_and_tests() -> None:
    areas = tomllib.loads((FOLDER / "areas.toml").read_text("utf-8"))
    assert sum(area["mutants"] for area in areas.values()) >= 150
    for area in areas.values():
        assert all(any(ROOT.glob(pattern)) for pattern in area["sources"])
        assert all((ROOT / test).exists() for test in area["tests"])
