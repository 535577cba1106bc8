"""Estimator: an object in scikit-learn's style as a module, fitted to data and never trained by gradients."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter import VjpResult
from anyaccel.adapter.array_module import Array, Module, Values
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data import Reference
from anyaccel.device import Device
from anyaccel.errors import ENVIRONMENT_ERRORS, EstimatorError, GraphError, PhaseError
from anyaccel.graph.nodes import ModelKind
from anyaccel.segment import TensorSpec
from anyaccel.suggestions import did_you_mean


@constructor_hints
class Estimator(Module, ModelKind):
    """An estimator as the model of a node: NumPy arrays in, NumPy arrays out. The user's object is fitted in place.

    You can pass an object with `fit` and `predict` to a node directly. Wrap it to choose another output method:

        ModelNode("pca", Estimator(PCA(8), method="transform"), data.reference()) ModelNode("head",
        Estimator(LogisticRegression(), method="predict_proba"), "pca")

    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> from anyaccel_sklearn import Estimator
    >>> line = Estimator(LinearRegression())
    >>> line.fit([np.array([[0.0], [1.0]])], np.array([1.0, 3.0]))
    >>> line.compute([np.array([[2.0]])]).round(6)
    array([5.])

    Args:
        estimator: Object with the output method and `fit(features, targets)` (or `partial_fit`, or both). Features are
            [n, k]: all inputs flattened per sample and concatenated. Targets are [n] or [n, k], and omitted if the data
            have no targets or `fit` takes none.
        method: `predict`, `predict_proba`, `decision_function`, `transform`, or any other method that takes features
            and returns numbers [n] or [n, ...]; sparse matrices become dense arrays.
        output_dtype: Floating dtype to cast floating outputs to; by default they are returned unchanged.

    Raises:
        EstimatorError: The object is a class, has no such method, or cannot be fitted.
    """

    differentiable = False
    computes_on_host = True
    fixed = "an estimator"
    joins_integers = True
    tries_other_inputs = False
    passes_nan_on = False

    def __init__(self, estimator: Any, method: str = "predict", *, output_dtype: str | None = None) -> None:
        super().__init__()
        if isinstance(estimator, Estimator):
            raise EstimatorError(f"{estimator!r} is already an Estimator", hint="pass the wrapped object")
        inner = next((value for value in parts_of(estimator) if isinstance(value, Estimator)), None)
        if inner is not None:
            problem = f"{type(estimator).__name__} contains {inner!r}, which scikit-learn cannot copy and fit"
            raise EstimatorError(problem, hint=f"pass the estimator directly: {inner.name}(...) without Estimator(...)")
        check(estimator, method, output_dtype)
        self.estimator = estimator
        self.method = method
        self.output_dtype = output_dtype
        self.awaits_fit = False
        """Set by a running phase that has not refitted it yet: its current outputs are ignored."""
        self.partially_fitted = False
        """Whether `partial_fit` was called since the last `fit`."""
        self._fitted = False
        self._failed = False
        self._example: np.ndarray | None = None

    def __repr__(self) -> str:
        method = "" if self.method == "predict" else f", method={self.method!r}"
        return f"Estimator({self.name}{method})"

    @property
    def name(self) -> str:
        """The name of the estimator's class."""
        return type(self.estimator).__name__

    @property
    def input_hint(self) -> str:  # type: ignore[override]
        """Hint for inputs: without fitted rows, zeros were tried."""
        if self._example is not None or not self.has_fit:
            return Module.input_hint
        return "it was tried with zeros: pass it unfitted (sklearn.base.clone), so that a FitPhase uses its rows"

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether it is fitted, here or before, by `__sklearn_is_fitted__` or attributes that end in an underscore."""
        if self.awaits_fit or self._failed:
            return False
        if self._fitted:
            return True
        says: Any = getattr(self.estimator, "__sklearn_is_fitted__", None)
        if says is not None:
            try:
                return bool(says())
            except (AttributeError, ValueError):  # a FeatureUnion asks its parts, which raise NotFittedError
                return False
        attributes = getattr(self.estimator, "__dict__", ())
        return any(name.endswith("_") and not name.startswith("_") for name in attributes)

    @property
    def has_outputs(self) -> bool:
        return self.is_fitted

    @property
    def has_fit(self) -> bool:
        """Whether it has `fit`."""
        return has(self.estimator, "fit")

    @property
    def has_partial_fit(self) -> bool:
        """Whether it has `partial_fit`."""
        return has(self.estimator, "partial_fit")

    @property
    def takes_classes(self) -> bool:
        """Whether its `partial_fit` takes the classes."""
        return self.has_partial_fit and "classes" in parameters_of(self.estimator.partial_fit)

    @property
    def learns_from_steps(self) -> bool:
        return self.has_partial_fit

    # -- as the model of a node ------------------------------------------------------------------------------------

    def shown_name(self, model: Any) -> str:
        return self.name

    def held_by(self, model: Any) -> Any:
        return self.estimator

    def check_inputs(self, node: Any) -> None:
        """Refuse inputs of varying width, as in padded batches: an estimator is fitted to a fixed width."""
        references = [upstream for upstream in node.upstreams if isinstance(upstream, Reference)]
        for feature_set, name in ((one.feature_set, name) for one in references for name in one.features):
            if feature_set.is_ragged(name):
                longest = feature_set.spec(name).shape[0]
                raise GraphError(
                    f"node {node.label!r}: an estimator needs rows of one length, but the rows of "
                    f"{name!r} of {feature_set.label!r} differ in length",
                    hint=f"pad all to one length: pad={{{name!r}: Pad(0, length={longest})}}",
                )

    def dtype_hint(self, label: str, dtype: str) -> str:
        return f"set the output dtype of {label!r} to that of this node: Estimator(..., output_dtype={dtype!r})"

    # -- fitting ---------------------------------------------------------------------------------------------------

    def fit(self, inputs: Sequence[np.ndarray], targets: np.ndarray | None) -> None:
        """Fit the estimator to whole columns in host memory; targets [n, 1] become [n].

        Raises:
            EstimatorError: The estimator requires targets, but there are none.
        """
        self._learn("fit", inputs, targets)
        self.partially_fitted = False

    def partial_fit(self, inputs: Sequence[np.ndarray], targets: np.ndarray | None, classes: Any = None) -> None:
        """Update the estimator with a batch in host memory; raises the errors of `fit`.

        Args:
            inputs: Inputs, [batch, ...] each.
            targets: Targets, [batch] or [batch, k], or None.
            classes: All classes, for an estimator that takes them (`takes_classes`); None leaves them out.
        """
        more = {} if classes is None else {"classes": classes}
        self._learn("partial_fit", inputs, targets, **more)
        self.partially_fitted = True

    def _learn(self, method: str, inputs: Sequence[np.ndarray], targets: np.ndarray | None, **more: Any) -> None:
        function, features = getattr(self.estimator, method), _features(inputs)
        arguments = () if targets is None else (flat(targets),)
        if arguments and not accepts(function, features, *arguments):
            arguments = ()
        if not arguments and not accepts(function, features):
            raise EstimatorError(
                f"{self.name}.{method} takes targets, but its data have none",
                hint="name target in the feature set, or columns in reference(target=[...])",
            )
        example = features[:2].copy()
        function(features, *arguments, **more)
        self._example = example
        self.mark_fitted(self)

    def mark_fitted(self, fitted: Estimator) -> None:
        """Record that the estimator is fitted, possibly through another node (`fitted`) that has the same object."""
        self._fitted, self._failed, self.awaits_fit = True, False, False
        self._example = fitted._example
        self.home = self.home or Device("cpu")

    def mark_failed(self) -> None:
        """Record that fitting failed: the estimator is not fitted, regardless of its attributes."""
        self._fitted, self._failed = False, True

    def snapshot(self) -> Any:
        """Return a deep copy of the estimator.

        Raises:
            EstimatorError: It cannot be copied.
        """
        try:
            return copy.deepcopy(self.estimator), self._fitted, self._failed, self.partially_fitted
        except ENVIRONMENT_ERRORS:
            raise
        except Exception as error:  # any error of the user's object
            raise EstimatorError(
                f"{self.name} cannot be copied for a snapshot: {type(error).__name__}: {error}",
                hint="freeze its node, or do not use snapshots (EarlyStopping(restore_best=True) does)",
            ) from error

    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot; the user's object is replaced if some of its state is not in `__dict__`."""
        kept, self._fitted, self._failed, self.partially_fitted = snapshot
        fresh = copy.deepcopy(kept)
        if is_plain(self.estimator):
            vars(self.estimator).clear()
            vars(self.estimator).update(vars(fresh))
        else:
            self.estimator = fresh

    # -- computing -------------------------------------------------------------------------------------------------

    def example(self, inputs: Sequence[TensorSpec]) -> tuple[Array, ...]:
        """Return two fitted rows as one input: an encoder refuses zeros unless they are one of its categories."""
        width = sum(math.prod(spec.shape) for spec in inputs)
        if self._example is None or self._example.shape[1] != width:
            return super().example(inputs)
        return (np.resize(self._example, (2, width)),)

    def compute(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Return the output of the estimator's method for columns in host memory: numbers [n] or [n, ...], a copy.

        Raises:
            EstimatorError: It returned something else: text, or a list for several targets.
        """
        features = _features(inputs)
        returned = getattr(self.estimator, self.method)(features)
        if isinstance(returned, (list, tuple)) and any(getattr(part, "ndim", 0) > 1 for part in returned):
            raise EstimatorError(
                f"{self._call} returned a list of {len(returned)} arrays, one per target, but a node has one output",
                hint="fit an estimator for each target, or wrap it in an object whose method concatenates the arrays",
            )
        array = _copied_array(returned.toarray() if hasattr(returned, "toarray") else returned)
        if array is None or array.dtype.kind not in "biuf":
            raise self._no_numbers_error(returned, array)
        outputs = self._cast(array) if self.output_dtype and array.dtype.kind == "f" else array
        if outputs.shape[:1] != (len(features),):
            raise EstimatorError(f"{self._call} returned shape {list(outputs.shape)} for {len(features)} samples")
        return outputs

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """Return the output, which does not exist before the estimator is fitted.

        The pullback raises PhaseError.
        """

        def pullback(cotangents: Any) -> Any:
            raise PhaseError(
                f"{self.name} has no gradient, but a loss depends on trained nodes through it",
                hint="freeze the nodes before it, or put the loss on another node",
            )

        if not self.is_fitted:
            return VjpResult((), pullback)
        return VjpResult((self.compute(inputs),), pullback)

    @property
    def _call(self) -> str:
        return f"{self.name}.{self.method}"

    def _cast(self, array: np.ndarray) -> np.ndarray:
        try:
            with np.errstate(over="raise"):
                return array.astype(self.output_dtype, copy=False)
        except FloatingPointError:
            raise EstimatorError(
                f"{self._call} returned numbers that are too large for output_dtype={self.output_dtype!r}",
                cause=f"the largest is {np.abs(array[np.isfinite(array)]).max()}",
                hint="leave output_dtype out, or scale the targets of the estimator",
            ) from None

    def _no_numbers_error(self, outputs: Any, array: np.ndarray | None) -> EstimatorError:
        if array is None or not array.shape:
            return EstimatorError(f"{self._call} returned a {type(outputs).__name__}, not an array of numbers")
        first = array.reshape(-1)[:1].tolist()
        example = f", such as {first[0]!r}" if first else ""
        is_text = array.dtype.kind in "USO"
        others = [name for name in ("predict_proba", "decision_function") if has(self.estimator, name)]
        instead = f", or use Estimator(..., method={others[0]!r})" if others and self.method == "predict" else ""
        return EstimatorError(
            f"{self._call} returned {'text' if is_text else array.dtype}{example}, but a graph needs numbers",
            hint=f"fit it to class indices 0, 1, 2, ... and store the names separately{instead}" if is_text else "",
        )


def flat(targets: np.ndarray) -> np.ndarray:
    """Return targets in the form for estimators: [n] if there is one number per sample."""
    return targets.reshape(len(targets)) if targets.size == len(targets) else targets


def _copied_array(outputs: Any) -> np.ndarray | None:
    """Return a copy, as the next call may overwrite the memory; None if the value is not an array."""
    try:
        return np.array(outputs)
    except (TypeError, ValueError):
        return None


def _features(inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return inputs [n, k] side by side, in memory that an estimator can safely overwrite (`copy=False`)."""
    arrays = [np.asarray(x).reshape(len(x), -1) for x in inputs]
    if len(arrays) == 1:
        return arrays[0].copy() if arrays[0].flags.writeable else arrays[0]
    return np.concatenate(arrays, axis=1)


# -- methods of objects in scikit-learn's style, and errors for missing methods ----------------------------------------


OUTPUT_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples")
"""Usual output methods of estimators; you can also name any other method that takes features."""

_FLOATS = ("float16", "float32", "float64")


def is_estimator(obj: Any) -> bool:
    """Return whether an object (not a class) has `predict`, and `fit` or `partial_fit`."""
    return is_fittable(obj) and has(obj, "predict")


def is_fittable(obj: Any) -> bool:
    """Return whether an object (not a class) has `fit` or `partial_fit`."""
    return not isinstance(obj, type) and any(has(obj, name) for name in ("fit", "partial_fit"))


def methods_of(obj: Any) -> list[str]:
    """Return the methods of an object that are in `OUTPUT_METHODS`."""
    return [name for name in OUTPUT_METHODS if has(obj, name)]


def model_of(obj: Any) -> Estimator | None:
    """Return the node model for an object in scikit-learn's style; None for another object.

    Raises:
        EstimatorError: The object can be fitted, but has no `predict`.
    """
    if not is_fittable(obj):
        return None
    if not has(obj, "predict"):
        raise no_predict_error(obj)
    return Estimator(obj)


def no_predict_error(obj: Any) -> EstimatorError:
    """Return the error for an object that can be fitted, but has no `predict`."""
    name, methods = type(obj).__name__, methods_of(obj)
    fitting = [method for method in ("fit", "partial_fit") if has(obj, method)]
    example = f"pass Estimator({name}(...), method={methods[0]!r})" if methods else ""
    return EstimatorError(
        f"{name} has {' and '.join(fitting)}, but no predict",
        available=", ".join(methods),
        hint=example or _no_output_hint(obj),
    )


def _no_output_hint(obj: Any) -> str:
    """Return a hint for an object that has no method for new rows."""
    advice = "pass an object with fit and predict, or fit and transform"
    only = next((name for name in ("fit_predict", "fit_transform") if has(obj, name)), "")
    return f"{only} supports only the rows that it was fitted to: {advice}" if only else advice


def check(obj: Any, method: Any, output_dtype: Any) -> None:
    """Check the arguments of `Estimator`.

    Raises:
        EstimatorError: The object cannot be fitted or lacks the method, or the dtype is not floating.
    """
    if isinstance(obj, type):
        raise EstimatorError(
            f"Estimator takes an object, got the class {obj.__name__}", hint=f"create one: {obj.__name__}(...)"
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
            hint="add a method fit(features, targets), which may do nothing",
        )
    if output_dtype is not None and (not isinstance(output_dtype, str) or output_dtype not in _FLOATS):
        raise EstimatorError(
            f"Estimator: output_dtype={shown(output_dtype)} is not a floating dtype",
            available=", ".join(_FLOATS),
            hint="write output_dtype='float32'",
        )


def _is_output(method: str) -> bool:
    return not method.startswith("_") and method not in ("fit", "partial_fit", "fit_predict", "fit_transform")


def has(obj: Any, name: str) -> bool:
    """Return whether an object has a method with this name, or will have it when it is fitted.

    Stacking estimators look it up on their final estimator, which is None until they create it in fitting.
    """
    try:
        return callable(getattr(obj, name))
    except AttributeError as error:
        return "'NoneType' object has no" in str(error.__cause__) and callable(getattr(type(obj), name, None))


def parts_of(obj: Any) -> Sequence[Any]:
    """Return the parameters of a scikit-learn estimator and of its inner estimators; () for other objects."""
    try:
        return list(obj.get_params(deep=True).values())
    except Exception:  # of any class: this only looks for mistakes
        return ()


def parameters_of(function: Callable[..., Any]) -> Sequence[str]:
    """Return the names of a function's parameters; an empty sequence if it has no signature."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # compiled functions need not have a signature
        return ()


def accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a function can be called with these arguments; true if it has no signature."""
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
    """Return whether all state of an object is in its `__dict__`."""
    slots = any(getattr(base, "__slots__", ()) for base in type(obj).__mro__)
    return hasattr(obj, "__dict__") and not slots and not isinstance(obj, (dict, list, set))
