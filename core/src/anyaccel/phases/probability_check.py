"""Probability check: warns of a cross entropy over outputs that are probabilities already, where it takes logits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.metrics.class_values import is_distribution
from anyaccel.printable import printable
from anyaccel.user_level import user_level

_ROWS = 64
"""As many are looked at."""


class ProbabilityCheck:
    """Looks at outputs that an evaluation has on the host anyway, and warns once.

    Args:
        losses: of the evaluation.
        value_names: names of each node's values.
    """

    def __init__(self, losses: Sequence[AppliedLoss], value_names: Mapping[str, Sequence[str]]) -> None:
        named = [loss for loss in losses if loss.loss.own is None and loss.loss.name == "cross_entropy"]
        self._values = [(loss, _value(loss, value_names[loss.on])) for loss in named]

    def look(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Warn if the classes of outputs, [n, ...] by the names of values, are never negative and sum to 1."""
        for loss, name in self._values:
            if name in outputs and _are_probabilities(outputs[name][:_ROWS], loss.loss.kwargs.get("class_axis", -1)):
                self._values = []
                warnings.warn(printable(_text(loss)), UserWarning, stacklevel=user_level())
                return


def _text(loss: AppliedLoss) -> str:
    return (
        f"loss {loss.label!r} on node {loss.on!r}: cross_entropy takes logits, and these outputs are probabilities "
        "already: none is negative, and the classes sum to 1. Hint: take the softmax off the end of the model, or "
        "write a loss of your own"
    )


def _value(loss: AppliedLoss, names: Sequence[str]) -> str:
    """The name of the value that a loss takes as outputs."""
    wanted = loss.inputs[0].partition(".")[2]
    return next((name for name in names if wanted and name.endswith(f".{wanted}")), names[0])


def _are_probabilities(array: np.ndarray, class_axis: int) -> bool:
    if array.dtype.kind != "f" or array.ndim < 2 or array.shape[class_axis] < 2 or not len(array):
        return False
    return is_distribution(np.moveaxis(array, class_axis, -1).reshape(-1, array.shape[class_axis]))
