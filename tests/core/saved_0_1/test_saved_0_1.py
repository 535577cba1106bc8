"""What 0.1 saved is read, and gives what it gave then: `write.py` says how the folders beside this file were made."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from saved_numbers import near

from anyaccel.distributions import METRICS, OFFERED

from .cases import CASES, CONFIGS_OF_SKLEARN, OF_SKLEARN

HERE = Path(__file__).parent
CLOSE = 1e-4 if int(np.__version__.partition(".")[0]) >= 2 else 1e-2
"""The numbers are of NumPy 2; older builds round products of matrices in another way."""


@pytest.mark.parametrize("name", CASES)
def test_it_is_read_and_gives_what_it_gave(name, tmp_path):
    if name in OF_SKLEARN:
        pytest.importorskip("anyaccel_sklearn")  # in whose tests it is read again
    expected = json.loads((HERE / name / "expected.json").read_text())["values"]
    if find_spec("anyaccel_sklearn") is None:
        missing = {
            *CONFIGS_OF_SKLEARN,
            *(f"metric {metric}" for metric in OFFERED[METRICS]["anyaccel-sklearn"].split()),
        }
        expected = {key: value for key, value in expected.items() if key not in missing}
    if find_spec("anyaccel_devtools") is None:
        expected.pop("profile", None)
    values = CASES[name][1](Path(shutil.copytree(HERE / name, tmp_path / name)))
    assert expected and values.keys() == expected.keys()
    for key, value in expected.items():
        assert values[key] == near(key, value, CLOSE), key


def test_every_folder_has_a_reader():
    folders = {path.parent.name for path in HERE.glob("*/expected.json")}
    assert folders == set(CASES)
