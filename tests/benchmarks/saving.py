"""What saving and loading cost compared with safetensors: 500 MB of float32 in few large and in many small tensors.

Run it with `nox -s bench`, or
`OMP_NUM_THREADS=1 python tests/benchmarks/saving.py [--rounds N] [--only torch ...] [--folder FOLDER] [--json FILE]`.
Frameworks whose plugin is installed are measured, each beside its own ways: torch beside `save_file` and `load_file` of
safetensors, `torch.save` and `torch.load`, and `torch.distributed.checkpoint`; JAX beside safetensors and orbax;
TensorFlow beside safetensors and Keras' `save_weights`. All take turns in one process. Shown are the least processor
time of the process, of all its threads, in user and system mode, and the median time by the clock.

Every way of loading ends with the values in a model that exists; every way of saving begins with a model. `save_file`
and the others return before anything is on the disk; anyaccel waits for the disk, which takes little processor time of
the process. Files are in the page cache when they are read. `ModelGraph.save` and `load` and checkpoints have a
checksum of every tensor; no other way here does. A checkpoint is written with a copy of the state, so that training
goes on, and without, as `Checkpoint(wait=True)` does. The copy is into memory of the previous one, as in all
checkpoints of a run but the first. `ModelGraph.load` also builds a graph, which runs the model once
or twice; what that takes stands beside it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.phases.checkpointing.checkpointer import BackgroundWriter
from anyaccel.phases.checkpointing.position import Position, live_state_of
from anyaccel.phases.checkpointing.run_folder import RunFolder

Act = Callable[[], Any]
SHAPES = {
    "few large": dict.fromkeys(("torch", "jax", "tensorflow"), (12, 3264)),
    "many small": {"torch": (5200, 156), "jax": (1300, 312), "tensorflow": (1300, 312)},
}
"""Number of square weights of 500 MB, and their width; fewer where each has a layer of its own."""
PLUGINS = {"torch": "anyaccel_torch", "jax": "anyaccel_jax", "tensorflow": "anyaccel_tensorflow"}


def processor_seconds() -> float:
    """Return the user and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def anyaccels(graph: aa.ModelGraph, model: Any, folder: Path) -> tuple[dict[str, Act], dict[str, Act]]:
    """Return anyaccel's own ways to save and load the model of a graph."""
    position = Position(phase="train", epoch=0, number=0)
    run = RunFolder(folder / "run")
    run.lock()
    writer = BackgroundWriter()

    def write_checkpoint(copy: bool) -> None:
        shutil.rmtree(folder / "run" / position.name, ignore_errors=True)
        arrays = live_state_of(graph)
        state = writer.copies(arrays) if copy else dict(arrays)
        run.write(position, {"graph": graph.saved_config()}, state, 1, {})

    def read_checkpoint() -> None:
        found = run.newest()
        assert found is not None
        graph.load_state(found[1])

    def save() -> None:
        shutil.rmtree(folder / "saved", ignore_errors=True)
        graph.save(folder / "saved")

    writes: dict[str, Act] = {
        "save_weights": lambda: graph.save_weights(folder / "weights.safetensors"),
        "ModelGraph.save": save,
        "checkpoint, waiting": lambda: write_checkpoint(copy=False),
        "checkpoint, with a copy": lambda: write_checkpoint(copy=True),
    }
    reads: dict[str, Act] = {
        "load_weights": lambda: graph.load_weights(folder / "weights.safetensors"),
        "ModelGraph.load": lambda: aa.ModelGraph.load(folder / "saved", models={"net": model}),
        "of that ModelGraph.build": lambda: graph.build(force=True),
        "checkpoint": read_checkpoint,
    }
    return writes, reads


