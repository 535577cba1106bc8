"""Learning-rate finder: a range test, which raises the rate in each step, on a graph that is restored afterwards."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints
from anyaccel.errors import PhaseError, ResultError
from anyaccel.experiment import Experiment, ModelGraph
from anyaccel.graph import ModelNode
from anyaccel.phases import Callback, Run, TrainPhase
from anyaccel.phases.run import FinishedSteps
from anyaccel.specs import Optimizer, Schedule, assign_fields

_WHERE = "find_learning_rate: "
_SKIPPED = 5  # the first steps, as a mean over few losses is not reliable
_FEWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RangeTest:
    """Losses of training steps with rising learning rates; the result of `find_learning_rate`.

    Attributes:
        rates: Learning rates, float64 [steps], rising.
        losses: Sum of the weighted losses of each step, float64 [steps].
        smoothed: Exponential means of the losses, with bias correction; float64 [steps].
        stop_reason: Why the test ended before the last rate, as text; `""` if it did not.
    """

    rates: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray
    stop_reason: str = ""

    def __repr__(self) -> str:
        span = f"{self.rates[0]:.3g} to {self.rates[-1]:.3g}"
        return f"RangeTest({len(self.rates)} steps, {span}, suggestion {self.suggestion:.3g})"

    @property
    def suggestion(self) -> float:
        """Rate with the steepest decrease of the losses over the logarithm of the rate, before the lowest loss.

        Each slope comes from a straight line through a sixth of the losses. The losses are not smoothed, as smoothing
        would delay them.
        """
        width = max(_FEWEST // 2, len(self.rates) // 6)
        end = max(int(np.argmin(self.smoothed)) + 1, width)
        weights = np.arange(width) - (width - 1) / 2
        slopes = np.correlate(self.losses[:end], weights, "valid")
        return float(self.rates[int(np.argmin(slopes)) + width // 2])

    @property
    def lowest(self) -> float:
        """Rate with the lowest smoothed loss; choose a rate below it."""
        return float(self.rates[int(np.argmin(self.smoothed))])

    def plot(self, ax: Any = None) -> Any:
        """Plot the losses over the rates, with the suggestion, and return the Axes.

        Args:
            ax: Matplotlib Axes to draw on; a new figure if None.

        Raises:
            ResultError: Matplotlib is not installed.
        """
        from anyaccel.results import plots

        ax = plots.axes(ax)
        ax.plot(self.rates, self.losses, color="0.75", label="loss")
        ax.plot(self.rates, self.smoothed, label="smoothed")
        ax.axvline(self.suggestion, color="C1", linestyle="--", label=f"suggestion {self.suggestion:.2g}")
        ax.set(xscale="log", xlabel="learning rate", ylabel="loss")
        ax.grid(alpha=0.3)
        ax.legend()
        return ax


@call_hints
def find_learning_rate(
    graph: ModelGraph,
    phase: TrainPhase,
    *,
    min_lr: float = 1e-6,
    max_lr: float = 1.0,
    n_steps: int = 100,
    smoothing: float = 0.9,
    stop_factor: float | None = 4.0,
    progress: Any = "none",
) -> RangeTest:
    """Train steps with exponentially rising learning rates, restore the graph, and return the losses with a suggestion.

    The steps use the phase's data, batches, losses and devices, over as many epochs as needed. Its validation,
    callbacks and checkpoints are left out, and so are the schedules of optimizers, which start from scratch. If
    optimizers have different rates, all are multiplied by the same factor; `min_lr` and `max_lr` are the rates of the
    graph's optimizer, or of the first node's. Afterwards, even after an error, parameters, buffers, optimizer state and
    progress are restored. A generator that can be read only once is consumed.

    >>> import numpy as np
    >>> from anyaccel import SequentialMLP, find_learning_rate, fit
    >>> x = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    >>> fitted = fit(SequentialMLP(), {"x": x, "y": 3 * x[:, 0]}, target="y", epochs=1, progress="none")
    >>> test = find_learning_rate(fitted.graph, fitted.phase, n_steps=50, progress="none")
    >>> bool(test.rates[0] < test.suggestion < test.rates[-1])
    True

    Args:
        graph: Graph with the models, built or not.
        phase: Phase that you want to run with the rate.
        min_lr, max_lr: Learning rates of the first and of the last step.
        n_steps: Number of steps of the test.
        smoothing: Smoothing of the mean of the losses, from 0 for none to nearly 1 for strong smoothing.
        stop_factor: The test ends if the smoothed loss reaches this multiple of its lowest value; None continues to the
            last rate.
        progress: Progress display; see `Experiment`.

    Raises:
        PhaseError: A setting is out of range, the phase does not train, there is no optimizer, or estimators are
            trained.
        ResultError: Losses were not finite after too few steps.
    """
    if not isinstance(graph, ModelGraph):
        problem = f"{_WHERE}graph must be a ModelGraph, got {type(graph).__name__}"
        raise PhaseError(problem, hint="write find_learning_rate(graph, phase); for an Experiment, pass its .graph")
    if not isinstance(phase, TrainPhase):
        problem = f"{_WHERE}phase must be a TrainPhase, got {type(phase).__name__}"
        raise PhaseError(problem, hint="write TrainPhase('train', data='train', losses=[...])")
    for name, value in (("min_lr", min_lr), ("max_lr", max_lr)):
        arguments.number(PhaseError, _WHERE, name, value, lambda it: it > 0, "a positive number", 1e-6)
    if not min_lr < max_lr:
        problem = f"{_WHERE}min_lr={shown(min_lr)} is not below max_lr={shown(max_lr)}"
        raise PhaseError(problem, hint="write min_lr=1e-6, max_lr=1.0")
    if not _optimizers(graph):
        raise PhaseError(f"{_WHERE}graph {graph.label!r} has no optimizer", hint="write ModelGraph(nodes, 'adam')")
    graph.build()
    learning = phase.learners(graph)
    if learning:
        problem = f"{_WHERE}{', '.join(map(repr, learning))} would learn by partial_fit, and this cannot be undone"
        raise PhaseError(problem, hint=f"freeze it for the test: graph.freeze({learning[0]!r})")
    n_steps = arguments.integer(PhaseError, _WHERE, "n_steps", n_steps, _FEWEST, 100)
    part = "a number from 0 to below 1"
    beta = float(arguments.number(PhaseError, _WHERE, "smoothing", smoothing, lambda it: 0 <= it < 1, part, 0.9))
    if stop_factor is not None:
        more = "a number above 1, or None"
        arguments.number(PhaseError, _WHERE, "stop_factor", stop_factor, lambda it: it > 1, more, 4.0)
    optimizer = _optimizers(graph)[0]
    rates = np.geomspace(min_lr, max_lr, n_steps)
    watch = _Watch(n_steps, beta, math.inf if stop_factor is None else float(stop_factor))
    with _as_before(graph), _rising(graph, rates / optimizer.lr), np.errstate(over="ignore", invalid="ignore"):
        test = copy.copy(phase)
        test.epochs, test.callbacks = n_steps, (watch,)
        test.validation, test.checkpoint, test.on_nan = None, None, "ignore"
        test.compile = "off" if phase.compile == "auto" else phase.compile
        Experiment(graph, progress=progress).run_phase(test)
    return watch.result(rates)


class _Watch(Callback):
    """Collects losses, and stops when there are enough or they grow."""

    def __init__(self, n_steps: int, beta: float, stop_factor: float) -> None:
        self._n_steps, self._beta, self._stop_factor = n_steps, beta, stop_factor
        self._mean, self._lowest = 0.0, math.inf
        self._losses: list[float] = []
        self._smoothed: list[float] = []
        self._reason = ""

    def steps_done(self, run: Run, steps: FinishedSteps) -> None:
        losses = steps.losses()
        if run.phase.step is not None:  # a custom step, which returns the total loss
            total = losses.get("loss", np.full(len(steps), np.nan))
        else:
            total = np.sum([loss.weight * losses[loss.label] for loss in run.phase.losses], axis=0)
        for loss in total.tolist():
            if self._reason or len(self._losses) == self._n_steps:
                break
            self._add(loss)
        if self._reason or len(self._losses) == self._n_steps:
            run.stop(self._reason or "the range test is done")

    def _add(self, loss: float) -> None:
        if not math.isfinite(loss):
            self._reason = "the loss is not finite"
            return
        self._losses.append(loss)
        self._mean = self._beta * self._mean + (1 - self._beta) * loss
        self._smoothed.append(self._mean / (1 - self._beta ** len(self._losses)))
        self._lowest = min(self._lowest, self._smoothed[-1])
        if len(self._losses) > _SKIPPED and self._smoothed[-1] > self._stop_factor * abs(self._lowest):
            self._reason = f"the smoothed loss is more than {self._stop_factor:g} times its lowest"

    def result(self, rates: np.ndarray) -> RangeTest:
        n = len(self._losses)
        if n < _FEWEST:
            why = self._reason or "the phase has no more"
            hint = "start with a smaller min_lr, or check the losses of a normal phase for NaN and infinity"
            raise ResultError(f"the range test has {n} losses, which are too few: {why}", hint=hint)
        return RangeTest(
            rates=rates[:n],
            losses=np.array(self._losses),
            smoothed=np.array(self._smoothed),
            stop_reason=self._reason,
        )


def _nodes(graph: ModelGraph) -> list[ModelNode]:
    return [node for node in graph.nodes.values() if isinstance(node, ModelNode)]


def _optimizers(graph: ModelGraph) -> list[Optimizer]:
    optimizers = [graph.optimizer, *(node.optimizer for node in _nodes(graph))]
    return [optimizer for optimizer in optimizers if optimizer is not None]


@contextmanager
def _as_before(graph: ModelGraph) -> Iterator[None]:
    """Let a graph train from its current values with new optimizer states, and restore everything afterwards."""
    before = graph.state()
    graph.optimizer_states.clear()
    try:
        yield
    finally:
        graph.load_state(before)


@contextmanager
def _rising(graph: ModelGraph, factors: np.ndarray) -> Iterator[None]:
    """Multiply the learning rates of a graph's optimizers by these factors, step by step; the last factor is kept."""

    def factor(step: int) -> float:
        return float(factors[min(step, len(factors) - 1)])

    everybody: list[Any] = [graph, *_nodes(graph)]
    owners = [owner for owner in everybody if owner.optimizer is not None]
    optimizers = [owner.optimizer for owner in owners]
    try:
        for owner in owners:
            owner.optimizer = _with_schedule(owner.optimizer, Schedule(factor))
        yield
    finally:
        for owner, optimizer in zip(owners, optimizers, strict=True):
            owner.optimizer = optimizer


def _with_schedule(optimizer: Optimizer, schedule: Schedule) -> Optimizer:
    other = copy.copy(optimizer)
    groups = tuple((key, _with_schedule(group, schedule)) for key, group in optimizer.groups)
    assign_fields(other, schedule=schedule, groups=groups)
    return other
