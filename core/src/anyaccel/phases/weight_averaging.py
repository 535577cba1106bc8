"""WeightAveraging: a callback that averages the weights of training, over steps (EMA) or over epochs (SWA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel import arguments
from anyaccel.adapter.weight_files import plain_state
from anyaccel.arguments import shown
from anyaccel.backend import ComputingBackend
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import PhaseError, StateError
from anyaccel.graph import ModelGraph
from anyaccel.phases.callbacks import Callback

if TYPE_CHECKING:
    from anyaccel.phases.run import Run

_COUNT = "n_averaged"
State = dict[str, np.ndarray]
"""As `Compute.state` gives it."""


@constructor_hints
class WeightAveraging(Callback):
    """Average the parameters of all trained nodes, in host memory.

    With `decay`, this is an exponential moving average (EMA): after each step,
    `decay * average + (1 - decay) * parameters`. Without `decay`, it is the mean of the parameters after each epoch
    (stochastic weight averaging, SWA). The average starts at the first values. Buffers, such as running statistics, are
    not averaged; they have the values of the last update.

    Training continues with its own parameters. `applied(graph)` puts the averages into the models temporarily, for
    evaluations; `apply(graph)` does it permanently. The average continues in later phases: use a separate object for
    each new training. `n_averaged` is the number of updates.

    Args:
        decay: Decay of the moving average, in (0, 1); None for the mean of epochs.
        every_n_steps: Update the moving average after every n steps of an epoch. An update waits for the device and
            copies all parameters to the host, so a larger number (with a smaller decay) is cheaper.
        start_epoch: First epoch of a phase, from 0, that is averaged.

    Raises:
        PhaseError: a setting out of range.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], "adam", seed=0)
        >>> average = aa.WeightAveraging()
        >>> loss = aa.AppliedLoss("mse")
        >>> results = graph.run(aa.TrainPhase("train", data=data, losses=loss, callbacks=[average]), progress="none")
        >>> with average.applied(graph):
        ...     evaluation = graph.run(aa.EvalPhase("eval", data=data, losses=loss), progress="none")
        >>> average.n_averaged
        1
    """

    def __init__(self, decay: float | None = None, *, every_n_steps: int = 1, start_epoch: int = 0) -> None:
        where = "WeightAveraging: "
        if decay is not None:
            wanted = "a number in (0, 1)"
            decay = float(arguments.number(PhaseError, where, "decay", decay, lambda it: 0 < it < 1, wanted, 0.999))
        self.decay = decay
        self.every_n_steps = arguments.integer(PhaseError, where, "every_n_steps", every_n_steps, 1, 10)
        self.start_epoch = arguments.integer(PhaseError, where, "start_epoch", start_epoch, 0, 10)
        self.n_averaged = 0
        self._averages: dict[str, State] = {}
        self._counts: dict[str, int] = {}
        self._backends: dict[str, ComputingBackend] = {}

    def after_loading(self, phase: Any, plan: Any, run: Run) -> None:
        """Remember the trained nodes and their backends."""
        trained = [assignment for assignment in plan.assignments if assignment.parameters and not assignment.frozen]
        self._backends |= {assignment.node: assignment.backend for assignment in trained}

    def step_end(self, run: Run) -> None:
        """Update the moving average."""
        if self.decay is not None and run.epoch >= self.start_epoch:
            self._update(run)

    def epoch_end(self, run: Run) -> None:
        """Update the mean of epochs."""
        if self.decay is None and run.epoch >= self.start_epoch:
            self._update(run)

    def _update(self, run: Run) -> None:
        for node, backend in self._backends.items():
            now, average = dict(backend.state(run.model(node))), self._averages.get(node)
            if average is not None and average.keys() != now.keys():
                average = plain_state(backend, run.model(node), now, average)
            self._counts[node] = count = self._counts.get(node, 0) + 1  # one may be trained from a later phase on
            weight = 1.0 / count if self.decay is None else 1.0 - self.decay
            if average is not None:
                for name, value in now.items():
                    if name.startswith("parameters/") and np.issubdtype(value.dtype, np.inexact):  # others stay
                        now[name] = (average[name] + (value - average[name]) * weight).astype(value.dtype)
            self._averages[node] = now
        self.n_averaged += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the number of updates, and the averages as `NODE/parameters/NAME` and `NODE/buffers/NAME`."""
        counts = {f"{node}/{_COUNT}": count for node, count in self._counts.items()}
        arrays = {
            f"{node}/{name}": array for node, averages in self._averages.items() for name, array in averages.items()
        }
        return {_COUNT: self.n_averaged, **counts, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from these averages.

        Raises:
            StateError: they do not have the form that `state_dict` returns.
        """
        counts: dict[str, int] = {}
        averages: dict[str, State] = {}
        for path, value in state.items() if isinstance(state, Mapping) else ():
            node, _, name = str(path).partition("/")
            if name == _COUNT:
                counts[node] = int(value)
            elif name:
                averages.setdefault(node, {})[name] = np.asarray(value)
        if not isinstance(state, Mapping) or _COUNT not in state or set(counts) != set(averages):
            raise StateError(
                f"the state of WeightAveraging lacks {_COUNT}, of all or of a node",
                cause=", ".join(map(str, state)) if isinstance(state, Mapping) else shown(state),
                hint="pass the result of state_dict() of the same kind of callback",
            )
        self._averages, self._counts, self.n_averaged = averages, counts, int(state[_COUNT])

    def apply(self, graph: ModelGraph) -> None:
        """Copy the averages into the models of a graph.

        Raises:
            PhaseError: nothing has been averaged yet, the graph lacks a node, or it is not a ModelGraph.
        """
        self._check(graph)
        for node, average in self._averages.items():
            graph.shapes.backends[node].load_state(_model(graph, node), average)

    @contextmanager
    def applied(self, graph: ModelGraph) -> Iterator[None]:
        """Use the averages in the models of a graph inside a `with` block; the models get their own values back
        afterwards.

        Raises:
            PhaseError: see `apply`.
        """
        self._check(graph)
        states = {node: graph.shapes.backends[node].state(_model(graph, node)) for node in self._averages}
        try:
            self.apply(graph)
            yield
        finally:
            for node, values in states.items():
                graph.shapes.backends[node].load_state(_model(graph, node), values)

    def _check(self, graph: ModelGraph) -> None:
        if not isinstance(graph, ModelGraph):
            raise PhaseError(f"WeightAveraging takes a ModelGraph, got {shown(graph)}", hint="give experiment.graph")
        missing = [node for node in self._averages if node not in graph.nodes]
        if not self._averages or missing:
            what = f"was computed for node {missing[0]!r}, which the graph does not have" if missing else "is empty"
            hint = "add it to the callbacks of a TrainPhase, and run that phase first, on the same graph"
            raise PhaseError(f"the average of WeightAveraging {what}", available=", ".join(graph.nodes), hint=hint)


def _model(graph: ModelGraph, node: str) -> Any:
    return getattr(graph[node], "model", None)