def parts(count: int) -> list[int]:
    """Return about the square root of a count, as many counts that add up to it."""
    n_parts = math.isqrt(count)
    return [(count + i) // n_parts for i in range(n_parts)]


def data(width: int) -> Any:
    """Return rows that the models take."""
    return aa.FeatureSet.from_dict("data", {"x": np.zeros((2, width), np.float32)}, ["x"])


def ways_of_torch(n_layers: int, width: int, folder: Path) -> tuple[str, dict[str, Act], dict[str, Act]]:
    """Return the way that is the base of ratios, and all ways of writing and of reading."""
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn
    from torch.distributed import checkpoint as dcp

    class Products(nn.Module):
        """Many weights in one module: a flat model of thousands of layers costs `load_state_dict` of torch seconds."""

        def __init__(self, count: int, width: int) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(width, width) for _ in range(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = x @ weight
            return x

    torch.set_num_threads(1)
    model = nn.Sequential(*(Products(count, width) for count in parts(n_layers)))
    graph = aa.ModelGraph([aa.ModelNode("net", model, data(width))], seed=0).build()
    plain, pt = folder / "plain.safetensors", folder / "plain.pt"

    def dcp_save() -> None:
        shutil.rmtree(folder / "dcp", ignore_errors=True)
        dcp.save(model.state_dict(), checkpoint_id=folder / "dcp", no_dist=True)

    def dcp_load() -> None:
        state = model.state_dict()
        dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True)
        model.load_state_dict(state)

    writes: dict[str, Act] = {
        "safetensors": lambda: save_file(model.state_dict(), plain),
        "torch.save": lambda: torch.save(model.state_dict(), pt),
        "torch.distributed.checkpoint": dcp_save,
    }
    reads: dict[str, Act] = {
        "safetensors": lambda: model.load_state_dict(load_file(plain)),
        "torch.load(mmap=True)": lambda: model.load_state_dict(torch.load(pt, mmap=True)),
        "torch.distributed.checkpoint": dcp_load,
    }
    own_writes, own_reads = anyaccels(graph, model, folder)
    own_writes["save_weights, .pt"] = lambda: graph.save_weights(folder / "weights.pt")
    own_reads["load_weights, .pt"] = lambda: graph.load_weights(folder / "weights.pt")
    if find_spec("anyaccel_offload") is not None:
        from anyaccel_offload.torch import load_checkpoint_in_model

        own_reads["load_checkpoint_in_model"] = lambda: load_checkpoint_in_model(model, folder / "weights.safetensors")
    return "safetensors", writes | own_writes, reads | own_reads


def ways_of_jax(n_layers: int, width: int, folder: Path) -> tuple[str, dict[str, Act], dict[str, Act]]:
    """Return the way that is the base of ratios, and all ways of writing and of reading."""
    import jax
    from flax import nnx
    from safetensors.flax import load_file, save_file

    rngs = nnx.Rngs(0)
    model = nnx.Sequential(*(nnx.Linear(width, width, use_bias=False, rngs=rngs) for _ in range(n_layers)))
    graph = aa.ModelGraph([aa.ModelNode("net", model, data(width))], seed=0).build()
    plain = folder / "plain.safetensors"

    def flat() -> dict[str, Any]:
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        return {".".join(map(str, path)): variable.get_value() for path, variable in state}

    def load(read: Callable[[], Mapping[str, Any]]) -> None:
        values = read()
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        for path, variable in state:
            variable.set_value(values[".".join(map(str, path))])
        nnx.update(model, nnx.from_flat_state(state))
        jax.block_until_ready(flat())

    writes: dict[str, Act] = {"safetensors": lambda: save_file(flat(), plain)}
    reads: dict[str, Act] = {"safetensors": lambda: load(lambda: load_file(plain))}
    if find_spec("orbax") is not None:
        import orbax.checkpoint as ocp

        checkpointer = ocp.StandardCheckpointer()

        def orbax_save() -> None:
            checkpointer.save(folder / "orbax", flat(), force=True)
            checkpointer.wait_until_finished()

        writes["orbax"] = orbax_save
        reads["orbax"] = lambda: load(lambda: checkpointer.restore(folder / "orbax", flat()))
    own_writes, own_reads = anyaccels(graph, model, folder)
    return "safetensors", writes | own_writes, reads | own_reads


def ways_of_tensorflow(n_layers: int, width: int, folder: Path) -> tuple[str, dict[str, Act], dict[str, Act]]:
    """Return the way that is the base of ratios, and all ways of writing and of reading."""
    import keras
    from safetensors.tensorflow import load_file, save_file

    sys.setrecursionlimit(20 * n_layers + 1000)  # Keras goes through a model layer by layer
    layers = [keras.layers.Dense(width, use_bias=False) for _ in range(n_layers)]
    model = keras.Sequential([keras.layers.Input((width,)), *layers])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data(width))], seed=0).build()
    plain, own = folder / "plain.safetensors", folder / "plain.weights.h5"

    def load() -> None:
        values = load_file(plain)
        for variable in model.trainable_variables:
            variable.assign(values[variable.path])

    writes: dict[str, Act] = {
        "safetensors": lambda: save_file({v.path: v.value for v in model.trainable_variables}, plain),
        "keras save_weights": lambda: model.save_weights(own),
    }
    reads: dict[str, Act] = {"safetensors": load, "keras load_weights": lambda: model.load_weights(own)}
    own_writes, own_reads = anyaccels(graph, model, folder)
    return "safetensors", writes | own_writes, reads | own_reads


