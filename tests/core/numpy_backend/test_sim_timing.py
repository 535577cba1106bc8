"""Nodes of NumPy that do not depend on each other, on two simulated devices with clocks, run at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter.simulated_timing import HostClock, Timing
from anyaccel.numpy_backend.sim_device import Simulation

WIDTH, DEPTH, ROWS, EPOCHS = 64, 6, 256, 2


@pytest.fixture
def sims() -> Iterator[Simulation]:
    with aa.simulate(2) as simulation:
        yield simulation


def data() -> aa.FeatureSet:
    rng = np.random.default_rng(0)
    table = {"x": rng.standard_normal((ROWS, WIDTH)).astype("f"), "y": rng.standard_normal((ROWS, 1)).astype("f")}
    return aa.FeatureSet.from_dict("data", table, ["x"], ["y"])


def branch(label: str, device: str, features: object, outputs: int = 1) -> aa.ModelNode:
    return aa.ModelNode(label, aa.SequentialMLP((outputs,), DEPTH, WIDTH), features, accelerator=device)


def set_clocks(sims: Simulation) -> None:
    host = HostClock()
    for device in sims:
        device.timing = Timing(compute_rate=1e9, copy_bandwidth=1e10, copy_latency=1e-6, host=host)


def seconds(sims: Simulation, features: aa.FeatureSet, nodes: list[object], on: list[str], residency: str) -> float:
    """Simulated time of the training steps, from the first epoch's start to the last one's end."""
    set_clocks(sims)
    times: list[float] = []

    class Clock(aa.Callback):
        def epoch_start(self, run: object) -> None:
            times.append(max(device.timing.elapsed() for device in sims))

        epoch_end = epoch_start

    losses = [aa.AppliedLoss("mse", on=label) for label in on]
    phase = aa.TrainPhase(
        "fit", data=features, losses=losses, batch_size=64, epochs=EPOCHS, residency=residency, callbacks=[Clock()]
    )
    aa.Experiment("e", aa.ModelGraph(nodes, "sgd"), progress="none").run_phase(phase)
    return times[-1] - times[0]


@pytest.mark.parametrize("residency", ["resident", "streamed"])
def test_independent_branches_on_two_devices_take_as_long_as_one(sims: Simulation, residency: str) -> None:
    """On one device they take twice as long, so the clocks tell."""
    features = data()
    x = features.reference()
    alone = max(seconds(sims, features, [branch("a", device, x)], ["a"], residency) for device in ("sim:0", "sim:1"))
    both = [branch("a", "sim:0", x), branch("b", "sim:1", x)]
    assert 0 < seconds(sims, features, both, ["a", "b"], residency) <= 1.1 * alone
    same = [branch("a", "sim:0", x), branch("b", "sim:0", x)]
    assert seconds(sims, features, same, ["a", "b"], residency) >= 1.8 * alone


def test_branches_that_meet_in_a_node_run_at_the_same_time(sims: Simulation) -> None:
    features = data()
    x = features.reference()
    alone = seconds(sims, features, [branch("a", "sim:0", x)], ["a"], "resident")

    def joined(second: str) -> list[object]:
        return [
            branch("a", "sim:0", x, 4),
            branch("b", second, x, 4),
            aa.ConcatNode("both", ["a", "b"]),
            aa.ModelNode("head", aa.SequentialMLP((1,), 1, 8), "both", accelerator="sim:0"),
        ]

    assert seconds(sims, features, joined("sim:1"), ["head"], "resident") <= 1.1 * alone
    assert seconds(sims, features, joined("sim:0"), ["head"], "resident") >= 1.8 * alone


def test_a_chain_over_two_devices_takes_the_sum(sims: Simulation) -> None:
    features = data()
    x = features.reference()
    alone = seconds(sims, features, [branch("a", "sim:0", x)], ["a"], "resident")
    chain = [branch("a", "sim:0", x, WIDTH), branch("b", "sim:1", "a")]
    assert seconds(sims, features, chain, ["b"], "resident") >= 1.8 * alone


def test_a_host_that_reads_in_between_is_seen(sims: Simulation) -> None:
    set_clocks(sims)
    x, y = (aa.move(np.ones((100, 100)), name) for name in ("sim:0", "sim:1"))

    def now() -> float:
        return max(device.timing.elapsed() for device in sims)

    start = now()
    x @ x, y @ y
    overlapping, start = now() - start, now()
    float((x @ x).sum()), float((y @ y).sum())
    assert overlapping > 0 and now() - start > 1.8 * overlapping


def test_views_take_no_time(sims: Simulation) -> None:
    set_clocks(sims)
    x = aa.move(np.ones((4, 6)), "sim:0")
    before = sims[0].timing.compute_seconds
    x.T, x.reshape(6, 4), x[1:], np.transpose(x), np.expand_dims(x, 0)
    assert sims[0].timing.compute_seconds == before
    x + 1
    assert sims[0].timing.compute_seconds == pytest.approx(before + 2 * x.nbytes / 1e9)
