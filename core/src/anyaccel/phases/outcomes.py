"""Outcomes: what an evaluation and a fit give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class EvaluationValues:
    """What an evaluation gave.

    Attributes:
        losses: means over all rows, by label.
        loss: their weighted sum; NaN if there are none.
        metrics: by label.
        outputs: predictions by value name, [n, ...] in host memory.
    """

    losses: dict[str, float]
    loss: float
    metrics: dict[str, float]
    outputs: dict[str, np.ndarray]

    @property
    def named(self) -> dict[str, float]:
        """All numbers by name: `loss`, `loss.LABEL`, and the metrics."""
        losses = {f"loss.{label}": value for label, value in self.losses.items()}
        return {**({"loss": self.loss, **losses} if losses else {}), **self.metrics}


@dataclass(frozen=True, slots=True)
class Fitted:
    """One node that a FitPhase fitted.

    Attributes:
        node: its label.
        estimator: class name of its estimator.
        rows: how many it was fitted to.
        seconds: how long that took.
    """

    node: str
    estimator: str
    rows: int
    seconds: float
