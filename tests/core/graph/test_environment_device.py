"""ANYACCEL_DEVICE: what names no device is an error that names the variable."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import DeviceParseError, DeviceUnavailableError

X = np.ones((8, 3), "float32")


def evaluate():
    data = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "adam")
    return graph.run(aa.EvalPhase("e", data=data), progress="none").prediction("net")


def test_what_is_no_device_is_refused_with_the_name_of_the_variable_and_the_hint_works(monkeypatch):
    monkeypatch.setenv("ANYACCEL_DEVICE", "cpu:x")
    message = r"environment variable ANYACCEL_DEVICE='cpu:x': .* Hint: set ANYACCEL_DEVICE=cpu or "
    with pytest.raises(DeviceParseError, match=message):
        evaluate()
    monkeypatch.setenv("ANYACCEL_DEVICE", "cpu")
    assert evaluate().shape == (8, 1)


def test_a_kind_that_nothing_serves_is_refused_and_does_not_become_the_cpu(monkeypatch):
    monkeypatch.setenv("ANYACCEL_DEVICE", "nonsense")
    message = r"ANYACCEL_DEVICE requests 'nonsense', .*Available: .*cpu.*sim.* Hint: set ANYACCEL_DEVICE=cpu, or unset"
    with pytest.raises(DeviceUnavailableError, match=message):
        evaluate()
    monkeypatch.delenv("ANYACCEL_DEVICE")
    assert evaluate().shape == (8, 1)
