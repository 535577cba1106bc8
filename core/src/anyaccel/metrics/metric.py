"""Metric: a named measure, a function or a metric object, computed over all predictions in host memory."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.backend import Exchange
from anyaccel.call_hints import constructor_hints
from anyaccel.device import Device
from anyaccel.errors import ConfigError, SpecError, UndefinedMetricWarning
from anyaccel.formulas import LOSSES
from anyaccel.metrics.class_values import UndefinedValue, aligned, same_axes
from anyaccel.metrics.named import SYNONYMS, find_metric, known_names, metric_names, name_of
from anyaccel.printable import printable
from anyaccel.registry import registry
from anyaccel.specs import LOSS_ALIASES, assign_fields, takes_targets_first
from anyaccel.suggestions import did_you_mean
from anyaccel.user_level import user_level


@constructor_hints
@dataclass(frozen=True, slots=True, init=False)
class Metric:
    """Compute a metric once over all predictions of a phase.

    Named metrics of classes accept positions: scores [n, ..., classes] with classes [n, ...]. Positions that
    `ignore_index` and `mask` leave out, and the padding of columns whose rows differ in length, are not measured:
    functions and objects receive only the remaining positions, [m] or [m, classes].

    Names: accuracy, balanced_accuracy, top_k_accuracy (k = 2, as in scikit-learn), top_3_accuracy, top_5_accuracy,
    precision, recall, f1, jaccard (of class 1; for several classes f1_macro, f1_micro, f1_weighted), matthews_corrcoef,
    cohen_kappa, roc_auc (for two classes; for several roc_auc_ovr, roc_auc_ovo and both with _weighted),
    average_precision, log_loss, brier_score; mse, rmse, mae, r2, root_mean_squared_error, median_absolute_error,
    max_error, mean_absolute_percentage_error, mean_squared_log_error, root_mean_squared_log_error, explained_variance.
    All except accuracy, f1, mse, rmse, mae and r2 need anyaccel-sklearn. If outputs contain NaN, every metric is NaN.
    If a metric is not defined (roc_auc if all targets have one class), its value is the one that scikit-learn returns,
    NaN, with an UndefinedMetricWarning.

    Args:
        measure: A name, with the same numbers as scikit-learn's function or scorer of this name; or a function of
            outputs and targets that returns a number; or a metric object of torchmetrics or Keras. A function receives
            copies as NumPy arrays with samples along the first axis, and receives the targets first if its parameters
            are named as in scikit-learn (`y_true, y_pred`). If a node has one output and the targets are [n], functions
            receive [n].
        on: Label of the node whose output it measures. None measures every node with a loss in the phase, or, without
            losses, the output nodes of the graph.
        targets: Values to compare the outputs with: `"targets"` as for losses, or `"FEATURE_SET.COLUMN"`.
        label: Name in results; by default the name of the measure.
        from_logits: Meaning of a single output for a named metric of classes: True for the logit of class 1, False for
            its probability. None, the default, means True, and warns if all outputs are from 0 to 1. For several
            outputs you do not need it: rows of probabilities are recognized by their sum.
        ignore_index: An integer target that is ignored.
        mask: Column, `"FEATURE_SET.COLUMN"`, of the samples or positions to include: True or 1, and False or 0.
        class_axis: Axis of the classes in outputs, with the batch as 0, such as 1 in [batch, classes, ...].

    Raises:
        SpecError: an unknown name, or an object that cannot be called.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> aa.Metric("mae").compute(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        1.0
        >>> phase = aa.EvalPhase("eval", data="val", metrics=["accuracy", aa.Metric("f1", on="head")])
    """

    measure: Any
    on: str | None
    targets: str
    label: str
    from_logits: bool | None
    ignore_index: int | None
    mask: str | None
    class_axis: int
    _name: str | None = field(repr=False, compare=False)
    _of_classes: bool = field(repr=False, compare=False)
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
        name = SYNONYMS.get(measure, measure) if isinstance(measure, str) else name_of(measure)
        metric = None if name is None else find_metric(name)
        if name is not None and metric is None:
            problem = f"no metric is called {shown(measure)}"
            raise SpecError(problem, available=", ".join(metric_names()), hint=_hint(name.lower()))
        if name is None and not can_measure(measure):
            hint = f"create one: {measure.__name__}()" if isinstance(measure, type) else "pass a name or a function"
            raise SpecError(f"{shown(measure)} is not a metric", available=", ".join(metric_names()), hint=hint)
        for key, value in (("on", on), ("targets", targets), ("label", label), ("mask", mask)):
            if value is not None or key == "targets":
                arguments.text(SpecError, "Metric: ", key, value)
        if from_logits is not None:
            arguments.flag(SpecError, "Metric: ", "from_logits", from_logits)
        if ignore_index is not None and (type(ignore_index) is not int):
            raise SpecError(f"Metric: ignore_index={shown(ignore_index)} is not an int", hint="write ignore_index=-100")
        if type(class_axis) is not int or class_axis == 0:
            problem = f"Metric: class_axis={shown(class_axis)} is not a valid axis: axis 0 is the batch"
            raise SpecError(problem, hint="write class_axis=1")
        assign_fields(
            self,
            measure=metric.measure if metric else measure,
            on=on,
            targets=targets,
            label=label or (measure if isinstance(measure, str) else label_of(measure)),
            from_logits=from_logits,
            ignore_index=ignore_index,
            mask=mask,
            class_axis=class_axis,
            _name=name,
            _of_classes=metric is not None and metric.of_classes,
            _call=metric.measure if metric else call_of(measure),
        )

    @property
    def name(self) -> str | None:
        """The name of a named metric; None for a custom function or object."""
        return self._name

    def compute(
        self,
        outputs: np.ndarray,
        targets: np.ndarray,
        *,
        mask: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
        if_undefined: Callable[[str], object] | None = None,
    ) -> float:
        """Compute the metric for all outputs of a node and the targets of the same samples.

        Args:
            outputs: Array [n, ...].
            targets: Array [n, ...].
            mask: Values of the column `mask`, over the first axes of the targets.
            lengths: Length of the targets of each sample, int [n], if they differ.
            if_undefined: Function that receives a text if the metric is not defined; None issues an
                UndefinedMetricWarning.

        Raises:
            SpecError: shapes or values that a named metric does not accept, or the metric did not return a single
                number.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
            >>> aa.Metric("accuracy").compute(scores, np.array([0, 1, 1])) == 2 / 3
            True
        """
        if self.class_axis != -1:
            outputs = np.moveaxis(outputs, self.class_axis, -1)
        if self.ignore_index is not None or mask is not None or lengths is not None:
            targets = without_class_axis(outputs, targets)
            mask = None if mask is None else mask_of(mask, targets, str(self.mask))
            if lengths is not None:
                within_lengths = within(lengths, targets.shape[1])
                mask = within_lengths if mask is None else within_lengths & mask.reshape(len(mask), -1)
            outputs, targets = counted(outputs, targets, mask, self.ignore_index)
        if self._of_classes:
            outputs, targets = flattened(outputs, targets)
        if self._name is None:  # it may write to its arguments
            return number_of(self._call(np.array(outputs), np.array(targets)))
        if outputs.dtype.kind in "fc" and np.isnan(outputs).any():
            return float("nan")
        if self._of_classes and outputs.dtype.kind == "f" and outputs.size == len(outputs) > 0:
            outputs = self._single(outputs)
        value = self._call(outputs, targets) if len(outputs) else UndefinedValue(float("nan"), "no sample counts")
        if isinstance(value, UndefinedValue):
            text = f"metric {self.label!r} is not defined: {value.cause}. It is {float(value):g}, as in scikit-learn"
            if if_undefined is None:
                warnings.warn(printable(text), UndefinedMetricWarning, stacklevel=user_level())
            else:
                if_undefined(text)
        return float(value)

    def _single(self, outputs: np.ndarray) -> np.ndarray:
        """Return one output per sample, as the named metrics take it: logits of class 1, or probabilities of both
        classes.
        """
        if self.from_logits is False:
            chances = outputs.reshape(-1, 1)
            if ((chances < 0) | (chances > 1)).any():
                raise SpecError("with from_logits=False, outputs must be from 0 to 1", hint="leave from_logits out")
            return np.concatenate([1 - chances, chances], axis=1)
        if self.from_logits is None and ((outputs >= 0) & (outputs <= 1)).all():
            warnings.warn(
                f"metric {self.label!r}: all outputs are from 0 to 1 and are treated as logits, so "
                f"every output means class 1. If they are probabilities, write Metric({self.label!r}, "
                "from_logits=False); if "
                "not, from_logits=True",
                UserWarning,
                stacklevel=2,
            )
        return outputs

    def get_config(self) -> dict[str, Any]:
        """Return the metric as plain data.

        Raises:
            ConfigError: the measure is a custom function.
        """
        name = self.name
        if name is None:
            raise ConfigError(
                f"metric {self.label!r} is a function, which cannot be saved in a configuration",
                hint="use a named metric: " + ", ".join(metric_names()),
            )
        more = {"from_logits": self.from_logits, "ignore_index": self.ignore_index, "mask": self.mask}
        settings = {key: value for key, value in more.items() if value is not None}
        settings |= {"class_axis": self.class_axis} if self.class_axis != -1 else {}
        return {"measure": name, "on": self.on, "targets": self.targets, "label": self.label, **settings}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Metric:
        """Rebuild a metric from its configuration.

        Raises:
            ConfigError: malformed.
        """
        setting_names = ("measure", "on", "targets", "label", "from_logits", "ignore_index", "mask", "class_axis")
        if (
            not isinstance(config, Mapping)
            or not isinstance(config.get("measure"), str)
            or set(config) - set(setting_names)
        ):
            raise ConfigError(
                f"{shown(config)} is not the configuration of a metric",
                available=f"keys: {', '.join(setting_names)}",
                hint="write {'measure': 'accuracy'}",
            )
        return cls(**dict(config))


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
    if loss in LOSSES and loss not in known_names():
        return f"{loss} is a loss: write losses=[AppliedLoss({loss!r}, on='NODE')]"
    plain = name.removeprefix("neg_")
    plain = _OTHER_NAMES.get(plain, SYNONYMS.get(plain, plain))
    return did_you_mean(plain, known_names(), "use one of these, or pass a function")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundMetric:
    """A metric with the node whose output it takes and the columns to compare it with."""

    label: str
    metric: Metric
    node: str
    feature_set: str
    columns: tuple[str, ...]
    stream: str = ""
    mask: tuple[str, ...] = ()


# -- metric calls ------------------------------------------------------------------------------------------------------


Call = Callable[[np.ndarray, np.ndarray], Any]

_WITH_RESULT = ("reset_state", "update_state", "result")
_WITH_COMPUTE = ("reset", "update", "compute")


def can_measure(value: Any) -> bool:
    """Return whether a value is a function or a metric object, and not a class."""
    return not isinstance(value, type) and (callable(value) or _has(value, _WITH_RESULT) or _has(value, _WITH_COMPUTE))


def call_of(metric: Any) -> Call:
    """Return a function of outputs and targets that calls a custom function or metric object.

    A function whose parameters are named as in scikit-learn and Keras (`y_true`, then `y_pred`) receives the targets
    first. An object with `update_state` and `result` (Keras), or `update` and `compute` (torchmetrics), is reset and
    then receives everything in a single call.

    Raises:
        SpecError: an object with another interface, such as a scorer of scikit-learn.
    """

    def result_of(outputs: np.ndarray, targets: np.ndarray) -> Any:
        metric.reset_state()
        metric.update_state(aligned(targets, outputs) if same_axes(targets, outputs) else targets, outputs)
        return metric.result()

    def computed(outputs: np.ndarray, targets: np.ndarray) -> Any:
        targets = aligned(targets, outputs) if same_axes(targets, outputs) else targets
        owners = registry().owners(metric)
        backend = registry().find(owners[0]) if len(owners) == 1 else None
        arrays: tuple[Any, ...] = (outputs, targets)
        if isinstance(backend, Exchange):
            arrays = tuple(cast(Exchange, backend).from_host(array, Device("cpu")) for array in arrays)
        metric.reset()
        metric.update(*arrays)
        return metric.compute()

    if _has(metric, _WITH_RESULT):
        return result_of
    if _has(metric, _WITH_COMPUTE):
        return computed
    try:
        first = next(iter(inspect.signature(metric).parameters), "")
    except (TypeError, ValueError):  # a builtin
        first = ""
    if first == "estimator":
        raise SpecError(
            f"{metric!r} is a scorer, which is called with an estimator and its features",
            hint="pass its score function or a name: metrics=['f1_macro']",
        )
    if takes_targets_first(metric):
        return lambda outputs, targets: metric(*reversed(_of_one_shape(outputs, targets)))
    return lambda outputs, targets: metric(*_of_one_shape(outputs, targets))


def label_of(metric: Any) -> str:
    """Return the name of a metric in results: its own name, or the name of its function or class."""
    function = getattr(metric, "func", metric)  # of a functools.partial
    names = (getattr(metric, "name", None), getattr(function, "__name__", None), type(metric).__name__)
    return next(name for name in names if isinstance(name, str) and name)


def number_of(value: Any) -> float:
    """Return the result of a metric as a float.

    Raises:
        SpecError: not a single number.
    """
    if isinstance(value, dict):
        hint = "pass each metric separately: metrics=list(collection.values())"
        raise SpecError(f"it returned a dict with {', '.join(map(str, value))}, not one number", hint=hint)
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    shape = list(np.shape(value)) if hasattr(value, "shape") else None
    hint = "average: return float(np.mean(...)), or create a metric object with average='macro'"
    if value is None:
        hint = "end the function with: return float(...)"
    what = f"values of shape {shape}" if shape is not None else f"a {type(value).__name__}"
    raise SpecError(f"it returned {what}, not one number", hint=hint)


def _of_one_shape(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both without axes of size 1 if they differ only in these: [n, 1] and [n] would broadcast to [n, n]."""
    if outputs.shape == targets.shape or not same_axes(targets, outputs):
        return outputs, targets
    shape = [len(outputs), *(size for size in outputs.shape[1:] if size != 1)]
    return outputs.reshape(shape), targets.reshape(shape)


def _has(metric: Any, methods: tuple[str, ...]) -> bool:
    return all(callable(getattr(metric, name, None)) for name in methods)


# -- positions: the samples or positions of outputs and targets that a metric counts, one after the other --------------


def within(lengths: np.ndarray, width: int) -> np.ndarray:
    """Return which of `width` positions belong to rows of these lengths, bool [n, width].

    Raises:
        SpecError: a row is longer.
    """
    longest = int(lengths.max(initial=0))
    if longest > width:
        problem = f"outputs have {width} positions, but targets have up to {longest}"
        raise SpecError(problem, hint="use a node with one output per position of its targets")
    return np.arange(width) < lengths[:, None]


def without_class_axis(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return targets [..., 1] for scores [..., classes] as [...]."""
    is_column = targets.ndim == outputs.ndim > 1 and targets.shape[-1] == 1 < outputs.shape[-1]
    return targets[..., 0] if is_column else targets


def mask_of(values: np.ndarray, targets: np.ndarray, mask: str) -> np.ndarray:
    """Return a mask column as bools over the first axes of the targets.

    Args:
        values: Values of the column: True and False, or 1 and 0, [n] or with more of the first axes.
        targets: Array [n, ...].
        mask: Name of the column, for messages.

    Raises:
        SpecError: other values, or axes that are not the first axes of the targets.
    """
    if not np.isin(values, (0, 1)).all():
        raise SpecError(f"the mask {mask} has values other than 0 and 1", hint="name a column of 0 and 1, or of bools")
    while values.ndim > 1 and values.shape[-1] == 1 and values.shape != targets.shape[: values.ndim]:
        values = values[..., 0]
    if values.shape != targets.shape[: values.ndim]:
        shapes = f"{list(values.shape)}, and the targets {list(targets.shape)}"
        raise SpecError(f"the mask {mask} is {shapes}", hint="name a mask with the first axes of the targets")
    return values.astype(bool)


def counted(
    outputs: np.ndarray, targets: np.ndarray, mask: np.ndarray | None, ignore_index: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs and targets to measure, [m, ...] each; unchanged if nothing is left out.

    Args:
        outputs: Array [n, ...].
        targets: Array [n, ...].
        mask: Bools over the first axes of both; None to include all.
        ignore_index: The integer target that is ignored.

    Raises:
        SpecError: nothing is left, or outputs and targets have no positions in common.
    """
    if ignore_index is not None:
        if targets.dtype.kind not in "iub":
            problem = f"ignore_index={ignore_index} is for class-index targets, but these are {targets.dtype}"
            raise SpecError(problem, hint="leave ignore_index out, or name a mask: Metric(..., mask='DATA.COLUMN')")
        valid = targets != ignore_index
        mask = valid if mask is None else valid & mask.reshape(*mask.shape, *[1] * (valid.ndim - mask.ndim))
    if mask is None:
        return outputs, targets
    if outputs.shape[: mask.ndim] != mask.shape:
        if not same_axes(outputs, mask):
            problem = f"outputs {list(outputs.shape)} do not have the positions of targets {list(targets.shape)}"
            raise SpecError(problem, hint="set the axis of the classes: Metric(..., class_axis=1)")
        outputs = outputs.reshape(mask.shape)
    if not mask.any():
        raise SpecError("no position counts", hint="check the mask or ignore_index, and the targets")
    return outputs[mask], targets[mask]


def flattened(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scores [n, ..., classes] and classes [n, ...] of positions as [m, classes] and [m]; others unchanged."""
    if outputs.ndim > 2 and outputs.shape[:-1] == targets.shape:
        return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    return outputs, targets
