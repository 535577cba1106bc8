"""What a ledger costs: phases with and without one, in turn, in one process.

    python tests/benchmarks/ledger.py [PAIRS]

Prints, for each phase, the median and quartiles of the ratios of neighbours, of the clock and of processor time, and
how many transfers and waits it makes. torch's simulated devices take part where ANYACCEL_TORCH_SIMULATE=2 is set.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

import anyaccel as aa

WIDTH, ROWS, BATCH = 256, 4096, 64


def features() -> aa.FeatureSet:
    rng = np.random.default_rng(0)
    table = {"x": rng.standard_normal((ROWS, WIDTH)).astype("f"), "y": rng.standard_normal((ROWS, 1)).astype("f")}
    return aa.FeatureSet.from_dict("data", table, ["x"], ["y"])


def training(nodes: list[aa.ModelNode], data: aa.FeatureSet, epochs: int, residency: str) -> Callable[[], None]:
    graph = aa.ModelGraph(nodes, "adam")
    losses = [aa.AppliedLoss("mse", on=nodes[-1].label)]

    def run() -> None:
        phase = aa.TrainPhase("fit", data=data, losses=losses, batch_size=BATCH, epochs=epochs, residency=residency)
        graph.run(phase)

    return run


def phases() -> Iterator[tuple[str, Callable[[], None]]]:
    data = features()

    def numpy_nodes(first: str, second: str) -> list[aa.ModelNode]:
        body = aa.ModelNode("body", aa.SequentialMLP((WIDTH,), 2, WIDTH), data.reference(), accelerator=first)
        return [body, aa.ModelNode("head", aa.SequentialMLP((1,), 2, WIDTH), "body", accelerator=second)]

    yield "numpy, one simulated device, resident", training(numpy_nodes("sim:0", "sim:0"), data, 2, "resident")
    yield "numpy, two simulated devices, streamed", training(numpy_nodes("sim:0", "sim:1"), data, 2, "streamed")
    import flax.linen as linen
    import torch

    def torch_nodes(first: str, second: str) -> list[aa.ModelNode]:
        layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
        body = aa.ModelNode("body", layers, data.reference(), accelerator=first)
        return [body, aa.ModelNode("head", torch.nn.Linear(WIDTH, 1), "body", accelerator=second)]

    yield "torch on the CPU", training(torch_nodes("cpu", "cpu"), data, 4, "resident")
    net = aa.ModelNode("net", linen.Sequential([linen.Dense(WIDTH), linen.relu, linen.Dense(1)]), data.reference())
    yield "jax on the CPU, resident", training([net], data, 20, "resident")
    yield "jax on the CPU, streamed", training([net], data, 20, "streamed")
    if os.environ.get("ANYACCEL_TORCH_SIMULATE"):
        yield "torch, two simulated devices, streamed", training(torch_nodes("sim:0", "sim:1"), data, 4, "streamed")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    layers = [keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(1)]
    keras_net = aa.ModelNode("net", keras.Sequential(layers), data.reference())
    yield "tensorflow on the CPU, streamed", training([keras_net], data, 20, "streamed")


class Times(NamedTuple):
    """Seconds of the clock, and of all processors."""

    clock: float
    processors: float


def times(run: Callable[[], None], *, counted: bool) -> tuple[Times, aa.Ledger | None]:
    with aa.ledger() if counted else nullcontext() as moved:
        clock, processors = time.perf_counter(), time.process_time()
        run()
        return Times(time.perf_counter() - clock, time.process_time() - processors), moved


def spread(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main(pairs: int) -> None:
    aa.simulate(2)
    for name, run in phases():
        _, counts = times(run, counted=True)
        with_it: list[Times] = []
        without: list[Times] = []
        for i in range(pairs):
            for counted in (True, False) if i % 2 else (False, True):
                taken, moved = times(run, counted=counted)
                (with_it if counted else without).append(taken)
                counts = moved if moved is not None else counts
        pairs_of = list(zip(with_it, without, strict=True))
        clock = spread([a.clock / b.clock for a, b in pairs_of])
        processors = spread([a.processors / b.processors for a, b in pairs_of])
        print(f"{name}: clock {clock}, processors {processors}, of {without[-1].clock:.2f} s; {counts!r}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
