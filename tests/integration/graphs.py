"""Random small graphs as plain values, so that the same graph can be built in any framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anyaccel as aa
from anyaccel.registry import registry


@dataclass(frozen=True)
class Layer:
    """A node: an MLP of one or two layers, on one input or on two concatenated ones, given by number."""

    inputs: tuple[int, ...]
    width: int
    layers: int
    activation: str
    frozen: bool


@dataclass(frozen=True)
class GraphSpec:
    """A graph over one feature column [5]; input -1 is the data, the last layer gets a loss."""

    layers: tuple[Layer, ...]
    loss: str
    optimizer: tuple[tuple[str, Any], ...]
    clip: float | None
    schedule: bool
    dtype: str
    extra_loss: bool


@st.composite
def graph_specs(draw: st.DrawFn) -> GraphSpec:
    """Graphs of one to four nodes with branches, concatenations and frozen nodes."""
    count = draw(st.integers(1, 4))
    layers = []
    for i in range(count):
        inputs = draw(st.lists(st.integers(-1, i - 1), min_size=1, max_size=2, unique=True))
        layers.append(
            Layer(
                tuple(inputs),
                draw(st.integers(1, 4)),
                draw(st.integers(1, 2)),
                draw(st.sampled_from(["relu", "tanh", "sigmoid"])),
                draw(st.booleans()) and i < count - 1,
            )
        )
    name = draw(st.sampled_from(["sgd", "momentum", "adam", "adamw"]))
    settings: dict[str, Any] = {
        "name": name,
        "lr": draw(st.sampled_from([1e-2, 3e-2])),
        "weight_decay": draw(st.sampled_from([0.0, 0.1])),
    }
    if name == "momentum":
        settings["nesterov"] = draw(st.booleans())
    classes = ["cross_entropy"] if layers[-1].width > 1 else []
    return GraphSpec(
        tuple(layers),
        draw(st.sampled_from(["mse", "mae", "binary_cross_entropy", *classes])),
        tuple(settings.items()),
        draw(st.sampled_from([None, 0.05, 1.0])),
        draw(st.booleans()),
        draw(st.sampled_from(["float64", "float32"])),
        draw(st.booleans()),
    )


def feature_set(spec: GraphSpec, rows: int = 37) -> aa.FeatureSet:
    """Data for a graph: inputs [rows, 5] in its dtype, and targets of every kind that its losses take."""
    random = np.random.default_rng(3)
    width = spec.layers[-1].width
    columns = {
        "x": random.standard_normal((rows, 5)).astype(spec.dtype),
        "real": random.standard_normal((rows, width)).astype(spec.dtype),
        "bits": random.integers(0, 2, (rows, width)).astype(spec.dtype),
        "kind": random.integers(0, width, rows),
        "first": random.standard_normal((rows, spec.layers[0].width)).astype(spec.dtype),
    }
    return aa.FeatureSet.from_dict("data", columns, ["x"], [name for name in columns if name != "x"])


def graph(spec: GraphSpec, source: aa.FeatureSet, owners: Mapping[int, str] | str) -> aa.ModelGraph:
    """The graph; `owners` names the framework of each layer, or of all."""
    nodes: list[Any] = []
    for i, layer in enumerate(spec.layers):
        framework = owners if isinstance(owners, str) else owners[i]
        mlp: Any = registry().computing(framework).models()["SequentialMLP"]
        ups = [source.reference(target=[]) if up < 0 else f"n{up}" for up in layer.inputs]
        if len(ups) > 1:
            nodes.append(aa.ConcatNode(f"join{i}", ups))
            ups = [f"join{i}"]
        model = mlp(
            output_shape=(layer.width,),
            n_layers=layer.layers,
            hidden_dim=3,
            activation=layer.activation,
            dtype=spec.dtype,
        )
        node = aa.ModelNode(f"n{i}", model, ups)
        node.frozen = layer.frozen
        nodes.append(node)
    schedule = aa.Schedule("cosine", steps=9, final=0.1, warmup=2) if spec.schedule else None
    optimizer = aa.Optimizer(**dict(spec.optimizer), clip_norm=spec.clip, schedule=schedule)
    return aa.ModelGraph(nodes, optimizer, seed=7)


def losses(spec: GraphSpec) -> list[aa.AppliedLoss]:
    """The losses: one on the last node, and possibly one on the first."""
    last = len(spec.layers) - 1
    target = {"binary_cross_entropy": "bits", "cross_entropy": "kind"}.get(spec.loss, "real")
    applied = [aa.AppliedLoss(spec.loss, on=f"n{last}", inputs=["outputs", f"data.{target}"], label="last")]
    if spec.extra_loss:
        applied.append(aa.AppliedLoss("mse", on="n0", inputs=["outputs", "data.first"], weight=0.3, label="first"))
    return applied


def train(
    spec: GraphSpec, owners: Mapping[int, str] | str, epochs: int = 3, **settings: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    """Results and final state of a few shuffled epochs with a partial last batch."""
    source = feature_set(spec)
    trained = graph(spec, source, owners)
    experiment = aa.Experiment("parity", trained, progress="none")
    phase = aa.TrainPhase(
        "train",
        data=source,
        sampler=aa.SimpleSampler(8, shuffle=True, seed=5),
        losses=losses(spec),
        epochs=epochs,
        **settings,
    )
    return experiment.run_phase(phase), trained.state()
