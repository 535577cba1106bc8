"""Estimators in the scikit-learn style as modules: fitted to data, never trained by gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.adapter import VjpResult
from anyaccel.device import Device
from anyaccel.errors import EstimatorError, PhaseError
from anyaccel.numpy_backend.estimator_methods import accepts, check, has, is_plain, parameters_of
from anyaccel.numpy_backend.module import Module, Values
from anyaccel.numpy_backend.sim_array import Array, SimArray, download, upload


class Estimator(Module):
    """An estimator as a node's model: numpy in, numpy out. The user's object is fitted in place.

    Wrap an object in it to choose the method that computes the node's output; one with `fit` and `predict` needs no
    wrapping.

        ModelNode("pca", Estimator(PCA(8), method="transform"), data.reference())
        ModelNode("head", Estimator(LogisticRegression(), method="predict_proba"), "pca")

    Args:
        estimator: an object with `fit(features, targets)` (or `partial_fit`, or both) and the method; features are
            [n, numbers], every input flattened per sample and joined, targets [n] or [n, numbers]. Targets are left
            out where there are none, or where `fit` takes none.
        method: `predict`, `predict_proba`, `decision_function`, `transform`, or any other that takes features and
            gives an array of numbers [n] or [n, ...].
        output_dtype: floating dtype in which floating outputs are handed on; by default as the method gives them.

    Raises:
        EstimatorError: the object is a class, has no such method, or cannot be fitted.
    """

    differentiable = False

    def __init__(self, estimator: Any, method: str = "predict", *, output_dtype: str | None = None) -> None:
        super().__init__()
        if isinstance(estimator, Estimator):
            raise EstimatorError(f"{estimator!r} is an Estimator already", hint="give it the object it was made of")
        check(estimator, method, output_dtype)
        self.estimator = estimator
        self.method = method
        self.output_dtype = output_dtype
        self.awaits_fit = False
        """While a phase that will fit it anew has not come to it: what it gives now does not count."""
        self.in_parts = False
        """Whether it learnt by `partial_fit` since it was last fitted in whole."""
        self._fitted = False
        self._failed = False

    def __repr__(self) -> str:
        chosen = "" if self.method == "predict" else f", method={self.method!r}"
        return f"Estimator({self.name}{chosen})"

    @property
    def name(self) -> str:
        """The name of the estimator's class."""
        return type(self.estimator).__name__

    # -- what it can do, and what was done -------------------------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Fitted by a phase, or before: estimators say so, or have attributes that end in an underscore."""
        if self.awaits_fit or self._failed:
            return False
        says: Any = getattr(self.estimator, "__sklearn_is_fitted__", None)
        if self._fitted or says is not None:
            return self._fitted or bool(says is not None and says())
        own = getattr(self.estimator, "__dict__", ())
        return any(name.endswith("_") and not name.startswith("_") for name in own)

    @property
    def has_fit(self) -> bool:
        """Whether it can be fitted to whole columns."""
        return has(self.estimator, "fit")

    @property
    def has_partial_fit(self) -> bool:
        """Whether it can learn batch by batch."""
        return has(self.estimator, "partial_fit")

    @property
    def takes_classes(self) -> bool:
        """Whether its `partial_fit` wants to know all classes beforehand."""
        return self.has_partial_fit and "classes" in parameters_of(self.estimator.partial_fit)

    # -- learning --------------------------------------------------------------------------------------------------

    def fit(self, inputs: Sequence[np.ndarray], targets: np.ndarray | None) -> None:
        """Fit the estimator to whole columns in host memory; single axes of targets are dropped.

        Raises:
            EstimatorError: it wants targets, and there are none.
        """
        self._learn("fit", inputs, targets)
        self.in_parts = False

    def partial_fit(self, inputs: Sequence[np.ndarray], targets: np.ndarray | None, classes: Any = None) -> None:
        """Let the estimator learn from one batch in host memory, as `fit`.

        Args:
            inputs: [batch, ...] each.
            targets: [batch] or [batch, numbers]; None where there are none.
            classes: all classes there are, for an estimator that takes them (`takes_classes`); None leaves them out.
        """
        more = {} if classes is None else {"classes": classes}
        self._learn("partial_fit", inputs, targets, **more)
        self.in_parts = True

    def _learn(self, how: str, inputs: Sequence[np.ndarray], targets: np.ndarray | None, **more: Any) -> None:
        function, table = getattr(self.estimator, how), _table(inputs)
        given = () if targets is None else (flat(targets),)
        if given and not accepts(function, table, *given):
            given = ()
        if not given and not accepts(function, table):
            raise EstimatorError(
                f"{self.name}.{how} takes targets, and the data that feed it have none",
                hint="name target_keys in the feature set, or columns in reference(targets=[...])",
            )
        function(table, *given, **more)
        self.mark_fitted()

    def mark_fitted(self) -> None:
        """Note that the estimator is fitted, be it through another node that holds the same object."""
        self._fitted, self._failed, self.awaits_fit = True, False, False
        self.home = self.home or Device("cpu")

    def mark_failed(self) -> None:
        """Note that fitting failed half-way: whatever attributes the estimator has, it is not fitted."""
        self._fitted, self._failed = False, True

    def snapshot(self) -> Any:
        """A deep copy of the estimator as it is.

        Raises:
            EstimatorError: it cannot be copied.
        """
        try:
            return copy.deepcopy(self.estimator), self._fitted, self._failed, self.in_parts
        except Exception as error:  # whatever the user's object raises
            raise EstimatorError(
                f"{self.name} cannot be copied, so that nothing could bring it back: {type(error).__name__}: {error}",
                hint="freeze its node, or do without snapshots (EarlyStopping(restore_best=True) takes them)",
            ) from error

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot: the user's object itself where its values can be exchanged, else a copy of it."""
        kept, self._fitted, self._failed, self.in_parts = snapshot
        fresh = copy.deepcopy(kept)
        if is_plain(self.estimator):
            vars(self.estimator).clear()
            vars(self.estimator).update(vars(fresh))
        else:
            self.estimator = fresh

    # -- computing -------------------------------------------------------------------------------------------------

    def compute(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """What the estimator's method gives for columns in host memory: numbers [n] or [n, ...], a copy.

        Raises:
            EstimatorError: it gives something else: text, a list for several targets, a sparse matrix.
        """
        table = _table(inputs)
        found = self._numbers(getattr(self.estimator, self.method)(table))
        if found.shape[:1] != (len(table),):
            raise EstimatorError(f"{self._what} gave {list(found.shape)} for {len(table)} samples")
        return found

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> VjpResult:
        """What the estimator gives, computed on the host whatever the device; nothing before it is fitted.

        A pullback through it is an error.
        """

        def pullback(cotangents: Any) -> Any:
            raise PhaseError(
                f"{self.name} stands between trained nodes and cannot pull back",
                hint="let no loss depend on trained nodes through it",
            )

        if not self.is_fitted:
            return VjpResult((), pullback)
        on = next((one.on for one in inputs if isinstance(one, SimArray)), None)
        given = self.compute([download(one) if isinstance(one, SimArray) else one for one in inputs])
        return VjpResult((given if on is None else upload(given, on),), pullback)

    @property
    def _what(self) -> str:
        return f"{self.name}.{self.method}"

    def _numbers(self, given: Any) -> np.ndarray:
        if isinstance(given, (list, tuple)) and any(getattr(one, "ndim", 0) > 1 for one in given):
            raise EstimatorError(
                f"{self._what} gives a list of {len(given)} arrays, one for each target, and a node gives one",
                hint="fit an estimator for each target, or wrap it in an object whose method joins the arrays",
            )
        if hasattr(given, "toarray"):
            raise EstimatorError(
                f"{self._what} gives a sparse {type(given).__name__}, and a graph carries dense arrays",
                hint="switch it off in the estimator (sparse_output=False), or call toarray() in a method of yours",
            )
        found = _array(given)
        if found is None or found.dtype.kind not in "biuf":
            raise self._no_numbers(given, found)
        wanted = self.output_dtype
        return found.astype(wanted, copy=False) if wanted and found.dtype.kind == "f" else found

    def _no_numbers(self, given: Any, found: np.ndarray | None) -> EstimatorError:
        if found is None or not found.shape:
            return EstimatorError(f"{self._what} gives {type(given).__name__}, and a node gives an array of numbers")
        first = found.reshape(-1)[:1].tolist()
        text = found.dtype.kind in "USO"
        others = [name for name in ("predict_proba", "decision_function") if has(self.estimator, name)]
        instead = f", or take Estimator(..., method={others[0]!r})" if others and self.method == "predict" else ""
        return EstimatorError(
            f"{self._what} gives {'text' if text else str(found.dtype)}, and a graph carries numbers",
            available="such as " + repr(first[0]) if first else "",
            hint=f"fit it to class indices 0, 1, 2, ... and keep the names beside them{instead}" if text else "",
        )


def flat(targets: np.ndarray) -> np.ndarray:
    """Targets as estimators take them: [n] if there is one number for each sample."""
    return targets.reshape(len(targets)) if targets.size == len(targets) else targets


def _array(given: Any) -> np.ndarray | None:
    """A copy, for it may be memory that the next call overwrites; None of what is no array."""
    try:
        return np.array(given)
    except (TypeError, ValueError):
        return None


def _table(inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Inputs side by side, in memory that an estimator may write (`copy=False`) without changing what others read."""
    arrays = [np.asarray(one).reshape(len(one), -1) for one in inputs]
    if len(arrays) == 1:
        return arrays[0].copy() if arrays[0].flags.writeable else arrays[0]
    return np.concatenate(arrays, axis=1)
