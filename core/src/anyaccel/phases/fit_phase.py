"""FitPhase: fits estimators and freezes their nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from anyaccel.call_hints import constructor_hints
from anyaccel.data import Rows, SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.estimator_fit import awaiting_fit, fit, left_to_fit, next_to_fit
from anyaccel.phases.estimator_inputs import estimators, upstream_nodes
from anyaccel.phases.loading.epoch_plan import EpochPlan, EvaluationEpochs
from anyaccel.phases.loading.evaluation_rows import EvaluationRows
from anyaccel.phases.row_alignment import Combination
from anyaccel.phases.run import Run
from anyaccel.phases.runner import Phase, PhaseExecution, PhasePrograms
from anyaccel.phases.setting import Setting
from anyaccel.phases.settings import Data, node_labels, of_split, save_labels, takes_settings
from anyaccel.results import FitResults
from anyaccel.results.records import EvaluationValues


@constructor_hints
class FitPhase(Phase):
    """Fits estimators (`fit`, `predict`) once to the outputs of the nodes before them, and freezes their nodes.

    Args:
        label: name of the phase in results.
        data: name of a split that every feature set has, a FeatureSet or view, or a mapping from the label of each
            feature set to one of these. Also a source, or anything that IterableSource or MapSource takes (a
            DataLoader, a dataset, a generator function), which is read into memory.
        nodes: labels of the nodes to fit; by default every estimator that is not fitted yet.
        batch_size: samples per forward pass of the nodes before them.
        accelerator: where nodes without an accelerator of their own are computed: an Accelerator, a Device, or text
            such as `"gpu:0"`; `"auto"` is the best device on which all frameworks of the graph run. A node whose
            framework has no backend for this kind of device runs on the CPU; the plan notes it and a FallbackWarning
            is issued once.
        strict: raise an error instead of falling back to the CPU.
        policy: name of a plugin's placement policy, for nodes without an accelerator of their own.
        callbacks: Callback objects.
        final_device: device to which the nodes are moved when the phase ends; by default they stay where they are.
        compile: `"auto"` compiles training steps if that pays off, with the reason in `results.events`; `"off"` never
            compiles nor imports a compiler; `"steps"` compiles whole training steps before the first one. All give the
            same numbers within rounding.
        residency: `"resident"` keeps all rows on the devices; `"streamed"` keeps them in host memory and copies them
            ahead of the compute; `"auto"` decides by free memory, and logs it in `results.events`. All give the same
            numbers.
        precision: in which nodes without one of their own are computed: `"float32"`, `"bf16-mixed"`, `"fp16-mixed"`
            (with scaled losses in training), `"bf16"` or `"float64"`; None for the dtypes of the models. Parameters and
            what goes from node to node keep their dtypes.
        matmul_precision: the framework's own setting for matrix products while the phase runs: `"highest"`, `"high"` or
            `"medium"` (torch), those of `jax.default_matmul_precision`, or whether TensorFlow uses TF32, True or False;
            a dict by framework where there are several.
        losses: none; estimators have their own.
    """

    kind = "fit"
    settings: ClassVar[Mapping[str, Setting]] = {
        **Phase.settings,
        "nodes": Setting(node_labels, save_labels),
        "batch_size": Setting(lambda phase, name, given: SimpleSampler(given).batch_size),
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
        """Check the settings, and keep them."""

    @classmethod
    @of_split
    def from_split(  # type: ignore[empty-body]  # noqa: PLR0913 - keywords, each documented
        cls,
        label: str = "fit",
        *,
        split: str,
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
    ) -> Self:
        """A FitPhase over the split of this name, in every feature set that the graph uses.

        Args:
            label: name of the phase.
            split: name of the split.
        """

    def check_settings(self) -> None:
        if self.losses:
            raise PhaseError(f"phase {self.label!r} is a FitPhase, which takes no losses", hint="leave losses out")

    def next_to_fit(self, graph: ModelGraph, done: Collection[str]) -> list[str]:
        return next_to_fit(self, graph, done)

    def kept_nodes(self, graph: ModelGraph, done: Collection[str]) -> Sequence[str]:
        return upstream_nodes(next_to_fit(self, graph, done), graph)

    def draw(
        self, rows: Mapping[str, Rows], combinations: Sequence[Combination], n_replicas: int
    ) -> tuple[EvaluationRows, EpochPlan]:
        evaluated = EvaluationRows(rows)
        return evaluated, EvaluationEpochs(evaluated, self.batch_size)

    def plan_notes(self, graph: ModelGraph, done: Collection[str]) -> tuple[str, ...]:
        waiting, models = left_to_fit(self, graph, done), estimators(graph)
        order = [f"{label} ({models[label].name})" for label in graph.shapes.order if label in waiting]
        return (f"fits {', then '.join(order)}, on the host",)

    def execute(self, execution: PhaseExecution) -> EvaluationValues | None:
        """As often as estimators need outputs of each other, which are known only when these are fitted."""
        run = execution.run
        with awaiting_fit(left_to_fit(self, run.graph), run.graph):
            values = execution.round()
            while left_to_fit(self, run.graph, run.done):
                values = execution.round()
        return values

    def compute(self, programs: PhasePrograms) -> EvaluationValues:
        run, values = programs.run, programs.evaluations[0].run()
        rows = programs.parts[0].evaluated.rows
        fit(next_to_fit(self, run.graph, run.done), run.graph, values.outputs, rows, run.fitted)
        return replace(values, outputs={})

    def results_of(self, run: Run, values: EvaluationValues | None, record: Mapping[str, Any]) -> FitResults:
        return FitResults(fitted=tuple(run.fitted), **record)
