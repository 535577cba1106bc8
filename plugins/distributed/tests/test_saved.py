"""Phases, graphs and runs of several replicas that were saved: read as they were, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.phases.runner import Phase

LOSS = aa.AppliedLoss("mse", on="net")


def make_graph(**settings: object) -> aa.ModelGraph:
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference(), **settings)], "adam", seed=0)


def test_a_phase_of_version_0_1_is_read() -> None:
    saved = json.loads(Path(__file__).with_name("saved_0_1_phase.json").read_text())
    phase = Phase.from_config(saved)
    assert phase.deterministic is True
    again = json.loads(json.dumps(phase.get_config()))
    saved["epochs"] = saved.pop("n_epochs")
    assert {name: again[name] for name in saved if name not in ("validation", "checkpoint")} == {
        name: value for name, value in saved.items() if name not in ("validation", "checkpoint")
    }


def test_settings_and_a_node_are_read_as_they_were() -> None:
    settings = {"replicas": 2, "per_replica": True, "deterministic": True, "sharding": "full", "sync_batchnorm": True}
    phase = aa.TrainPhase("t", data="all", losses=[LOSS], **settings)
    again = Phase.from_config(json.loads(json.dumps(phase.get_config())))
    assert {name: getattr(again, name) for name in settings} == settings
    graph = make_graph(sharding="full offload")
    config = json.loads(json.dumps(graph.get_config()))
    data = next(iter(graph.feature_sets.values()))
    assert aa.ModelGraph.from_config(config, feature_sets=[data])["net"].sharding == "full offload"


def test_a_run_of_replicas_goes_on_where_replicas_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of an epoch nothing saved depends on their number."""
    with aa.simulate(2):
        phase = aa.TrainPhase(
            "t", data="all", losses=[LOSS], batch_size=8, accelerator="sim", replicas=2, checkpoint=str(tmp_path)
        )
        first = aa.Experiment("e", make_graph(), progress="none").run_phase(phase)
    for module in ("anyaccel.distributions", "anyaccel.extensions"):
        monkeypatch.setattr(f"{module}.entry_points", lambda group: ())
    longer = aa.TrainPhase("t", data="all", losses=[LOSS], batch_size=8, epochs=2, checkpoint=str(tmp_path))
    resumed = aa.Experiment("e", make_graph(), progress="none").run_phase(longer, resume="auto")
    assert len(resumed.epochs) == 2 and resumed.epochs[0].loss == first.epochs[0].loss
    assert resumed.epochs[1].loss < first.epochs[0].loss
