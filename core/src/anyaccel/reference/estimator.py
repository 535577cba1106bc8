"""Estimators in the scikit-learn style (`fit`, `predict`) as modules: fitted once, never trained by gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyaccel.adapter import Applied
from anyaccel.errors import PhaseError
from anyaccel.reference.arrays import Array
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
        """Fitted by a FitPhase, or before: estimators then have attributes that end in an underscore."""
        return self._fitted or any(name.endswith("_") and not name.startswith("_") for name in vars(self.estimator))

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
        """What the estimator predicts; a pullback through it is an error."""
        predicted = np.asarray(self.estimator.predict(_table(inputs)))

        def pullback(cotangents: Any) -> Any:
            raise PhaseError(
                f"{type(self.estimator).__name__} stands between trained nodes and cannot pull back",
                remedy="let no loss depend on trained nodes through it",
            )

        return Applied((predicted,), pullback)


def _table(inputs: Sequence[np.ndarray]) -> np.ndarray:
    flat = [np.asarray(one).reshape(len(one), -1) for one in inputs]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
