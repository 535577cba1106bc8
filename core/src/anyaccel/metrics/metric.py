"""Metric: a named measure, a function or a metric object, computed over all predictions in host memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import ConfigError, SpecError, UndefinedMetricWarning
from anyaccel.formulas import LOSSES
from anyaccel.metrics.class_values import UndefinedValue
from anyaccel.metrics.metric_calls import Call, call_of, can_measure, label_of, number_of
from anyaccel.metrics.named import CLASS_METRICS, METRICS, SYNONYMS
from anyaccel.metrics.positions import counted, flattened, mask_of, within, without_class_axis
from anyaccel.printable import printable
from anyaccel.specs import LOSS_ALIASES, assign_fields
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class Metric:
    """A metric, computed once over all predictions of a phase.

    Args:
        measure: a name, all of which have the numbers of scikit-learn's function or scorer of this name; or a function
            of outputs and targets (NumPy arrays, samples along the first axis; copies of its own) that returns a
            number, with the targets first if its parameters are named as in scikit-learn (`y_true, y_pred`); or a
            metric object of torchmetrics or Keras. Of a node with one output, where targets are [n], functions get [n].
        on: label of the node whose output it measures; None for every node with a loss in the phase, else the output
            nodes of the graph.
        targets: what outputs are compared with: `"targets"` as for losses, or `"FEATURE_SET.COLUMN"`.
        label: name in results; by default that of the measure.
        from_logits: what a single output is for a named metric of classes: True for the logit of class 1, False for
            its probability. None, the default, is True, and warns if all outputs are from 0 to 1. Several outputs need
            no word: rows of probabilities are seen by their sum.
        ignore_index: an integer target that does not count.
        mask: the column, `"FEATURE_SET.COLUMN"`, that says which samples or positions count: True or 1, and False or 0.
        class_axis: the axis of the classes in outputs, with the batch as 0: 1 in [batch, classes, ...].

    Named metrics of classes take positions: scores [n, ..., classes] with classes [n, ...]. What `ignore_index` and
    `mask` leave out, and what lies behind the rows of a column whose rows differ in length, is not measured: functions
    and objects get what counts, [m] or [m, classes], one position after the other.

    Names: accuracy, balanced_accuracy, top_k_accuracy (k = 2, as in scikit-learn), top_3_accuracy, top_5_accuracy,
    precision, recall, f1, jaccard (of class 1; of several classes as f1_macro, f1_micro, f1_weighted),
    matthews_corrcoef, cohen_kappa, roc_auc (of two classes; roc_auc_ovr, roc_auc_ovo and both with _weighted of
    several), average_precision, log_loss, brier_score; mse, rmse, mae, r2, root_mean_squared_error,
    median_absolute_error, max_error, mean_absolute_percentage_error, mean_squared_log_error,
    root_mean_squared_log_error, explained_variance. Of outputs with NaN all are NaN. Where one is not defined (roc_auc
    where all targets are of one class) it is what scikit-learn gives, NaN, with an UndefinedMetricWarning.

    Raises:
        SpecError: an unknown name, or something that cannot be called.
    """

    measure: Any
    on: str | None
    targets: str
    label: str
    from_logits: bool | None
    ignore_index: int | None
    mask: str | None
    class_axis: int
    _call: Call = field(repr=False, compare=False)

    def __init__(
        self,
        measure: Any,
        on: str | None = None,
        targets: str = "targets",
        label: str | None = None,
        *,
        from_logits: bool | None = None,
        ignore_index: int | None = None,
        mask: str | None = None,
        class_axis: int = -1,
    ) -> None:
        name = SYNONYMS.get(measure, measure) if isinstance(measure, str) else None
        if name is not None and name not in METRICS:
            raise SpecError(
                f"no metric is called {shown(measure)}", available=", ".join(METRICS), hint=_hint(name.lower())
            )
        if name is None and not can_measure(measure):
            hint = f"create one: {measure.__name__}()" if isinstance(measure, type) else "give a name or a function"
            raise SpecError(f"{shown(measure)} is not a metric", available=", ".join(METRICS), hint=hint)
        for key, value in (("on", on), ("targets", targets), ("label", label), ("mask", mask)):
            if value is not None or key == "targets":
                arguments.text(SpecError, "Metric: ", key, value)
        if from_logits is not None:
            arguments.flag(SpecError, "Metric: ", "from_logits", from_logits)
        _check_positions(ignore_index, class_axis)
        assign_fields(self, measure=measure if name is None else METRICS[name], on=on, targets=targets)
        assign_fields(self, label=label or (measure if name is not None else label_of(measure)))
        assign_fields(self, from_logits=from_logits, ignore_index=ignore_index, mask=mask, class_axis=class_axis)
        assign_fields(self, _call=call_of(measure) if name is None else METRICS[name])

    @property
    def name(self) -> str | None:
        """The name in METRICS; None for a function or object of the user's."""
        return next((name for name, measure in METRICS.items() if measure is self.measure), None)

    def compute(
        self,
        outputs: np.ndarray,
        targets: np.ndarray,
        *,
        mask: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
        if_undefined: Callable[[str], object] | None = None,
    ) -> float:
        """The value for all outputs of a node, and the targets of the same samples.

        Args:
            outputs: [n, ...].
            targets: [n, ...].
            mask: the values of the column `mask`, which are over the first axes of the targets.
            lengths: of the targets of each sample, int [n], where these differ.
            if_undefined: called with a text if the metric is not defined for them; None for an UndefinedMetricWarning.

        Raises:
            SpecError: shapes or values that a named metric does not take, or what the metric gave is not one number.
        """
        name = self.name
        outputs, targets = self._counted(name, outputs, targets, mask, lengths)
        if name is None:  # it may write to its arguments
            return number_of(self._call(np.array(outputs), np.array(targets)))
        if outputs.dtype.kind in "fc" and np.isnan(outputs).any():
            return float("nan")
        if name in CLASS_METRICS and outputs.dtype.kind == "f" and outputs.size == len(outputs) > 0:
            outputs = self._single(outputs)
        value = METRICS[name](outputs, targets) if len(outputs) else UndefinedValue(float("nan"), "no sample counts")
        if isinstance(value, UndefinedValue):
            text = f"metric {self.label!r} is not defined: {value.cause}. It is {float(value):g}, as in scikit-learn"
            if if_undefined is None:
                warnings.warn(printable(text), UndefinedMetricWarning, stacklevel=user_level())
            else:
                if_undefined(text)
        return float(value)

    def _counted(
        self, name: str | None, outputs: np.ndarray, targets: np.ndarray, mask: Any, lengths: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """The outputs and targets that count."""
        if self.class_axis != -1:
            outputs = np.moveaxis(outputs, self.class_axis, -1)
        if self.ignore_index is not None or mask is not None or lengths is not None:
            targets = without_class_axis(outputs, targets)
            mask = None if mask is None else mask_of(mask, targets, str(self.mask))
            if lengths is not None:
                own = within(lengths, targets.shape[1])
                mask = own if mask is None else own & mask.reshape(len(mask), -1)
            outputs, targets = counted(outputs, targets, mask, self.ignore_index)
        return flattened(outputs, targets) if name in CLASS_METRICS else (outputs, targets)

    def _single(self, outputs: np.ndarray) -> np.ndarray:
        """One output per sample, as the named metrics take it: logits of class 1, or probabilities of both classes."""
        if self.from_logits is False:
            chances = outputs.reshape(-1, 1)
            if ((chances < 0) | (chances > 1)).any():
                raise SpecError("with from_logits=False outputs are from 0 to 1", hint="leave from_logits out")
            return np.concatenate([1 - chances, chances], axis=1)
        if self.from_logits is None and ((outputs >= 0) & (outputs <= 1)).all():
            warnings.warn(
                f"metric {self.label!r}: all outputs are from 0 to 1, and are taken as logits, of which every one from "
                f"0 on means class 1. If they are probabilities, write Metric({self.label!r}, from_logits=False); if "
                "not, from_logits=True",
                UserWarning,
                stacklevel=2,
            )
        return outputs

    def get_config(self) -> dict[str, Any]:
        """The metric as plain data.

        Raises:
            ConfigError: the measure is a function of your own.
        """
        name = self.name
        if name is None:
            raise ConfigError(
                f"metric {self.label!r} is a function, which cannot be saved as configuration",
                hint="use a named metric: " + ", ".join(METRICS),
            )
        more = {"from_logits": self.from_logits, "ignore_index": self.ignore_index, "mask": self.mask}
        given = {key: value for key, value in more.items() if value is not None}
        given |= {"class_axis": self.class_axis} if self.class_axis != -1 else {}
        return {"measure": name, "on": self.on, "targets": self.targets, "label": self.label, **given}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Metric:
        """A metric from its configuration.

        Raises:
            ConfigError: malformed.
        """
        known = ("measure", "on", "targets", "label", "from_logits", "ignore_index", "mask", "class_axis")
        if not isinstance(config, Mapping) or not isinstance(config.get("measure"), str) or set(config) - set(known):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a metric",
                available=f"keys: {', '.join(known)}",
                hint="write {'measure': 'accuracy'}",
            )
        return cls(**dict(config))


