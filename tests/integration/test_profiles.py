"""Profiles by the frameworks' own profilers: valid traces with the names of phase and nodes, hostile labels too."""

from __future__ import annotations

import os
from importlib import import_module

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter.step_profiler import read_trace
from anyaccel.errors import PhaseError

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
ROWS = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
LABEL = 'an "encoder" \\ <b>#1'
NAME = "an _encoder_ _ <b>_1"
FULL_ONLY = pytest.mark.skipif(os.environ.get("ANYACCEL_TEST_FULL") != "1", reason="ANYACCEL_TEST_FULL=1 runs it")


def nodes(first: str, second: str):
    made = [import_module(f"anyaccel_{name}").SequentialMLP for name in (first, second)]
    return [aa.ModelNode(LABEL, made[0](4), ROWS.reference()), aa.ModelNode("head", made[1](1), LABEL)]


def profiled(folder, first, second, **settings):
    profile = aa.Profile(steps=(3, 6), folder=str(folder))
    losses = [aa.AppliedLoss("mse", on="head")]
    phase = aa.TrainPhase("fit", data="all", losses=losses, batch_size=8, callbacks=[profile], **settings)
    results = aa.Experiment(aa.ModelGraph(nodes(first, second), "sgd"), progress="none").run_phase(phase)
    return results, {path.name: [e for e in read_trace(path) if e.get("ph") == "X"] for path in profile.files}


def names_of(spans):
    return {span["name"].partition(": ")[0] if ": " in span["name"] else span["name"] for span in spans}


@pytest.mark.parametrize(
    ("library", "way"),
    [
        ("torch", "off"),
        ("jax", "auto"),
        ("tensorflow", "off"),
        pytest.param("tensorflow", "steps", marks=FULL_ONLY),
    ],
)
def test_the_trace_of_a_framework_has_the_phase_and_every_node(tmp_path, library, way):
    pytest.importorskip(library)
    _, files = profiled(tmp_path, library, library, compile=way)
    (spans,) = files.values()
    assert {"fit", NAME, "head"} <= names_of(spans)
    marked = [span for span in spans if span["name"].startswith("fit: step")]
    assert sum(span["dur"] for span in marked) > 0
    if library == "torch":
        assert [span["name"] for span in spans].count("head") == 3
        assert any(span["name"].startswith("aten::addmm") for span in spans)
    elif way != "off":
        node = [span for span in spans if (span.get("args") or {}).get("node") == NAME]
        assert any("transpose" in span["args"]["scope"] or "gradient" in span["args"]["scope"] for span in node)


@pytest.mark.parametrize("library", ["jax", pytest.param("tensorflow", marks=FULL_ONLY)])
def test_programs_with_the_same_instructions_are_told_apart(tmp_path, library):
    """XLA names instructions by what they do, and programs by their function."""
    pytest.importorskip(library)
    make = import_module(f"anyaccel_{library}").SequentialMLP
    experiments, named = [], []
    for labels in (("one", "two"), ("two", "three"), ("three", "one")):
        first, last = (
            aa.ModelNode(label, make(1), source)
            for label, source in zip(labels, [ROWS.reference(), labels[0]], strict=True)
        )
        profile = aa.Profile(steps=(3, 6), folder=str(tmp_path / labels[0]))
        losses = [aa.AppliedLoss("mse", on=labels[1])]
        phase = aa.TrainPhase("fit", data="all", losses=losses, batch_size=8, callbacks=[profile], compile="steps")
        experiments.append(aa.Experiment(aa.ModelGraph([first, last], "sgd"), progress="none"))
        experiments[-1].run_phase(phase)
        events = read_trace(profile.files[0])
        named.append({event["args"]["node"] for event in events if "node" in (event.get("args") or {})})
        assert named[-1] == set(labels)
    assert len(experiments) == 3  # what they have compiled is alive


@pytest.mark.across
def test_each_framework_of_a_graph_writes_its_own_trace(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    results, files = profiled(tmp_path, "torch", "jax")
    assert set(files) == {"fit-jax.trace.json.gz", "fit-torch.trace.json.gz"}
    assert NAME in names_of(files["fit-torch.trace.json.gz"])
    assert "head" in names_of(files["fit-jax.trace.json.gz"])
    for spans in files.values():
        assert len([span for span in spans if span["name"].startswith("fit: step")]) >= 1
    assert [event.kind for event in results.events].count("profile") == 1


def test_a_profiler_that_the_user_has_started_goes_on_and_the_next_profile_is_made(tmp_path):
    torch = pytest.importorskip("torch")
    with torch.profiler.profile() as own:
        with pytest.raises(PhaseError, match=r"profiler of torch does not start: .*Hint: stop the profiler"):
            profiled(tmp_path / "refused", "torch", "torch", compile="off")
        torch.ones(3).add(1)
    assert own.key_averages()[0] and any(event.key == "aten::add" for event in own.key_averages())
    _, files = profiled(tmp_path, "torch", "torch", compile="off")
    assert set(files) == {"fit-torch.trace.json.gz"}