WAYS = {"torch": ways_of_torch, "jax": ways_of_jax, "tensorflow": ways_of_tensorflow}


def interleaved(acts: Mapping[str, Act], rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds of each, in rounds that take every one in turn; the first is a warm-up.

    Of the clock the median, of the processors the least: other work on the machine adds to both.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in acts}
    for number in range(rounds + 1):
        for name, act in acts.items():
            os.sync()  # what others have left to write is no work of the next one
            began, busy = time.perf_counter(), processor_seconds()
            made = act()
            if number:
                times[name].append((time.perf_counter() - began, processor_seconds() - busy))
            del made
    walls = {name: statistics.median(wall for wall, _ in pairs) for name, pairs in times.items()}
    return {
        name: {"seconds": walls[name], "processor_seconds": min(busy for _, busy in pairs)}
        for name, pairs in times.items()
    }


def measured(framework: str, shape: str, scale: float, rounds: int, parent: Path | None) -> Iterable[dict[str, Any]]:
    """Measure all ways of a framework with tensors of one shape, and yield a row for each."""
    n_layers, width = SHAPES[shape][framework]
    with tempfile.TemporaryDirectory(dir=parent) as name:
        base, writes, reads = WAYS[framework](max(int(n_layers * scale), 1), width, Path(name))
        for kind, acts in (("write", writes), ("read", reads)):
            found = interleaved(acts, rounds)
            for way, figures in found.items():
                ratio = figures["processor_seconds"] / max(found[base]["processor_seconds"], 1e-9)
                wall = figures["seconds"] / found[base]["seconds"]
                yield {
                    "framework": framework,
                    "shape": shape,
                    "kind": kind,
                    "way": way,
                    **figures,
                    "processor_ratio": ratio,
                    "ratio": wall,
                }


def main() -> None:
    """Measure, print tables, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the 500 MB")
    parser.add_argument("--quick", action="store_true", help="one round of a hundredth, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one without it")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rounds, scale = (1, 0.01) if given.quick else (given.rounds, given.scale)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for framework in given.only:
        if find_spec(PLUGINS[framework]) is None:
            continue
        importlib.import_module(PLUGINS[framework])
        for shape in given.shapes:
            n_layers, width = SHAPES[shape][framework]
            print(f"\n{framework}, {shape}: {max(int(n_layers * scale), 1)} tensors of {width**2 * 4 / 1e6:.3f} MB")
            print(f"{'':38s} {'processor':>10s} {'ratio':>6s} {'clock':>9s} {'ratio':>6s}")
            for row in measured(framework, shape, scale, rounds, given.folder):
                rows.append(row)
                print(
                    f"{row['kind']:6s} {row['way']:31s} {row['processor_seconds']:8.3f} s {row['processor_ratio']:6.2f}"
                    f" {row['seconds']:7.3f} s {row['ratio']:6.2f}",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
