"""EvalPhase: losses, metrics and predictions over data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data import Rows, Sampler, SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.graph import ModelGraph
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.metrics import Metric, can_measure
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.evaluation import compared
from anyaccel.phases.loading.epoch_plan import EpochPlan, EvaluationEpochs, EvaluationRows
from anyaccel.phases.row_alignment import Combination, check_alignment
from anyaccel.phases.run import Run
from anyaccel.phases.runner import Phase, PhasePrograms
from anyaccel.phases.settings import (
    UNSAVED,
    Data,
    Samplers,
    Setting,
    batch_size,
    largest_batch,
    node_labels,
    offered,
    read,
    read_list,
    samplers,
    samplers_config,
    samplers_from,
    save_labels,
    takes_settings,
)
from anyaccel.results import EvalResults, eval_results
from anyaccel.results.records import EvaluationValues


def _metrics(phase: Any, name: str, metrics: Any) -> tuple[Metric, ...]:
    metrics = (metrics,) if isinstance(metrics, (str, Metric)) or can_measure(metrics) else metrics
    if isinstance(metrics, Mapping):
        problem = f"phase {phase.label!r}: metrics must be a list, got a dict, whose keys would be the metrics"
        label = next(iter(metrics), "LABEL")
        raise PhaseError(problem, hint=f"write metrics=[Metric('accuracy', label={label!r})]")
    if not isinstance(metrics, Iterable):
        problem = f"phase {phase.label!r}: metrics must be a list, got {shown(metrics)}"
        raise PhaseError(problem, hint="write metrics=['mse']")
    return tuple(metric if isinstance(metric, Metric) else Metric(metric) for metric in metrics)


@constructor_hints
class EvalPhase(Phase):
    """Evaluate a graph: compute losses, metrics and predictions. The graph does not change.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
        >>> results = graph.run(aa.EvalPhase("eval", data=data, metrics=["mae"]), progress="none")
        >>> results.prediction("net").shape, list(results.metrics)
        ((64, 1), ['mae'])

    Args:
        label: Name of the phase in results.
        data: Name of a split that every feature set has, a FeatureSet or view, or a mapping from the label of each
            feature set to one of these. Also a source, or anything that IterableSource or MapSource takes (a
            DataLoader, a dataset, a generator function), which is read into memory.
        losses: AppliedLoss objects, or one of them. A validation uses the losses of the training by default.
        batch_size: Samples per forward pass; 1024 by default.
        metrics: Names, functions, Metric objects, or metrics of torchmetrics and Keras; a list or one of them.
        outputs: Labels of the nodes whose predictions are kept. By default, the output nodes of the graph.
        sampler: Draws the rows to evaluate once, unshuffled, such as a PairSampler, or a mapping with one for each
            feature set; results then belong to its pairs. By default, every row is evaluated unchanged.
        replicas: Number of processes that split the batches and gather the results; None for all that a launcher
            started. All of them must run the phase. 1, the default, evaluates all batches in each process. A validation
            is split like its training.
    """

    # The texts of accelerator, strict and the other settings of every kind are added from PhaseSettings.
    kind = "eval"
    default_batch_size = 1024
    settings: ClassVar[Mapping[str, Setting]] = {
        **Phase.settings,
        "metrics": Setting(
            _metrics,
            lambda phase, metrics: [metric.get_config() for metric in metrics],
            read_list("metrics", Metric.from_config),
        ),
        "outputs": Setting(node_labels, save_labels),
        "replicas": Setting(offered("EvalPhase.replicas", None, 1)),
        "batch_size": Setting(batch_size, lambda phase, kept: kept if phase.sampled_by is None else UNSAVED),
        "sampler": Setting(
            samplers,
            lambda phase, kept: UNSAVED if phase.sampled_by is None else samplers_config(kept),
            read(samplers_from),
        ),
    }

    @takes_settings
    def __init__(  # noqa: PLR0913 - keywords, each documented
        self,
        label: str = "eval",
        *,
        data: Data,
        losses: AppliedLoss | Iterable[AppliedLoss] = (),
        metrics: Any = (),
        outputs: Sequence[str] | str | None = None,
        batch_size: int | None = None,
        sampler: Sampler | Mapping[str, Sampler] | None = None,
        replicas: int | None = 1,
        accelerator: Any = None,
        strict: bool = False,
        policy: str | None = None,
        callbacks: Iterable[Callback] = (),
        final_device: Any = None,
        compile: str = "auto",
        residency: str = "auto",
        precision: str | None = None,
        matmul_precision: Any = None,
    ) -> None:
        """Check and store the settings."""

    @property
    def batch_size(self) -> int:
        """Samples per forward pass."""
        return largest_batch(self.sampler)

    @property
    def sampled_by(self) -> Samplers | None:
        return None if isinstance(self.sampler, SimpleSampler) else self.sampler

    def kept_nodes(self, graph: ModelGraph, done: Collection[str]) -> Sequence[str]:
        return graph.output_nodes if self.outputs is None else self.outputs

    def draw(self, rows: Mapping[str, Rows], combinations: Sequence[Combination]) -> tuple[EvaluationRows, EpochPlan]:
        evaluated = EvaluationRows.drawn(self.sampler, rows)
        if combinations:
            check_alignment(self.label, evaluated.steps(self.batch_size), combinations, by_sampler=False)
        return evaluated, EvaluationEpochs(evaluated, self.batch_size)

    def compute(self, programs: PhasePrograms) -> EvaluationValues:
        values = programs.run.evaluation = programs.evaluations[0].run()
        return values

    def results_of(self, run: Run, values: EvaluationValues | None, record: Mapping[str, Any]) -> EvalResults:
        values = values or run.evaluation
        targets = compared(self, run.graph, values.outputs if values else ())
        return eval_results(figures=values, rows=run.rows, compared=targets, nodes=tuple(run.graph.nodes), **record)
