"""What a training step costs beside the same loop written by hand: MLP 50-16-16-1, fused Adam, batch 64, torch on CPU.

Run it with `nox -s bench`, or `python tests/benchmarks/step.py [--quick] [--json FILE]` where anyaccel-torch is
installed. Both loops run in one process in interleaved blocks, so that the noise of the machine meets both alike.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import anyaccel as aa
from anyaccel_torch import SequentialMLP

FEATURES, BATCH, STEPS = 50, 64, 400
Block = Callable[[], float]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Inputs [n, 50] and targets [n, 1], float32."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((BATCH * STEPS, FEATURES)).astype(np.float32)
    return inputs, inputs[:, :1] - inputs[:, 1:2]


def by_hand(inputs: np.ndarray, targets: np.ndarray) -> Block:
    """The loop that a careful user writes: resident tensors, slices in order, a fused optimizer, losses kept."""
    x, y = torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_of = torch.nn.MSELoss()

    def block() -> float:
        losses = []
        began = time.perf_counter()
        for start in range(0, len(x), BATCH):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x[start : start + BATCH]), y[start : start + BATCH])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.stack(losses).mean().item()
        return time.perf_counter() - began

    return block


def by_anyaccel(inputs: np.ndarray, targets: np.ndarray, *, shuffle: bool, watch: bool = False) -> Block:
    """The same through a phase: an epoch, with its order and its losses, as `Epoch.seconds` says."""
    source = aa.FeatureSet.from_dict("data", {"x": inputs, "y": targets}, ["x"], ["y"])
    source.split_random({"train": 1.0})
    node = aa.ModelNode("mlp", SequentialMLP(output_shape=(1,), n_layers=3, hidden_dim=16), source.reference())
    experiment = aa.Experiment("bench", aa.ModelGraph([node], aa.Optimizer("adam", lr=1e-3)), progress="none")
    phase = aa.TrainPhase(
        "train",
        data=source,
        sampler=aa.SimpleSampler(BATCH, shuffle=shuffle),
        losses=[aa.AppliedLoss("mse", on="mlp")],
        n_epochs=2,
        callbacks=[EveryStep()] if watch else [],
    )
    # The first epoch of a phase is a warm-up for its programs, as the hand loop is warm in every block but its first.
    return lambda: float(experiment.run_phase(phase).epochs[-1].seconds)


class EveryStep(aa.Callback):
    """A listener to every step, which makes each step a call of its own."""

    def step_end(self, run: object) -> None:
        """Hear of it."""


def interleaved(blocks: dict[str, Block], count: int) -> dict[str, list[float]]:
    """Microseconds a step of each, in `count` rounds that take every one in turn."""
    for block in blocks.values():
        block()
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(count):
        for name, block in blocks.items():
            times[name].append(block() / STEPS * 1e6)
    return times


def ratio(times: list[float], base: list[float]) -> float:
    """Geometric mean of the ratios round by round."""
    return math.exp(statistics.fmean(math.log(one / other) for one, other in zip(times, base, strict=True)))


def overhead(inputs: np.ndarray, targets: np.ndarray) -> float:
    """Milliseconds that a phase over 10 batches takes in all but its epochs: plan, placement, loading, release."""
    source = aa.FeatureSet.from_dict("data", {"x": inputs[:640], "y": targets[:640]}, ["x"], ["y"])
    node = aa.ModelNode("mlp", SequentialMLP(output_shape=(1,), n_layers=3, hidden_dim=16), source.reference())
    experiment = aa.Experiment("bench", aa.ModelGraph([node], aa.Optimizer("adam", lr=1e-3)), progress="none")
    phase = aa.TrainPhase("train", data=source, sampler=BATCH, losses=[aa.AppliedLoss("mse", on="mlp")])
    found = []
    for _ in range(12):
        began = time.perf_counter()
        results = experiment.run_phase(phase)
        found.append((time.perf_counter() - began - results.epochs[0].seconds) * 1e3)
    return statistics.median(found[2:])


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--quick", dest="blocks", action="store_const", const=1, help="one block, to see that it runs")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    inputs, targets = data()
    blocks = {
        "by hand": by_hand(inputs, targets),
        "by hand again": by_hand(inputs, targets),
        "anyaccel, in order": by_anyaccel(inputs, targets, shuffle=False),
        "anyaccel, shuffled": by_anyaccel(inputs, targets, shuffle=True),
        "anyaccel, a listener to every step": by_anyaccel(inputs, targets, shuffle=True, watch=True),
    }
    times = interleaved(blocks, given.blocks)
    base = times["by hand"]
    told = {
        name: {
            "median_us": statistics.median(one),
            "median_ratio": statistics.median(a / b for a, b in zip(one, base, strict=True)),
            "mean_ratio": ratio(one, base),
        }
        for name, one in times.items()
    }
    print(f"MLP 50-16-16-1, fused Adam, batch {BATCH}, {given.blocks} interleaved blocks of {STEPS} steps")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, Python {platform.python_version()}")
    for name, one in told.items():
        print(
            f"{name:36s} {one['median_us']:8.1f} us a step   ratio to the hand loop, round by round: "
            f"median {one['median_ratio']:.3f}, geometric mean {one['mean_ratio']:.3f}"
        )
    before = overhead(inputs, targets)
    print(f"a phase over 10 batches spends {before:.1f} ms outside its epoch")
    if given.json:
        given.json.write_text(json.dumps({"steps": told, "phase_overhead_ms": before}, indent=2) + "\n")


if __name__ == "__main__":
    main()
