"""Records of a run: the values of an epoch, an evaluation and a fit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Epoch:
    """The record of one epoch.

    Attributes:
        number: Number of the epoch, counted from 0 over all runs of phases with this label.
        loss: Weighted sum of `losses`; NaN without losses.
        losses: Means over the epoch, by label.
        steps: Number of optimizer steps.
        seconds: Duration, without the validation.
        validation: Values of the validation after this epoch (`loss`, `loss.LABEL`, metrics); empty without one.
        step_figures: Means of the figures of a custom step, by name; empty without such a step.
    """

    number: int
    loss: float
    losses: dict[str, float]
    steps: int
    seconds: float
    validation: dict[str, float] = field(default_factory=dict)
    step_figures: dict[str, float] = field(default_factory=dict)

    @property
    def validated(self) -> bool:
        """Whether a validation followed this epoch."""
        return bool(self.validation)

    @property
    def figures(self) -> dict[str, float]:
        """All values by the names that callbacks use: `loss`, `loss.LABEL`, `val_loss`, `val_METRIC`."""
        losses = {f"loss.{label}": value for label, value in self.losses.items()}
        losses = {"loss": self.loss, **losses} if losses else self.step_figures
        return {**losses, **{f"val_{name}": value for name, value in self.validation.items()}}


@dataclass(frozen=True, slots=True)
class EvaluationValues:
    """The values of an evaluation.

    Attributes:
        losses: Means over all rows, by label.
        loss: Their weighted sum; NaN without losses.
        metrics: Metrics by label.
        outputs: Predictions by value name, [n, ...] in host memory.
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
        node: Label of the node.
        estimator: Class name of its estimator.
        rows: Number of rows that it was fitted to.
        seconds: Duration of the fit.
    """

    node: str
    estimator: str
    rows: int
    seconds: float


Compared = tuple[str, tuple[str, ...]]
"""Label of a feature set, with `@STREAM` for another stream of its sampler than the first, and names of columns."""
