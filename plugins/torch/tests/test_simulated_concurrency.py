"""Nodes that do not depend on each other, on two simulated devices with clocks, run at the same time.

Run by test_simulated.py in a process of its own, as torch cannot be rid of the devices again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

if not os.environ.get("ANYACCEL_TORCH_SIMULATE"):
    pytest.skip("run by test_simulated.py, in a process of its own", allow_module_level=True)

import torch
from torch import nn

import anyaccel as aa
from anyaccel.adapter.simulated_timing import HostClock, Timing
from anyaccel_torch import simulated

DEVICES = simulated.start(2)
WIDTH, DEPTH, ROWS = 64, 6, 256
EPOCHS = 2


@pytest.fixture(autouse=True)
def without_clocks_afterwards() -> Iterator[None]:
    yield
    for device in DEVICES:
        device.timing = None


def data() -> aa.FeatureSet:
    rng = np.random.default_rng(0)
    table = {"x": rng.standard_normal((ROWS, WIDTH)).astype("f"), "y": rng.standard_normal((ROWS, 1)).astype("f")}
    return aa.FeatureSet.from_dict("data", table, ["x"], ["y"])


def branch(label: str, device: str, features: aa.FeatureSet, outputs: int = 1) -> aa.ModelNode:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    return aa.ModelNode(label, nn.Sequential(*layers, nn.Linear(WIDTH, outputs)), features.reference(), device)


def seconds(features: aa.FeatureSet, nodes: list[aa.ModelNode | aa.ConcatNode], on: list[str], residency: str) -> float:
    """Simulated time of the training steps, from the first epoch's start to the last one's end."""
    host = HostClock()
    for device in DEVICES:
        device.timing = Timing(compute_rate=1e9, copy_bandwidth=1e10, copy_latency=1e-6, host=host)
    times: list[float] = []

    class Clock(aa.Callback):
        def epoch_start(self, run: object) -> None:
            times.append(now())

        def epoch_end(self, run: object) -> None:
            times.append(now())

    losses = [aa.AppliedLoss("mse", on=label) for label in on]
    phase = aa.TrainPhase(
        "fit", data=features, losses=losses, batch_size=64, epochs=EPOCHS, residency=residency, callbacks=[Clock()]
    )
    aa.Experiment("e", aa.ModelGraph(nodes, "sgd")).run(phase)
    return times[-1] - times[0]


def now() -> float:
    return max(device.timing.elapsed() for device in DEVICES if device.timing is not None)


@pytest.mark.parametrize("residency", ["resident", "streamed"])
def test_independent_branches_on_two_devices_take_as_long_as_one(residency: str) -> None:
    """On one device they take twice as long, so the clocks tell."""
    features = data()
    alone = max(seconds(features, [branch("a", device, features)], ["a"], residency) for device in ("sim:0", "sim:1"))
    both = [branch("a", "sim:0", features), branch("b", "sim:1", features)]
    assert seconds(features, both, ["a", "b"], residency) <= 1.1 * alone
    same = [branch("a", "sim:0", features), branch("b", "sim:0", features)]
    assert seconds(features, same, ["a", "b"], residency) >= 1.8 * alone


def test_branches_that_meet_in_a_node_run_at_the_same_time() -> None:
    """Outputs and gradients cross in each step; what depends on both waits for both."""
    features = data()
    alone = seconds(features, [branch("a", "sim:0", features)], ["a"], "resident")

    def joined(second: str) -> list[aa.ModelNode | aa.ConcatNode]:
        return [
            branch("a", "sim:0", features, 4),
            branch("b", second, features, 4),
            aa.ConcatNode("both", ["a", "b"]),
            aa.ModelNode("head", nn.Linear(8, 1), "both", "sim:0"),
        ]

    assert seconds(features, joined("sim:1"), ["head"], "resident") <= 1.1 * alone
    assert seconds(features, joined("sim:0"), ["head"], "resident") >= 1.8 * alone


def test_a_chain_over_two_devices_takes_the_sum() -> None:
    """A copy between devices begins when its source is computed, and what takes it begins after that."""
    features = data()
    alone = seconds(features, [branch("a", "sim:0", features)], ["a"], "resident")
    chain = [
        branch("a", "sim:0", features, WIDTH),
        aa.ModelNode("b", branch("b", "sim:1", features).model, "a", "sim:1"),
    ]
    assert seconds(features, chain, ["b"], "resident") >= 1.8 * alone


def test_a_host_that_waits_in_between_is_seen() -> None:
    """Reading a value of one device keeps the host from giving the other its work."""
    host = HostClock()
    for device in DEVICES:
        device.timing = Timing(compute_rate=1e9, copy_bandwidth=1e10, host=host)
    x, y = (torch.ones(100, 100).to(name) for name in ("sim:0", "sim:1"))
    start = now()
    x @ x, y @ y
    overlapping, start = now() - start, now()
    (x @ x).sum().item()
    (y @ y).sum().item()
    assert now() - start > 1.8 * overlapping
