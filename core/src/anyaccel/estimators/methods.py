"""Which methods an object in the scikit-learn style has, and errors for what it lacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import EstimatorError
from anyaccel.suggestions import did_you_mean

OUTPUT_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples")
"""The usual output methods of estimators; any other method that takes features may be named, too."""

_FLOATS = ("float16", "float32", "float64")


def is_estimator(obj: Any) -> bool:
    """Whether an object (not a class) has `predict`, and `fit` or `partial_fit`."""
    return is_fittable(obj) and has(obj, "predict")


def is_fittable(obj: Any) -> bool:
    """Whether an object (not a class) has `fit` or `partial_fit`."""
    return not isinstance(obj, type) and any(has(obj, name) for name in ("fit", "partial_fit"))


def methods_of(obj: Any) -> list[str]:
    """Those of `OUTPUT_METHODS` that an object has."""
    return [name for name in OUTPUT_METHODS if has(obj, name)]


def no_predict_error(obj: Any) -> EstimatorError:
    """The error for an object that can be fitted and has no `predict`."""
    name, methods = type(obj).__name__, methods_of(obj)
    fitting = [method for method in ("fit", "partial_fit") if has(obj, method)]
    example = f"give Estimator({name}(...), method={methods[0]!r})" if methods else ""
    return EstimatorError(
        f"{name} has {' and '.join(fitting)}, and no predict",
        available=", ".join(methods),
        hint=example or _no_output_hint(obj),
    )


def _no_output_hint(obj: Any) -> str:
    """What to do with an object that has no method for new rows."""
    instead = "give an object with fit and predict, or fit and transform"
    only = next((name for name in ("fit_predict", "fit_transform") if has(obj, name)), "")
    return f"{only} knows the rows that it is fitted to and no others: {instead}" if only else instead


def check(obj: Any, method: Any, output_dtype: Any) -> None:
    """Check the arguments of `Estimator`.

    Raises:
        EstimatorError: the object cannot be fitted or lacks the method, or the dtype is not a floating one.
    """
    if isinstance(obj, type):
        raise EstimatorError(
            f"Estimator takes an object, got the class {obj.__name__}", hint=f"make one: {obj.__name__}(...)"
        )
    methods = methods_of(obj)
    if not isinstance(method, str) or not _is_output(method) or not has(obj, method):
        suggestion = did_you_mean(method, methods, "name one of these as method=")
        raise EstimatorError(
            f"{type(obj).__name__} has no method {method!r} that could compute a node's output",
            available=", ".join(methods),
            hint=suggestion if methods else _no_output_hint(obj),
        )
    if not is_fittable(obj):
        raise EstimatorError(
            f"{type(obj).__name__} has neither fit nor partial_fit",
            available=", ".join(methods),
            hint="give it a fit(features, targets), which may do nothing",
        )
    if output_dtype is not None and output_dtype not in _FLOATS:
        raise EstimatorError(
            f"Estimator: output_dtype={shown(output_dtype)} is not a floating dtype",
            available=", ".join(_FLOATS),
            hint="write output_dtype='float32'",
        )


def _is_output(method: str) -> bool:
    return not method.startswith("_") and method not in ("fit", "partial_fit", "fit_predict", "fit_transform")


def has(obj: Any, name: str) -> bool:
    """Whether an object has a method of this name, or will have it when it is fitted.

    Stacking estimators ask for it the estimator that they end with, which is None until they make one in fitting.
    """
    try:
        return callable(getattr(obj, name))
    except AttributeError as error:
        return "'NoneType' object has no" in str(error.__cause__) and callable(getattr(type(obj), name, None))


def parts_of(obj: Any) -> Sequence[Any]:
    """The parameters of an estimator in scikit-learn's style, and those of the estimators in it; none of another."""
    try:
        return list(obj.get_params(deep=True).values())
    except Exception:  # of any class: this only looks for mistakes
        return ()


def parameters_of(function: Callable[..., Any]) -> Sequence[str]:
    """Names of the parameters of a function; none if it has no signature."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # compiled functions need not have a signature
        return ()


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments; True if it has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def is_plain(obj: Any) -> bool:
    """Whether all state of an object is in its `__dict__`."""
    slots = any(getattr(base, "__slots__", ()) for base in type(obj).__mro__)
    return hasattr(obj, "__dict__") and not slots and not isinstance(obj, (dict, list, set))
