"""Estimators in the scikit-learn style (`fit`, `predict`) as modules: fitted once, never trained by gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.adapter import Applied
from anyaccel.errors import PhaseError
from anyaccel.reference.arrays import Array, SimArray, download, upload
from anyaccel.reference.module import Module, Values


def is_estimator(obj: Any) -> bool:
    """Whether an object has `fit` and `predict`, and is no class."""
    return not isinstance(obj, type) and all(callable(getattr(obj, name, None)) for name in ("fit", "predict"))


class Estimator(Module):
    """A node's model around the user's estimator, which it fits in place.

    Args:
        estimator: an object with `fit(features, targets)` and `predict(features)`; features are [n, numbers], every
            input flattened per sample and joined, targets [n] or [n, numbers].
    """

    differentiable = False

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator
        self._fitted = False

    @property
    def is_fitted(self) -> bool:
        """Fitted by a FitPhase, or before: estimators say so, or have attributes that end in an underscore."""
        says: Any = getattr(self.estimator, "__sklearn_is_fitted__", None)
        if self._fitted or says is not None:
            return self._fitted or bool(says is not None and says())
        own = getattr(self.estimator, "__dict__", ())
        return any(name.endswith("_") and not name.startswith("_") for name in own)

    def fit(self, inputs: Sequence[np.ndarray], targets: np.ndarray | None) -> None:
        """Fit the estimator to whole columns in host memory; single axes of targets are dropped."""
        if targets is None:
            self.estimator.fit(_table(inputs))
        else:
            self.estimator.fit(
                _table(inputs), targets.reshape(len(targets)) if targets.size == len(targets) else targets
            )
        self._fitted = True

    def apply(self, values: Values, inputs: tuple[Array, ...], *, train: bool, key: int) -> Applied:
        """What the estimator predicts, on the host whatever the device; nothing before it is fitted.

        A pullback through it is an error.
        """

        def pullback(cotangents: Any) -> Any:
            raise PhaseError(
                f"{type(self.estimator).__name__} stands between trained nodes and cannot pull back",
                remedy="let no loss depend on trained nodes through it",
            )

        if not self.is_fitted:
            return Applied((), pullback)
        on = next((one.on for one in inputs if isinstance(one, SimArray)), None)
        table = _table([download(one) if isinstance(one, SimArray) else one for one in inputs])
        predicted = np.array(self.estimator.predict(table))  # a copy: it may be memory that the next call overwrites
        return Applied((predicted if on is None else upload(predicted, on),), pullback)


def _table(inputs: Sequence[np.ndarray]) -> np.ndarray:
    flat = [np.asarray(one).reshape(len(one), -1) for one in inputs]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
