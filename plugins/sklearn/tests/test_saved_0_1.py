"""What version 0.1 saved of this distribution gives what it gave: the folders are those of core's tests."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

FOLDERS = Path(__file__).parents[3] / "tests/core/saved_0_1"


@pytest.mark.parametrize("name", ["experiment", "fit", "run_estimator", "run_pairs", "run_triplets", "configs"])
def test_it_is_read_and_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("saved_0_1_cases", FOLDERS / "cases.py")
    assert spec is not None and spec.loader is not None
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    assert name in {*cases.OF_SKLEARN, "configs"}
    values = cases.CASES[name][1](Path(shutil.copytree(FOLDERS / name, tmp_path / name)))
    expected = json.loads((FOLDERS / name / "expected.json").read_text())["values"]
    assert expected and values.keys() == expected.keys()
    for key, value in expected.items():
        is_close = isinstance(value, float) or (isinstance(value, list) and all(isinstance(x, float) for x in value))
        assert values[key] == (pytest.approx(value, rel=1e-4, abs=1e-5) if is_close else value), key
