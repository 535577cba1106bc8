"""A process that interrupts its own phases at random instants and checks what they leave behind.

    python interrupted.py MODE COUNT SEED

Every parameter of its models moves by one `RATE` a step, so that each tells how many steps it has seen: all, the
optimizers and the run must tell the same number.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa

ROWS, SIZE, RATE = 512, 8, 2.0**-10
X, Y = np.ones((ROWS, 3), "float32"), np.full((ROWS, 1), -1e6, "float32")
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, "x", "y")
# multiprocessing's own, which serve the next loader; and torch's compiler keeps its processes for the next compilation.
LASTING = ("forkserver", "resource_tracker", "compile_worker")
PATIENCE = 60.0
"""Seconds that threads and processes have to end."""


def numpy_model() -> Any:
    from anyaccel.numpy_backend import Dense

    return Dense(1)


def torch_model() -> Any:
    from torch import nn

    return nn.Linear(3, 1)


def tensorflow_model() -> Any:
    import keras

    return keras.layers.Dense(1)


def jax_model() -> Any:
    from flax import linen

    return linen.Dense(1)


class Items:
    """A map-style data set."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


def generated() -> Iterator[Any]:
    for start in range(0, ROWS, SIZE):
        time.sleep(0.0005)
        yield X[start : start + SIZE], Y[start : start + SIZE]


def data_loader() -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(Items(), batch_size=SIZE, num_workers=2, multiprocessing_context="forkserver")  # type: ignore[arg-type]


def tf_data() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(SIZE).prefetch(1)


MODES: dict[str, tuple[tuple[Callable[[], Any], ...], Callable[[], Any], dict[str, Any]]] = {
    "numpy, two nodes, validation": ((numpy_model, numpy_model), lambda: DATA, {"validation": True}),
    "numpy streamed": ((numpy_model,), lambda: DATA, {"residency": "streamed"}),
    "numpy from a generator": ((numpy_model,), lambda: {"data": generated}, {}),
    "numpy from items by threads": (
        (numpy_model,),
        lambda: {"data": aa.MapSource("data", Items(), features="x", targets="y", workers=2)},
        {},
    ),
    "torch off": ((torch_model,), lambda: DATA, {"compile": "off", "validation": True}),
    "torch auto": ((torch_model,), lambda: DATA, {"compile": "auto"}),
    "torch steps": ((torch_model,), lambda: DATA, {"compile": "steps"}),
    "torch with workers": ((torch_model,), lambda: {"data": data_loader()}, {}),
    "jax steps": ((jax_model,), lambda: DATA, {"compile": "steps", "validation": True}),
    "tensorflow from tf.data": ((tensorflow_model,), lambda: {"data": tf_data()}, {}),
    "three frameworks": ((torch_model, jax_model, tensorflow_model), lambda: DATA, {"validation": True}),
    "torch streamed": ((torch_model,), lambda: DATA, {"residency": "streamed"}),
}
SECONDS = {"torch steps": 12.0, "torch with workers": 12.0, "tensorflow from tf.data": 2.0, "three frameworks": 2.0}
"""Until when a phase is interrupted; others 0.4 s."""


class Told(aa.Callback):
    """What the last run has told of its steps at its end."""

    def __init__(self) -> None:
        self.steps = 0

    def phase_end(self, run: Any) -> None:
        """See `Callback`."""
        unfinished = run.step if run.looping and run.epoch == len(run.history) else 0
        self.steps = sum(epoch.steps for epoch in run.history) + unfinished


def kept() -> set[str]:
    """Threads, child processes, shared memory and temporary files of this process."""
    gc.collect()
    threads = {f"thread {each.name}" for each in threading.enumerate() if each.name.startswith("anyaccel")}
    return threads | {f"process {each}" for each in _children(os.getpid())} | _files()


def _children(process: int) -> Iterator[str]:
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        for child in _read(tasks).split():
            command = _read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")
            if any(name in command for name in LASTING):
                if "compile_worker" not in command:
                    yield from _children(int(child))  # the workers are the children of the forkserver
            elif command:
                yield command


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # it has ended
        return ""