def _check_positions(ignore_index: Any, class_axis: Any) -> None:
    if ignore_index is not None and (type(ignore_index) is not int):
        raise SpecError(f"Metric: ignore_index={shown(ignore_index)} is not an int", hint="write ignore_index=-100")
    if type(class_axis) is not int or class_axis == 0:
        problem = f"Metric: class_axis={shown(class_axis)} is not an axis behind that of the batch, which is 0"
        raise SpecError(problem, hint="write class_axis=1")


_OTHER_NAMES = {
    "acc": "accuracy",
    "auc": "roc_auc",
    "auroc": "roc_auc",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_log_error",
    "rmsle": "root_mean_squared_log_error",
    "mcc": "matthews_corrcoef",
    "kappa": "cohen_kappa",
    "binary_accuracy": "accuracy",
    "categorical_accuracy": "accuracy",
    "sparse_categorical_accuracy": "accuracy",
    "top_k_categorical_accuracy": "top_5_accuracy",
    "sparse_top_k_categorical_accuracy": "top_5_accuracy",
    "mean_squared_logarithmic_error": "mean_squared_log_error",
}


def _hint(name: str) -> str:
    loss = LOSS_ALIASES.get(name, name)
    if loss in LOSSES and loss not in METRICS:
        return f"{loss} is a loss: write losses=[AppliedLoss({loss!r}, on='NODE')]"
    plain = name.removeprefix("neg_")
    plain = _OTHER_NAMES.get(plain, SYNONYMS.get(plain, plain))
    return did_you_mean(plain, METRICS, "use one of these, or give a function")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundMetric:
    """A metric, the node whose output it takes, and the columns that it compares it with."""

    label: str
    metric: Metric
    node: str
    feature_set: str
    columns: tuple[str, ...]
    stream: str = ""
    mask: tuple[str, ...] = ()
