"""What checkpoints cost: how long the loop is blocked by one, beside a plain copy of the state, and its rate meanwhile.

MLP of four layers with Adam, on each framework that is installed. Run it with `nox -s bench`, or
`python tests/benchmarks/checkpoints.py [--rounds N] [--width N] [--only NAME ...] [--json FILE]` with
`OMP_NUM_THREADS=1`.

Both are measured in one run, in turns: a checkpoint is due after so many steps, and those while it is written are
compared with those after that, until the next; `rate_of_turns` is the median over the turns, so that other work on the
machine that begins or ends meanwhile tells less. The plain copy is of the same arrays, by `numpy.copy`, or
`tensor.clone`, right before.
The processor's time of the loop's thread stands beside the clock's, as that of a busy machine tells little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.phases.checkpointing.checkpointer import BackgroundWriter, Checkpointer

BATCH = 64
LEAST_STEPS = 5  # of each kind, of a turn that is counted
PLACES = {"numpy": "anyaccel", "torch": "anyaccel_torch", "jax": "anyaccel_jax", "tensorflow": "anyaccel_tensorflow"}


class Clock:
    """Times of calls, by the clock and of the processor in this thread."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []

    def time(self, act: Callable[[], Any]) -> Any:
        """Call it."""
        wall, processor = time.perf_counter(), time.thread_time()
        result = act()
        self.wall.append(time.perf_counter() - wall)
        self.processor.append(time.thread_time() - processor)
        return result


class Steps(aa.Callback):
    """Times of steps: while a checkpoint is written, and otherwise."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self.writing, self.alone, self.copies = Clock(), Clock(), Clock()
        self.turns: list[tuple[Clock, Clock]] = []
        self._began = (0.0, 0.0)
        self.writer: BackgroundWriter | None = None
        self._was_busy = False
        self.is_due = False

    def step_end(self, run: Any) -> None:
        """A step is done; if a checkpoint comes now, the same arrays are copied plainly first."""
        now, busy = (time.perf_counter(), time.thread_time()), self.writer is not None and self.writer.is_busy
        if self._began[0] and busy == self._was_busy:
            both = [self.alone, self.writing], *self.turns[-1:]
            for clock in (pair[busy] for pair in both):
                clock.wall.append(now[0] - self._began[0])
                clock.processor.append(now[1] - self._began[1])

    def begin(self) -> None:
        """The next step begins."""
        self._was_busy = self.writer is not None and self.writer.is_busy
        self._began = time.perf_counter(), time.thread_time()

    def copy(self, run: Any) -> None:
        """A plain copy of what the loop has: parameters and optimizer state."""
        self.turns.append((Clock(), Clock()))
        arrays = [value for name, value in run.graph.state().items() if value.ndim]
        if self._framework == "torch":
            import torch

            tensors = [torch.from_numpy(array) for array in arrays]
            self.copies.time(lambda: [tensor.clone() for tensor in tensors])
        else:
            self.copies.time(lambda: [np.copy(array) for array in arrays])


def measure(framework: str, width: int, rounds: int, every: int) -> dict[str, Any]:
    """A run with so many checkpoints."""
    x = np.random.default_rng(0).standard_normal((BATCH * every, width)).astype(np.float32)
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    model = import_module(PLACES[framework]).SequentialMLP(n_layers=4, hidden_dim=width)
    graph = aa.ModelGraph([aa.ModelNode("mlp", model, data.reference())], "adam")
    steps, blocked = Steps(framework), Clock()
    write, after = Checkpointer._write, Checkpointer.after_step  # noqa: SLF001

    def timed(self: Any, *args: Any, **settings: Any) -> None:
        steps.writer = self._writer
        self._writer.wait()
        steps.copy(self._run)
        blocked.time(lambda: write(self, *args, **settings))

    def begun(self: Any, *args: Any) -> None:
        after(self, *args)
        steps.begin()

    Checkpointer._write, Checkpointer.after_step = timed, begun  # type: ignore[method-assign] # noqa: SLF001
    try:
        with tempfile.TemporaryDirectory() as folder:
            phase = aa.TrainPhase(
                "train",
                data="all",
                losses=[aa.AppliedLoss("mse")],
                batch_size=BATCH,
                epochs=rounds + 1,
                compile="off",
                callbacks=[steps],
                checkpoint=aa.Checkpoint(folder, every=every, keep=1),
            )
            aa.Experiment(graph, progress="none").run_phase(phase)
    finally:
        Checkpointer._write, Checkpointer.after_step = write, after  # type: ignore[method-assign] # noqa: SLF001
    nbytes = sum(array.nbytes for array in graph.state().values())
    return {"framework": framework, "megabytes": nbytes / 1e6, **told(steps, blocked)}


def told(steps: Steps, blocked: Clock) -> dict[str, Any]:
    """Medians, without the first checkpoint: memory is new then."""

    def ratio(some: list[float], others: list[float]) -> float:
        return statistics.median(some) / statistics.median(others)

    turns = [pair for pair in steps.turns[1:] if min(len(clock.wall) for clock in pair) >= LEAST_STEPS]
    return {
        "blocked_ms": statistics.median(blocked.wall[1:]) * 1e3,
        "copy_ms": statistics.median(steps.copies.wall[1:]) * 1e3,
        "blocked_of_copy": ratio(blocked.wall[1:], steps.copies.wall[1:]),
        "step_ms": statistics.median(steps.alone.wall) * 1e3,
        "steps_while_writing": len(steps.writing.wall),
        "rate_while_writing": ratio(steps.alone.wall, steps.writing.wall),
        "turns": len(turns),
        "rate_of_turns": statistics.median(ratio(alone.wall, writing.wall) for alone, writing in turns)
        if turns
        else float("nan"),
        "rate_of_fastest_steps": statistics.quantiles(steps.alone.wall, n=10)[0]
        / statistics.quantiles(steps.writing.wall, n=10)[0],
        "rate_by_processor": ratio(steps.alone.processor, steps.writing.processor),
    }


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", "--blocks", type=int, default=16, help="checkpoints")
    parser.add_argument("--quick", action="store_true", help="small and short, to see that it runs")
    parser.add_argument("--width", type=int, default=1200, help="of the layers")
    parser.add_argument("--every", type=int, default=250, help="steps between checkpoints")
    parser.add_argument("--only", nargs="*", choices=list(PLACES), default=list(PLACES), help="frameworks")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    width, rounds, every = (200, 3, 40) if given.quick else (given.width, given.rounds, given.every)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"MLP of four layers, Adam, batch {BATCH}, {rounds} checkpoints")
    print(f"Python {platform.python_version()}, load {load:.1f}")
    results = [measure(name, width, rounds, every) for name in given.only if find_spec(PLACES[name])]
    for one in results:
        print(
            ", ".join(
                f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in one.items()
            )
        )
    if given.json:
        given.json.write_text(json.dumps({"load": load, "checkpoints": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
