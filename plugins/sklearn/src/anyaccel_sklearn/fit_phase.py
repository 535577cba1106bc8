"""FitPhase: fits estimators and freezes their nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from anyaccel import interrupts
from anyaccel.call_hints import constructor_hints
from anyaccel.data import Reference, Rows, SimpleSampler
from anyaccel.data.roles import listed
from anyaccel.errors import EstimatorError, PhaseError
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.graph.topology import ancestors, unknown_node, upstream_nodes
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.loading.epoch_plan import EpochPlan, EvaluationEpochs, EvaluationRows
from anyaccel.phases.row_alignment import Combination
from anyaccel.phases.run import Run
from anyaccel.phases.runner import Phase, PhaseExecution, PhasePrograms
from anyaccel.phases.settings import Data, Setting, node_labels, save_labels, takes_settings
from anyaccel.results.records import EvaluationValues, Fitted
from anyaccel_sklearn.estimator_inputs import estimators, inputs_of, targets_of
from anyaccel_sklearn.estimators import Estimator
from anyaccel_sklearn.fit_results import FitResults
from anyaccel_sklearn.transforms.sklearn_calls import by_position, columns_by_name


@constructor_hints
class FitPhase(Phase):
    """Fit estimators (`fit`, `predict`) once to the outputs of the nodes before them, and freeze their nodes.

    >>> import anyaccel as aa, numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> x = np.arange(8, dtype="float32").reshape(8, 1)
    >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
    >>> graph = aa.ModelGraph([aa.ModelNode("net", LinearRegression(), data)])
    >>> graph.run(aa.FitPhase("fit", data=data), progress="none").nodes
    ('net',)

    Args:
        label: Name of the phase in results.
        data: Name of a split that every feature set has, a FeatureSet or view, or a mapping from the label of each
            feature set to one of these. Also a source, or anything that IterableSource or MapSource takes (a
            DataLoader, a dataset, a generator function), which is read into memory.
        nodes: Labels of the nodes to fit; by default every estimator that is not fitted yet.
        batch_size: Samples per forward pass of the nodes before them.
        losses: Must be empty; estimators have their own losses.
    """

    # The texts of accelerator, strict and the other settings of every kind are added from PhaseSettings.
    kind = "fit"
    settings: ClassVar[Mapping[str, Setting]] = {
        **Phase.settings,
        "nodes": Setting(node_labels, save_labels),
        "batch_size": Setting(lambda phase, name, value: SimpleSampler(value).batch_size),
    }
    batch_size: int
    equal_lengths = True

    @takes_settings
    def __init__(  # noqa: PLR0913 - keywords, each documented
        self,
        label: str = "fit",
        *,
        data: Data,
        nodes: Sequence[str] | str | None = None,
        batch_size: int = 1024,
        accelerator: Any = None,
        strict: bool = False,
        policy: str | None = None,
        callbacks: Iterable[Callback] = (),
        final_device: Any = None,
        compile: str = "auto",
        residency: str = "auto",
        precision: str | None = None,
        matmul_precision: Any = None,
        losses: tuple[()] = (),
    ) -> None:
        """Check and store the settings."""

    def check_settings(self) -> None:
        if self.losses:
            raise PhaseError(f"phase {self.label!r} is a FitPhase, which takes no losses", hint="leave losses out")

    def next_to_fit(self, graph: ModelGraph, done: Collection[str]) -> list[str]:
        """Return the unfitted nodes that depend on no other unfitted node.

        Raises:
            PhaseError: The node does not exist, an estimator cannot be fitted, or the choice is ambiguous.
            GraphError: A node is not in the graph.
        """
        waiting = self._left_to_fit(graph, done)
        if not waiting and not done:
            named = self.nodes is not None
            raise PhaseError(
                f"phase {self.label!r} has nothing to fit",
                cause="nodes=[] names no nodes"
                if named
                else "no node has an estimator (fit, predict) that is not fitted yet",
                hint="set nodes=[...] to fit one again",
            )
        return [label for label in waiting if not (ancestors([label], graph.nodes) - {label}) & set(waiting)]

    def _left_to_fit(self, graph: ModelGraph, done: Collection[str]) -> list[str]:
        """Return the labels of all nodes that are not fitted yet."""
        models = estimators(graph)
        if self.nodes is None:
            # Refuse estimators that learned in a TrainPhase: the user must choose whether to keep or to refit them
            learned = [label for label, model in models.items() if model.partially_fitted and label not in graph.frozen]
            if learned:
                unfitted = [label for label, model in models.items() if not model.is_fitted]
                raise PhaseError(
                    f"phase {self.label!r} names no nodes, but {', '.join(map(repr, learned))} learned by "
                    "partial_fit before",
                    cause=f"not fitted: {', '.join(unfitted) or 'none'}",
                    hint=f"name nodes=[...], or graph.freeze({learned[0]!r}) to keep it unchanged",
                )
            labels = [label for label, model in models.items() if model.has_fit and not model.is_fitted]
        else:
            labels = list(dict.fromkeys(self.nodes))
        for label in labels:
            if label not in graph.nodes:
                raise unknown_node(f"phase {self.label!r} fits the node {label!r}", label, graph.nodes)
            if label not in models:
                raise PhaseError(f"node {label!r} is not an estimator", hint="train it in a TrainPhase")
            if not models[label].has_fit:
                raise PhaseError(
                    f"phase {self.label!r} fits {label!r}, and {models[label].name} has no fit",
                    cause="it has partial_fit",
                    hint="train it in a TrainPhase",
                )
            names, upstreams = columns_by_name(models[label].estimator), graph[label].upstreams
            if names:
                features = [name for part in upstreams if isinstance(part, Reference) for name in part.features]
                raise EstimatorError(
                    f"{models[label].name} of node {label!r} chooses columns by name ({listed(names)}), but it gets "
                    "an array, which has no names",
                    hint=by_position(names, features) if features else "choose columns by their positions in the array",
                )
        for label in labels:
            before = ancestors([label], graph.nodes)
            for other in (node for node in graph.shapes.order if node in before and node not in labels):
                if other in models and not models[other].is_fitted:
                    named = f"name it too, nodes=[{other!r}, {label!r}]"
                    raise PhaseError(
                        f"phase {self.label!r} fits {label!r}, but {label!r} needs {other!r}, an estimator that is not "
                        "fitted",
                        hint=named if models[other].has_fit else "train it first",
                    )
        # Check that nodes with a shared estimator have equal inputs; they may use different methods of it
        first: dict[int, str] = {}
        for label in labels:
            other = first.setdefault(id(models[label].estimator), label)
            if graph[other].upstreams != graph[label].upstreams:
                raise PhaseError(
                    f"phase {self.label!r} fits {other!r} and {label!r}, which share one estimator but not their "
                    "inputs",
                    hint=f"name the one to fit, nodes=[{other!r}], or use a separate estimator for each",
                )
        return [label for label in labels if label not in done]

    def kept_nodes(self, graph: ModelGraph, done: Collection[str]) -> Sequence[str]:
        return upstream_nodes(self.next_to_fit(graph, done), graph.nodes)

    def draw(self, rows: Mapping[str, Rows], combinations: Sequence[Combination]) -> tuple[EvaluationRows, EpochPlan]:
        evaluated = EvaluationRows(rows)
        return evaluated, EvaluationEpochs(evaluated, self.batch_size)

    def plan_notes(self, graph: ModelGraph, done: Collection[str]) -> tuple[str, ...]:
        waiting, models = self._left_to_fit(graph, done), estimators(graph)
        order = [f"{label} ({models[label].name})" for label in graph.shapes.order if label in waiting]
        return (f"fits {', then '.join(order)}, on the host",)

    def execute(self, execution: PhaseExecution) -> EvaluationValues | None:
        """Run rounds until all estimators are fitted: the outputs of an estimator are known only after it is fitted."""
        run = execution.run
        with _awaiting_fit(self._left_to_fit(run.graph, ()), run.graph):
            values = execution.round()
            while self._left_to_fit(run.graph, run.done):
                values = execution.round()
        return values

    def compute(self, programs: PhasePrograms) -> EvaluationValues:
        run, values = programs.run, programs.evaluations[0].run()
        rows = programs.parts[0].evaluated.rows
        # Fit each node's estimator and freeze the node; from then on the graph knows its output
        labels = self.next_to_fit(run.graph, run.done)
        graph = run.graph
        for label in labels:
            if label in [fitted.node for fitted in run.fitted]:
                continue
            node = graph[label]
            assert isinstance(node, ModelNode) and isinstance(node.model, Estimator)
            inputs, targets = inputs_of(label, graph, values.outputs, rows), targets_of(label, graph, rows)
            models = [other for other in graph.nodes.values() if isinstance(other, ModelNode)]
            sharing = [
                other
                for other in models
                if isinstance(other.model, Estimator) and other.model.estimator is node.model.estimator
            ]
            began = time.perf_counter()
            _fit(node, inputs, targets, sharing)
            seconds = time.perf_counter() - began
            for other in sharing:
                other.frozen = True
                other.model.mark_fitted(node.model)
                if other.label in labels:
                    own_seconds = seconds if other.label == label else 0.0
                    run.fitted.append(Fitted(other.label, node.model.name, len(inputs[0]), own_seconds))
            graph.build(force=True)
        return replace(values, outputs={})

    def results_of(self, run: Run, values: EvaluationValues | None, record: Mapping[str, Any]) -> FitResults:
        return FitResults(fitted=tuple(run.fitted), **record)


@contextlib.contextmanager
def _awaiting_fit(labels: Sequence[str], graph: ModelGraph) -> Iterator[None]:
    """Ignore earlier fits of these estimators in this context, until each is fitted again."""
    models = [model for label, model in estimators(graph).items() if label in labels]
    for model in models:
        model.awaits_fit = True
    try:
        yield
    finally:
        for model in models:
            model.awaits_fit = False


def _fit(
    node: ModelNode, inputs: Sequence[np.ndarray], targets: np.ndarray | None, sharing: Sequence[ModelNode]
) -> None:
    """Fit a node's estimator; if that fails, none of the nodes that share it counts as fitted."""
    try:
        with interrupts.allowed():
            node.model.fit(inputs, targets)
    except BaseException as error:
        for other in sharing:
            other.model.mark_failed()
        error.add_note(f"while node {node.label!r} was fitted to {len(inputs[0])} rows")
        raise
