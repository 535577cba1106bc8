"""Mixed residency in each framework: where only some columns would fit, the numbers are those of resident rows."""

from __future__ import annotations

import os
from importlib import import_module

import numpy as np
import pytest

import anyaccel as aa

ROWS = 300
WIDTHS = {"x": 24, "z": 40, "w": 40}
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
WHOLE = pytest.mark.skipif(not FULL, reason="ANYACCEL_TEST_FULL=1 runs it")
DRAW = np.random.default_rng(0)
COLUMNS = {name: DRAW.normal(size=(ROWS, width)).astype("float32") for name, width in WIDTHS.items()}


def graph(library):
    rows = aa.FeatureSet.from_dict("d", {**COLUMNS, "y": COLUMNS["w"][:, :1]}, [*WIDTHS], ["y"])
    model = import_module(f"anyaccel_{library}").SequentialMLP
    nodes = [aa.ModelNode(f"n_{name}", model(3), rows.reference(name)) for name in WIDTHS]
    both = aa.ConcatNode("both", nodes)
    return aa.ModelGraph([*nodes, both, aa.ModelNode("net", model(1), both)], aa.Optimizer("sgd", lr=0.1), seed=2)


def trained(library, way):
    made = graph(library)
    losses = [aa.AppliedLoss("mse", on="net")]
    sampler = aa.SimpleSampler(16, shuffle=True, seed=1)  # and a last, smaller batch
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=sampler, epochs=2, compile=way)
    results = aa.Experiment(made, progress="none").run_phase(phase)
    return results, made.state()


@pytest.mark.parametrize(
    ("library", "way"), [("torch", "off"), ("tensorflow", "off"), pytest.param("jax", "auto", marks=WHOLE)]
)
def test_some_columns_stay_and_the_numbers_are_the_same(monkeypatch, library, way):
    pytest.importorskip(library)
    _, expected = trained(library, way)
    monkeypatch.setattr("anyaccel.phases.loading.residency.free_memory", lambda place: 140_000)
    results, actual = trained(library, way)
    (event,) = [event for event in results.events if event.kind == "residency"]
    streamed, _, resident = event.message.partition(" streamed, ")
    assert "d.w" in streamed and "d.z" in resident.partition(" resident, because all take ")[0]
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
