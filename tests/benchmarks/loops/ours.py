"""anyaccel: the same networks as phases over a graph."""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyaccel as aa
from loops.turns import Turn
from loops.workloads import Workload, workload

PACKAGES = {"numpy": "anyaccel", "torch": "anyaccel_torch", "jax": "anyaccel_jax", "tensorflow": "anyaccel_tensorflow"}


def phase_by_turn(
    name: str, *, frameworks: Sequence[str], shuffle: bool = True, listen: int | None = 0, **settings: Any
) -> Turn:
    """The second of two epochs of a phase, as `Epoch.seconds` says; every turn is a phase.

    Args:
        name: of the workload.
        frameworks: of the graph; see `experiment_of`.
        shuffle: the rows anew in every epoch.
        listen: have a callback that hears of every so many steps; 0 for none; None for many at once, with their losses.
        settings: further ones of the phase.
    """
    work = workload(name)
    experiment = experiment_of(work, frameworks)
    callbacks: list[aa.Callback] = [BatchListener()] if listen is None else [Listener(listen)] if listen else []
    phase = phase_of(experiment, work, 2, shuffle=shuffle, callbacks=callbacks, **settings)
    return lambda: float(experiment.run_phase(phase).epochs[-1].seconds)


class Listener(aa.Callback):
    """A listener to every so many steps."""

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps

    def step_end(self, run: object) -> None:
        """Hear of it."""


class BatchListener(aa.Callback):
    """A listener to all steps, many at once, that reads the loss of each."""

    def steps_done(self, run: Any, steps: Any) -> None:
        """Read their losses."""
        self.losses = steps.losses()


class Standing(aa.Callback):
    """A phase that stands still between turns, in a thread of its own, so that it keeps what it has compiled.

    A turn is two epochs, of which the second counts.

    Args:
        experiment: runs the phase.
        make: the phase, given this callback.
    """

    def __init__(self, experiment: aa.Experiment, make: Callable[[Standing], aa.TrainPhase]) -> None:
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._given: queue.SimpleQueue[float | BaseException] = queue.SimpleQueue()
        self._experiment, self._phase = experiment, make(self)
        self._run: Any = None
        threading.Thread(target=self._work, daemon=True).start()

    def __call__(self) -> float:
        """Two epochs; seconds of the second."""
        self._epoch()
        return self._epoch()

    def _epoch(self) -> float:
        self._asked.put(None)
        found = self._given.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def told(self) -> dict[str, Any]:
        """What the phase decided, and the losses of its epochs."""
        return {"events": events(self._run), "losses": [epoch.loss for epoch in self._run.history]}

    def epoch_start(self, run: Any) -> None:
        """Tell of the epoch before, if there is one, and wait until somebody wants the next."""
        self._run = run
        if run.history:
            self._given.put(run.history[-1].seconds)
        self._asked.get()

    def _work(self) -> None:
        try:
            self._experiment.run_phase(self._phase)
        except BaseException as error:  # is raised where the turn was asked for
            self._given.put(error)


def standing_phase(name: str, *, frameworks: Sequence[str], steps: int | None = None, **settings: Any) -> Standing:
    """A phase whose epochs are turns; see `Standing` and `phase_of`."""
    work = workload(name, steps)
    experiment = experiment_of(work, frameworks)
    return Standing(experiment, lambda gate: phase_of(experiment, work, 100_000, callbacks=[gate], **settings))


def events(run: Any) -> list[str]:
    """What a run says that it decided."""
    return [one.text for one in getattr(run, "events", ())]


def experiment_of(work: Workload, frameworks: Sequence[str]) -> aa.Experiment:
    """An experiment over the network of a workload.

    Args:
        work: the workload.
        frameworks: one, for a graph of one node; or two, of its layers but the last, and of the last.
    """
    for one in frameworks:
        importlib.import_module(PACKAGES[one])
    x, y = work.data()
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    data.split_random({"train": 1.0})
    *before, last = frameworks
    nodes = [aa.ModelNode("head", model(work, last, head=bool(before)), "body" if before else data.reference())]
    if before:
        nodes.insert(0, aa.ModelNode("body", model(work, before[0], body=True), data.reference()))
    return aa.Experiment("bench", aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-3)), progress="none")


def model(work: Workload, framework: str, *, body: bool = False, head: bool = False) -> Any:
    """The network, or its layers but the last (`body`), or the last (`head`)."""
    package = importlib.import_module(PACKAGES[framework])
    if work.pictures:
        return package.SequentialCNN(output_shape=(work.outputs,), channels=work.widths)
    layers = 1 if head else len(work.widths) + (not body)
    outputs = work.widths[-1] if body else work.outputs
    return package.SequentialMLP(output_shape=(outputs,), n_layers=layers, hidden_dim=work.widths[0])


def phase_of(
    experiment: aa.Experiment, work: Workload, epochs: int, *, shuffle: bool = True, **settings: Any
) -> aa.TrainPhase:
    """A training phase over all rows.

    Raises:
        Absent: this version has no setting of this name.
    """
    return aa.TrainPhase(
        "train",
        data="train",
        sampler=aa.SimpleSampler(work.batch, shuffle=shuffle),
        losses=[aa.AppliedLoss("cross_entropy" if work.classes else "mse", on="head")],
        epochs=epochs,
        **settings,
    )


class Start(aa.Callback):
    """Notes when the first epoch of a phase begins."""

    at = 0.0

    def epoch_start(self, run: Any) -> None:
        """An epoch begins."""
        self.at = time.perf_counter() if not run.epoch else self.at


def before_first_step(name: str, *, frameworks: Sequence[str], steps: int, **settings: Any) -> Turn:
    """From the call of a phase to its first epoch: plan, placement, loading, and building programs."""
    work, start = workload(name, steps), Start()
    experiment = experiment_of(work, frameworks)
    phase = phase_of(experiment, work, 1, callbacks=[start], **settings)

    def turn() -> float:
        began = time.perf_counter()
        experiment.run_phase(phase)
        return start.at - began

    return turn


def whole_phase(name: str, *, frameworks: Sequence[str], epochs: int, steps: int, **settings: Any) -> Turn:
    """A phase from its call to its results: the modes' own decisions and compilers are in it, imports are not."""
    work = workload(name, steps)
    experiment = experiment_of(work, frameworks)
    phase = phase_of(experiment, work, epochs, **settings)

    def turn() -> float:
        began = time.perf_counter()
        experiment.run_phase(phase)
        return time.perf_counter() - began

    return turn


def whole_fit(name: str, *, steps: int) -> Turn:
    """`aa.fit` of a new torch model for one epoch, from its call to its results."""
    from loops.in_torch import perceptron

    work = workload(name, steps)
    data = work.data()

    def turn() -> float:
        network = perceptron(work)
        began = time.perf_counter()
        aa.fit(network, data, loss="mse", epochs=1, batch_size=work.batch, accelerator="cpu", progress="none")
        return time.perf_counter() - began

    return turn
