"""What 0.1 saved with a framework is read, and gives what it gave: `tests/core/saved_0_1/write.py` says how."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from saved_numbers import near

from .cases import CASES

HERE = Path(__file__).parent
OF_ONE = [name for name in CASES if name != "mixed"]
NEEDED = {"linen": "flax", "nnx": "flax", "equinox": "equinox", "chain": "optax", "lion": "optax", "masked": "optax"}


def assert_gives_what_it_gave(name: str, folder: Path) -> None:
    """Numbers are within what other processors and threads give, all else is the same."""
    expected = json.loads((HERE / name / "expected.json").read_text())["values"]
    values = CASES[name][1](Path(shutil.copytree(HERE / name, folder / name)))
    assert expected and values.keys() == expected.keys()
    for key, value in expected.items():
        assert values[key] == near(key, value, 1e-3), key


@pytest.mark.parametrize("name", OF_ONE)
def test_it_is_read_and_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    words = name.split("_")
    pytest.importorskip(words[1])
    pytest.importorskip(f"anyaccel_{words[1]}")
    for word in words[2:]:
        pytest.importorskip(NEEDED.get(word, words[1]))
    if "keras" in words and pytest.importorskip("keras").backend.backend() != "tensorflow":
        pytest.skip("Keras computes with another framework in this process")
    assert_gives_what_it_gave(name, tmp_path)


def test_a_run_of_three_frameworks_goes_on(three: Any, tmp_path: Path) -> None:
    if pytest.importorskip("keras").backend.backend() != "tensorflow":
        pytest.skip("Keras computes with another framework in this process")
    assert_gives_what_it_gave("mixed", tmp_path)


def test_every_folder_has_a_reader() -> None:
    folders = {path.parent.name for path in HERE.glob("*/expected.json")}
    assert folders == set(CASES)