def _files() -> set[str]:
    mine = (str(os.getpid()), "torch_", "psm_", "anyaccel")
    return {str(path) for path in Path("/dev/shm").glob("*") if path.name.startswith(mine)}


def left_behind(before: set[str]) -> set[str]:
    """What is there that was not there before, when it has had time to end."""
    deadline = time.monotonic() + PATIENCE
    while (left := kept() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def counts(graph: aa.ModelGraph) -> set[int]:
    """How many steps every parameter and every optimizer of a graph has seen."""
    moved = {
        float(-number / RATE)
        for name, array in graph.state().items()
        if "/parameters/" in name
        for number in array.flat
    }
    assert all(count.is_integer() for count in moved), moved
    return {int(count) for count in moved} | {state.step for state in graph.optimizer_states.values()}


def graph_of(models: tuple[Callable[[], Any], ...]) -> aa.ModelGraph:
    """A graph of one node for each model, all at zero."""
    nodes = [aa.ModelNode(f"n{i}", make(), DATA.reference(["x"], ["y"])) for i, make in enumerate(models)]
    graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=RATE)).build()
    parameters = {name: np.zeros_like(array) for name, array in graph.state().items() if "/parameters/" in name}
    return graph.load_state({**graph.state(), **parameters})


class Sender(threading.Thread):
    """Sends this process a signal after some time, and every two seconds again until `over` is set.

    Python ignores an exception that a handler raises where an object is freed, as may happen outside our functions.
    """

    def __init__(self, seconds: float, number: int) -> None:
        super().__init__(daemon=True)
        self.begin, self.over = threading.Event(), threading.Event()
        self._seconds, self._number = seconds, number
        self.sent = 0
        self.start()

    def run(self) -> None:
        """Called by the thread."""
        self.begin.wait()
        time.sleep(self._seconds)
        while not self.over.is_set():
            self.sent += 1
            os.kill(os.getpid(), self._number)
            self.over.wait(2.0 if self.sent == 1 else 20.0)


def main(mode: str, count: int, seed: int) -> None:
    """Interrupt a phase `count` times."""
    models, data, settings = MODES[mode]
    settings = dict(settings)
    draw, graph, told = random.Random(seed), graph_of(models), Told()
    losses = [aa.AppliedLoss("mae", on=label) for label in graph.nodes]
    validation = aa.EvalPhase("v", data=DATA, metrics=["mae"]) if settings.pop("validation", False) else None
    experiment = aa.Experiment("e", graph, callbacks=[told], progress="none")

    def phase(n_epochs: int) -> aa.TrainPhase:
        more = {} if isinstance(given := data(), dict) else {"sampler": SIZE}
        return aa.TrainPhase(
            "t", data=given, losses=losses, n_epochs=n_epochs, validation=validation, **more, **settings
        )

    experiment.run_phase(phase(1))
    before, total = kept(), told.steps
    assert counts(graph) == {total} and not any(name.startswith("thread") for name in before), (counts(graph), before)
    seconds, again = SECONDS.get(mode, 0.4), 0
    for number in range(count):
        told.steps = 0
        sent = signal.SIGTERM if number % 4 == 3 else signal.SIGINT
        sender = Sender(draw.uniform(0.0, draw.choice([0.02, 0.1, seconds])), sent)
        try:
            sender.begin.set()
            experiment.run_phase(phase(10**6))
            raise AssertionError("it was not interrupted")
        except (KeyboardInterrupt, SystemExit) as error:
            traceback.clear_frames(error.__traceback__)
        sender.over.set()
        sender.join()
        again += sender.sent > 1
        total += told.steps
        assert counts(graph) == {total}, f"interrupt {number}: steps {counts(graph)}, told {total}"
        left = left_behind(before)
        assert not left, f"interrupt {number} left {left}"
    experiment.run_phase(phase(1))
    total += told.steps
    assert counts(graph) == {total}, f"at the end: steps {counts(graph)}, told {total}"
    print(f"{count} interrupts, {again} of them sent again, {total} steps")


def leave(number: int, frame: Any) -> None:
    """Handler of SIGTERM."""
    raise SystemExit(number)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, leave)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
