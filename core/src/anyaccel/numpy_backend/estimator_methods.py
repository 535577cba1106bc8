"""What an object in the scikit-learn style can do, found out by looking, and told where it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from anyaccel.errors import EstimatorError
from anyaccel.suggestions import did_you_mean

OUTPUT_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples")
"""What estimators of this style usually offer; any other method of features may be named, too."""

_FLOATS = ("float16", "float32", "float64")


def is_estimator(obj: Any) -> bool:
    """Whether an object that is no class has `predict`, and `fit` or `partial_fit`."""
    return fits(obj) and has(obj, "predict")


def fits(obj: Any) -> bool:
    """Whether an object that is no class has `fit` or `partial_fit`."""
    return not isinstance(obj, type) and any(has(obj, name) for name in ("fit", "partial_fit"))


def methods_of(obj: Any) -> list[str]:
    """The usual output methods that an object has."""
    return [name for name in OUTPUT_METHODS if has(obj, name)]


def no_predict(obj: Any) -> EstimatorError:
    """The error for an object that can be fitted and has no `predict`: what it has, and what to write."""
    name, there = type(obj).__name__, methods_of(obj)
    learns = [one for one in ("fit", "partial_fit") if has(obj, one)]
    example = f"give Estimator({name}(...), method={there[0]!r})" if there else ""
    return EstimatorError(
        f"{name} has {' and '.join(learns)}, and no predict",
        available=", ".join(there) or "no method that computes something of new rows",
        hint=example or "give an object with fit and predict, or fit and transform",
    )


def check(obj: Any, method: Any, output_dtype: Any) -> None:
    """Make sure that an object can be fitted and has a method, and that a dtype is a floating one.

    Raises:
        EstimatorError: it is not so.
    """
    if isinstance(obj, type):
        raise EstimatorError(
            f"Estimator was given the class {obj.__name__}, not an object", hint=f"make one: {obj.__name__}(...)"
        )
    there = methods_of(obj)
    if not isinstance(method, str) or not _is_output(method) or not has(obj, method):
        remedy = did_you_mean(method, there, "name one of these as method=")
        raise EstimatorError(
            f"{type(obj).__name__} has no method {method!r} that could compute a node's output",
            available=", ".join(there) or "no usual one",
            hint=remedy if there else "give an object with fit and predict, or fit and transform",
        )
    if not fits(obj):
        raise EstimatorError(
            f"{type(obj).__name__} has neither fit nor partial_fit",
            available=", ".join(there),
            hint="give it a fit(features, targets); one that does nothing will do, if there is nothing to learn",
        )
    if output_dtype is not None and output_dtype not in _FLOATS:
        raise EstimatorError(f"Estimator: output_dtype={output_dtype!r}", available=", ".join(_FLOATS))


def _is_output(method: str) -> bool:
    return not method.startswith("_") and method not in ("fit", "partial_fit", "fit_predict", "fit_transform")


def has(obj: Any, name: str) -> bool:
    """Whether an object has a method of this name."""
    return callable(getattr(obj, name, None))


def parameters_of(function: Callable[..., Any]) -> Sequence[str]:
    """Names of the parameters of a function; none of one that does not tell them."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # compiled ones need not have a signature
        return ()


def accepts(function: Callable[..., Any], *given: Any) -> bool:
    """Whether a function can be called with these; so it is believed of one that does not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*given)
    except TypeError:
        return False
    return True


def is_plain(obj: Any) -> bool:
    """Whether all that an object holds is in its `__dict__`."""
    slots = any(getattr(base, "__slots__", ()) for base in type(obj).__mro__)
    return hasattr(obj, "__dict__") and not slots and not isinstance(obj, (dict, list, set))
