"""Digests of code and settings: alike where these are, and named where they are not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel_distributed.comparison import code_digests


def digests(lr: float = 0.1, **settings: Any) -> dict[str, str]:
    x = np.ones((8, 2), np.float32)
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, "x", "y")
    graph = aa.ModelGraph(
        [aa.ModelNode("net", aa.SequentialMLP(output_shape=(1,)), rows.reference())], aa.Optimizer("sgd", lr=lr)
    )
    losses = [aa.AppliedLoss("mse", on="net")]
    return code_digests(aa.TrainPhase("train", data=rows, losses=losses, **settings), graph)


def different(one: dict[str, str], other: dict[str, str]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if one[name] != other[name]]


def test_settings_that_differ_are_named() -> None:
    assert different(digests(), digests()) == []
    assert different(digests(), digests(epochs=3)) == ["the setting 'epochs' of the phase"]
    assert different(digests(), digests(batch_size=16)) == ["the setting 'sampler' of the phase"]
    assert different(digests(), digests(lr=0.2)) == ["the settings of 'optimizer'"]


def test_a_script_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, main = tmp_path / "train.py", ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    script.write_text("width = 16\n")
    before = digests()
    script.write_text("width = 32\n")
    assert different(before, digests()) == ["the file 'train.py'"]
    script.unlink()
    assert "the file 'train.py'" not in digests()
