"""What a border between two frameworks costs: a step of the graph, less the steps of its two segments alone.

Run it with `nox -s bench`, or `python tests/benchmarks/border.py [--quick] [--json FILE]`. Every pair of installed
frameworks is measured; the graph and its segments alone take turns in one process, block by block.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.backend import Compute, ComputingBackend
from anyaccel.graph import Request, resolve
from anyaccel.phases.executor.cross_segment import CrossSegmentStep, PipelineStage
from anyaccel.phases.loading.epoch_plan import StepSize
from anyaccel.phases.loading.loader import DeviceColumn, DeviceColumns
from anyaccel.registry import registry

FEATURES, WIDTH, BATCH, STEPS = 50, 16, 64, 100
CPU = aa.Device("cpu")
Block = Callable[[], float]


def graph(first: str, second: str, clip: float | None) -> aa.ModelGraph:
    """An encoder 50-16-16 of one framework, and a head 16-16-1 of another."""
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH * STEPS, FEATURES)).astype(np.float32)
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] - x[:, 1:2]}, ["x"], ["y"])
    nodes = [
        aa.ModelNode("encoder", model(first, WIDTH), source.reference()),
        aa.ModelNode("head", model(second, 1), "encoder"),
    ]
    return aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-3, clip_norm=clip))


def model(framework: str, out: int) -> Any:
    """Two layers."""
    made: Any = registry().computing(framework).models()["SequentialMLP"]
    return made((out,), 2, WIDTH)


def stages_of(made: aa.ModelGraph) -> list[PipelineStage]:
    """The segments of the graph, ready to run."""
    resolution = resolve(made, Request("bench", losses=(aa.AppliedLoss("mse", on="head"),), training=True))
    found = []
    for segment, backend in zip(resolution.segments, resolution.backends, strict=True):
        for one in segment.operations:
            backend.place(one.model, one.device)
        found.append(PipelineStage(segment, backend, backend.build(segment), has_gradient=True))
    return found


def together(ready: list[PipelineStage], columns: DeviceColumns) -> Block:
    """Steps of the whole graph."""
    steps = CrossSegmentStep(ready)
    rows = steps.bind(columns)

    def block() -> float:
        began = time.perf_counter()
        losses = steps.train_steps(rows, 0, STEPS, StepSize(BATCH))
        settle(ready, losses[-1].pairs)
        return time.perf_counter() - began

    return block


def alone(ready: list[PipelineStage], columns: DeviceColumns) -> Block:
    """Steps of both segments side by side: what crosses already exists, in its own framework.

    What would cross is waited for, as it has to be there before the other can go on: a framework that computes in the
    background would else compute both segments at once, which no graph can.
    """
    random = np.random.default_rng(1)
    encoder, head = ready
    cotangent = encoder.backend.from_host(random.standard_normal((BATCH, WIDTH)).astype(np.float32) / BATCH, CPU)
    value = head.backend.from_host(random.standard_normal((BATCH, WIDTH)).astype(np.float32), CPU)
    x, y = columns["data.x"], columns["data.y"]

    def block() -> float:
        began = time.perf_counter()
        for start in range(0, STEPS * BATCH, BATCH):
            rows = (start, start + BATCH)
            outputs, _, back = encoder.program.forward_pullback((encoder.backend.gather_rows(x.rows, *rows, x.order),))
            encoder.backend.to_host(outputs[0])
            _, pairs, pullback = head.program.forward_pullback(
                (value, head.backend.gather_rows(y.rows, *rows, y.order))
            )
            head.backend.to_host(pullback(())[0])
            back((cotangent,))
            encoder.program.optimizer_step()
            head.program.optimizer_step()
        settle(ready, pairs)
        return time.perf_counter() - began

    return block


def order_of(backend: ComputingBackend) -> Any:
    """Rows in order, as an epoch's order."""
    return backend.from_host(np.arange(BATCH * STEPS, dtype=backend.index_dtype), CPU)


def settle(ready: list[PipelineStage], pairs: Any) -> None:
    """Wait until everything is computed."""
    head = ready[-1].backend
    head.scalars([total for pair in pairs.values() for total in pair])
    for stage in ready:
        state = stage.program.optimizer_states()
        some = next(iter(next(iter(state.values())).slots.values()))
        stage.backend.to_host(some["m"])


def measure(first: str, second: str, clip: float | None, blocks: int) -> dict[str, Any]:
    """Medians in microseconds a step."""
    made = graph(first, second, clip)
    ready = stages_of(made)
    source = made["encoder"].upstreams[0].feature_set  # type: ignore[union-attr]
    columns = {
        name: DeviceColumn(
            stage.backend.from_host(source.array(name.partition(".")[2]), CPU), order_of(stage.backend), "data"
        )
        for stage in ready
        for name in stage.segment.inputs
        if name.startswith("data.")
    }
    loops = {"together": together(ready, columns), "alone": alone(ready, columns)}
    for loop in loops.values():
        loop()
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(blocks):
        for name, loop in loops.items():
            seconds[name].append(loop())
    found = {name: statistics.median(values) / STEPS * 1e6 for name, values in seconds.items()}
    differences = [a - b for a, b in zip(seconds["together"], seconds["alone"], strict=True)]
    return {
        "first": first,
        "second": second,
        "clip": clip,
        **found,
        "border": statistics.median(differences) / STEPS * 1e6,
    }


def main() -> None:
    """Print a table, and write it where `--json` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--quick", dest="blocks", action="store_const", const=1, help="one block, to see that it runs")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = [name for name in registry().frameworks if isinstance(registry().find(name), Compute)]
    rows = []
    print(f"{'first':12}{'second':12}{'clip':>6}{'together':>12}{'alone':>12}{'border':>12}   us a step")
    for first, second in itertools.permutations(names, 2):
        for clip in (None, 1.0):
            row = measure(first, second, clip, given.blocks)
            rows.append(row)
            figures = "".join(f"{row[name]:12.1f}" for name in ("together", "alone", "border"))
            print(f"{first:12}{second:12}{clip or '-':>6}{figures}", flush=True)
    if given.json is not None:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "rows": rows}
        given.json.write_text(json.dumps(machine, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
