"""The crossings of a plan are those that simulated devices count, for any graph."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel import Callback, ConcatNode, EvalPhase, Experiment, FeatureSet, ModelGraph, ModelNode, SequentialMLP
from anyaccel.numpy_backend import simulate

PLACES = ("cpu", "sim:0", "sim:1")
ROWS, BATCH = 12, 4


@st.composite
def graphs(draw):
    """For each node: its parents, whether it joins them, its place and its width."""
    nodes = []
    for i in range(draw(st.integers(1, 6))):
        parents = draw(st.lists(st.sampled_from(range(-1, i)), min_size=1, max_size=3))
        joins = len(parents) > 1 and draw(st.booleans())
        nodes.append((parents, joins, draw(st.sampled_from(PLACES)), draw(st.integers(1, 3))))
    return nodes


def build(nodes):
    fs = FeatureSet.from_dict("fs", {"x": np.ones((ROWS, 2), "float32")}, "x")
    made = []
    for i, (parents, joins, place, width) in enumerate(nodes):
        feeds = [fs.reference() if parent < 0 else f"n{parent}" for parent in parents]
        made.append(
            ConcatNode(f"n{i}", feeds)
            if joins
            else ModelNode(f"n{i}", SequentialMLP((width,), n_layers=1), feeds, place)
        )
    return ModelGraph(made)


class Clear(Callback):
    """Start counting when everything is loaded."""

    def __init__(self, devices):
        self.devices = devices

    def after_loading(self, phase, plan):
        for device in self.devices:
            device.clear()


def expected(plan, outputs):
    """Transfers by kind and device that the plan promises for each batch, and the bytes of a sample."""
    numbers, nbytes = Counter(), Counter()

    def count(origin, destination, size):
        for end, kind in ((origin, "out"), (destination, "into")):
            other = destination if end is origin else origin
            if end.kind == "sim":
                key = str(end), "between" if other.kind == "sim" else kind
                numbers[key] += 1
                nbytes[key] += size

    for crossing in plan.crossings:
        count(crossing.origin, crossing.destination, crossing.nbytes)
    for name, size in outputs.items():
        count(plan.device(name), type(plan.device(name))("cpu"), size)
    return numbers, nbytes


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_nothing_crosses_in_the_loop_but_what_the_plan_lists(nodes):
    with simulate(2) as devices:
        graph = build(nodes)
        phase = EvalPhase("e", data="all", batch_size=BATCH, callbacks=[Clear(devices)])
        result = Experiment("x", graph).run_phase(phase)
        outputs = {label: graph.shapes.specs[label].nbytes for label in graph.output_nodes}
        numbers, nbytes = expected(result.plan, outputs)
        batches = ROWS // BATCH
        for device in devices:
            for kind in ("into", "out", "between"):
                traffic, key = getattr(device.transfers, kind), (str(device.device), kind)
                assert traffic.number == numbers[key] * batches, (key, str(result.plan))
                assert traffic.nbytes == nbytes[key] * ROWS, (key, str(result.plan))


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.sampled_from(PLACES))
def test_what_is_computed_does_not_depend_on_where(nodes, place):
    def predictions(nodes):
        return Experiment("x", build(nodes)).run_phase(EvalPhase("e", data="all", accelerator=place)).predictions

    with simulate(2):
        spread, alone = predictions(nodes), predictions([(*node[:2], "cpu", node[3]) for node in nodes])
        assert spread.keys() == alone.keys()
        assert all(np.allclose(spread[name], alone[name], rtol=1e-5, atol=1e-6) for name in spread)
