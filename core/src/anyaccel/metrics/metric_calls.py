"""How a metric is called: functions by the names of their parameters, metric objects of frameworks by their methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from anyaccel.backend import Exchange
from anyaccel.device import Device
from anyaccel.errors import SpecError
from anyaccel.metrics.class_values import aligned, same_axes
from anyaccel.registry import registry

Call = Callable[[np.ndarray, np.ndarray], Any]

_TARGETS = ("y_true", "target", "label", "actual", "truth", "true", "reference")
_OUTPUTS = ("y_pred", "y_score", "y_prob", "pred", "output", "logit", "score", "prob")


_WITH_RESULT = ("reset_state", "update_state", "result")
_WITH_COMPUTE = ("reset", "update", "compute")


def can_measure(value: Any) -> bool:
    """Whether a value is a function or a metric object, and no class."""
    return not isinstance(value, type) and (callable(value) or _has(value, _WITH_RESULT) or _has(value, _WITH_COMPUTE))


def call_of(metric: Any) -> Call:
    """A function of outputs and targets that measures by a function or metric object of the user's.

    A function whose parameters are named as those of scikit-learn and Keras (`y_true`, then `y_pred`) gets the targets
    first. An object with `update_state` and `result` (Keras), or `update` and `compute` (torchmetrics), is reset and
    then given everything at once.

    Raises:
        SpecError: something that is called otherwise: a scorer of scikit-learn.
    """
    if _has(metric, _WITH_RESULT):
        return lambda outputs, targets: _result_of(metric, outputs, targets)
    if _has(metric, _WITH_COMPUTE):
        return lambda outputs, targets: _computed_by(metric, outputs, targets)
    first, second = _first_two_parameters(metric)
    if first == "estimator":
        raise SpecError(
            f"{metric!r} is a scorer, which is called with an estimator and its features",
            hint="give the function that it scores by, or a name: metrics=['f1_macro']",
        )
    if first.startswith(_TARGETS) and second.startswith(_OUTPUTS):
        return lambda outputs, targets: metric(*reversed(_of_one_shape(outputs, targets)))
    return lambda outputs, targets: metric(*_of_one_shape(outputs, targets))


def label_of(metric: Any) -> str:
    """What a metric is called in results: its own name, else that of its function or class."""
    function = getattr(metric, "func", metric)  # of a functools.partial
    names = (getattr(metric, "name", None), getattr(function, "__name__", None), type(metric).__name__)
    return next(name for name in names if isinstance(name, str) and name)


def number_of(value: Any) -> float:
    """What a metric gave, as a float.

    Raises:
        SpecError: not one number.
    """
    if isinstance(value, dict):
        hint = "give each metric on its own: metrics=list(collection.values())"
        raise SpecError(f"it gave a dict with {', '.join(map(str, value))}, not one number", hint=hint)
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    shape = list(np.shape(value)) if hasattr(value, "shape") else None
    hint = "end the function with: return float(...)" if value is None else "average: return float(np.mean(...))"
    what = f"values of shape {shape}" if shape is not None else f"a {type(value).__name__}"
    raise SpecError(f"it gave {what}, not one number", hint=hint)


def _of_one_shape(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both without axes of size 1 where they differ only in these: [n, 1] and [n] would broadcast to [n, n]."""
    if outputs.shape == targets.shape or not same_axes(targets, outputs):
        return outputs, targets
    shape = [len(outputs), *(size for size in outputs.shape[1:] if size != 1)]
    return outputs.reshape(shape), targets.reshape(shape)


def _result_of(metric: Any, outputs: np.ndarray, targets: np.ndarray) -> Any:
    metric.reset_state()
    metric.update_state(aligned(targets, outputs) if same_axes(targets, outputs) else targets, outputs)
    return metric.result()


def _computed_by(metric: Any, outputs: np.ndarray, targets: np.ndarray) -> Any:
    targets = aligned(targets, outputs) if same_axes(targets, outputs) else targets
    owners = registry().owners(metric)
    backend = registry().find(owners[0]) if len(owners) == 1 else None
    given: tuple[Any, ...] = (outputs, targets)
    if isinstance(backend, Exchange):
        given = tuple(cast(Exchange, backend).from_host(array, Device("cpu")) for array in given)
    metric.reset()
    metric.update(*given)
    return metric.compute()


def _has(metric: Any, methods: tuple[str, ...]) -> bool:
    return all(callable(getattr(metric, name, None)) for name in methods)


def _first_two_parameters(metric: Any) -> tuple[str, str]:
    try:
        names = list(inspect.signature(metric).parameters)
    except (TypeError, ValueError):  # a builtin
        return "", ""
    return tuple([*names, "", ""][:2])  # type: ignore[return-value]
