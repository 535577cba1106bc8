"""EvalPhase: losses, metrics and predictions over data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anyaccel.arguments import shown
from anyaccel.data import Sampler, SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.phases.metrics import Metric, can_measure
from anyaccel.phases.phase import Data, Phase, node_labels
from anyaccel.phases.samplers import (
    Samplers,
    check_samplers,
    samplers_config,
    samplers_from,
    samplers_of,
)


class EvalPhase(Phase):
    """Evaluates a graph: losses, metrics and predictions. Changes nothing.

    Args:
        batch_size: samples per forward pass.
        metrics: names, functions, Metric objects or those of torchmetrics and Keras, or one of them.
        outputs: labels of nodes whose predictions are kept; by default the output nodes of the graph.
        sampler: draws the rows to evaluate once, unshuffled: a PairSampler, say, or a mapping with one for each feature
            set; results are then those of its pairs. By default every row is evaluated as it is.
        label, data, losses, accelerator, strict, policy, callbacks, final_device: see Phase.
    """

    kind = "eval"

    def __init__(
        self,
        label: str,
        *,
        data: Data,
        metrics: Any = (),
        outputs: Sequence[str] | str | None = None,
        batch_size: int = 1024,
        sampler: Sampler | Mapping[str, Sampler] | None = None,
        **settings: Any,
    ) -> None:
        metrics = (metrics,) if isinstance(metrics, (str, Metric)) or can_measure(metrics) else metrics
        if not isinstance(metrics, Iterable):
            problem = f"phase {label!r}: metrics must be a list, got {shown(metrics)}"
            raise PhaseError(problem, hint="write metrics=['mse']")
        self.metrics = tuple(metric if isinstance(metric, Metric) else Metric(metric) for metric in metrics)
        self.outputs = node_labels(outputs)
        self.sampler: Samplers = SimpleSampler(batch_size) if sampler is None else samplers_of(sampler)
        if sampler is not None and batch_size != 1024:
            raise PhaseError(
                f"phase {label!r} has both a sampler and a batch_size", hint="leave batch_size out: the sampler has one"
            )
        super().__init__(label, data=data, **settings)

    @property
    def batch_size(self) -> int:
        """Samples per forward pass."""
        if isinstance(self.sampler, Sampler):
            return self.sampler.batch_size
        return max(sampler.batch_size for sampler in self.sampler.values())

    def _check(self) -> None:
        super()._check()
        check_samplers(self.label, self.sampler)

    def get_config(self) -> dict[str, Any]:
        """The phase as plain data; see Phase."""
        outputs = None if self.outputs is None else list(self.outputs)
        metrics = [metric.get_config() for metric in self.metrics]
        is_simple = isinstance(self.sampler, SimpleSampler)
        sampling = {"batch_size": self.batch_size} if is_simple else {"sampler": samplers_config(self.sampler)}
        return {**super().get_config(), "metrics": metrics, "outputs": outputs, **sampling}

    @classmethod
    def read_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """See Phase."""
        sampler = settings.get("sampler")
        return {
            **settings,
            "metrics": [Metric.from_config(metric) for metric in settings.get("metrics", ())],
            "sampler": None if sampler is None else samplers_from(sampler),
        }
