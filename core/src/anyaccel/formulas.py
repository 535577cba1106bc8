"""The named optimizers, schedules and losses: one entry each, used by every framework and every path of it.

To add one, add an entry to `OPTIMIZERS`, `SCHEDULES` or `LOSSES`. docs/reference/formulas.md explains them in words.

Formulas are written with `xp`, a namespace of functions with NumPy's names, and never write to an array. A framework
may have a faster function for a name in a separate table, keyed by the same names; names that it lacks are computed
from here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, NamedTuple

REQUIRED: Any = object()
"""The default of a setting that must be given."""


class Hyperparameter(NamedTuple):
    """A setting of a formula: its default, a check of values, the error text for other values, and a value for its
    hint.
    """

    default: Any
    fits: Callable[[Any], bool]
    complaint: str
    example: object


Settings = Mapping[str, Any]
"""The values of an entry's settings, by name."""


def between(least: float, below: float = math.inf, *, whole: bool = False) -> Callable[[Any], bool]:
    """Return a check whether a value is a number from `least` to, but not including, `below`."""
    return lambda n: (
        isinstance(n, Real) and not isinstance(n, bool) and least <= float(n) < below and not (whole and float(n) % 1)
    )


def several(fits: Callable[[Any], bool], count: int = 0) -> Callable[[Any], bool]:
    """Return a check whether a value is a list of `count` values that fit, or of at least two."""
    return lambda it: isinstance(it, (list, tuple)) and all(map(fits, it)) and (len(it) == count or len(it) > 1 > count)


AT_LEAST_0 = Hyperparameter(0.0, between(0), "is not a finite number of at least 0", 0.1)
STEPS = Hyperparameter(REQUIRED, between(1, whole=True), "is not a number of steps", 100)

# -- optimizers --------------------------------------------------------------------------------------------------------


class OptimizerRule(ABC):
    """The update of a parameter in a step of a named optimizer.

    Attributes:
        settings: Settings of `Optimizer(NAME, ...)`, in addition to those of every optimizer.
        elementwise: Whether each element is updated independently of the others, so that several parameters may be
            updated as one vector.
    """

    settings: ClassVar[Mapping[str, Hyperparameter]] = {}
    elementwise: ClassVar[bool] = False

    def slots(self, settings: Settings) -> tuple[str, ...]:
        """Return the names of the arrays that are kept for each parameter, in its shape; they begin as zeros."""
        return ()

    def coefficients(self, settings: Settings, xp: Any, rates: Any, steps: Any) -> dict[str, Any]:
        """Return the numbers of a step by name, or of many steps together.

        Args:
            settings: Settings of the optimizer.
            xp: Namespace of functions for `rates` and `steps`.
            rates: Learning rate of each step: a number, or a float64 array.
            steps: Number of each step, counted from 1: a number, or a float64 array.
        """
        return {"rate": rates}

    @abstractmethod
    def update(
        self, settings: Settings, xp: Any, w: Any, g: Any, slots: Mapping[str, Any], coefficients: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the parameter and its slots after a step.

        Args:
            settings: Settings of the optimizer.
            xp: Functions of the framework.
            w: The parameter.
            g: Its gradient, of the same shape.
            slots: Slots by name, as `slots` lists them.
            coefficients: Coefficients of this step; numbers, or scalar arrays.
        """


class SGD(OptimizerRule):
    """Gradient descent, with momentum if it is set."""

    settings: ClassVar = {
        "momentum": Hyperparameter(0.0, between(0, 1), "is not in [0, 1)", 0.9),
        "nesterov": Hyperparameter(False, lambda it: isinstance(it, bool), "is not True or False", True),
        "weight_decay": AT_LEAST_0,
    }
    elementwise = True

    def slots(self, settings: Settings) -> tuple[str, ...]:
        return ("velocity",) if settings["momentum"] else ()

    def update(
        self, settings: Settings, xp: Any, w: Any, g: Any, slots: Mapping[str, Any], coefficients: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        momentum = settings["momentum"]
        if settings["weight_decay"]:
            g = g + settings["weight_decay"] * w
        if not momentum:
            return w - coefficients["rate"] * g, {}
        velocity = momentum * slots["velocity"] + g
        g = g + momentum * velocity if settings["nesterov"] else velocity
        return w - coefficients["rate"] * g, {"velocity": velocity}


class Momentum(SGD):
    """Gradient descent with momentum by default."""

    settings: ClassVar = {**SGD.settings, "momentum": SGD.settings["momentum"]._replace(default=0.9)}


class Adam(OptimizerRule):
    """Adam; its weight decay is added to the gradient."""

    settings: ClassVar = {
        "betas": Hyperparameter((0.9, 0.999), several(between(0, 1), 2), "are not two numbers in [0, 1)", (0.9, 0.999)),
        "eps": AT_LEAST_0._replace(default=1e-8),
        "weight_decay": AT_LEAST_0,
    }
    elementwise = True
    decoupled: ClassVar[bool] = False

    def slots(self, settings: Settings) -> tuple[str, ...]:
        return ("m", "v")

    def coefficients(self, settings: Settings, xp: Any, rates: Any, steps: Any) -> dict[str, Any]:
        first, second = (1.0 - beta**steps for beta in settings["betas"])
        kept = 1.0 - rates * settings["weight_decay"]
        return {"rate": rates / first, "root": xp.sqrt(second), "kept": kept}

    def update(
        self, settings: Settings, xp: Any, w: Any, g: Any, slots: Mapping[str, Any], coefficients: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        if self.decoupled:
            w = w * coefficients["kept"]
        elif settings["weight_decay"]:
            g = g + settings["weight_decay"] * w
        b1, b2 = settings["betas"]
        m = b1 * slots["m"] + (1.0 - b1) * g
        v = b2 * slots["v"] + (1.0 - b2) * g * g
        root = xp.sqrt(v) / coefficients["root"]
        return w - coefficients["rate"] * m / (root + settings["eps"]), {"m": m, "v": v}


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    settings: ClassVar = {**Adam.settings, "weight_decay": AT_LEAST_0._replace(default=0.01)}
    decoupled = True


OPTIMIZERS: dict[str, OptimizerRule] = {"sgd": SGD(), "momentum": Momentum(), "adam": Adam(), "adamw": AdamW()}

# -- schedules ---------------------------------------------------------------------------------------------------------


class ScheduleRule(NamedTuple):
    """A named schedule: a function of t and the settings, which returns the factor t steps after the warm-up."""

    factor: Callable[..., float]
    settings: Mapping[str, Hyperparameter] = {}


_FALL = {"steps": STEPS, "final": AT_LEAST_0}
_RATE = AT_LEAST_0._replace(default=REQUIRED)
SCHEDULES: dict[str, ScheduleRule] = {
    "constant": ScheduleRule(lambda t: 1.0),
    "linear": ScheduleRule(lambda t, steps, final: 1.0 + (final - 1.0) * min(t / steps, 1.0), _FALL),
    "cosine": ScheduleRule(
        lambda t, steps, final: final + (1 - final) * 0.5 * (1.0 + math.cos(math.pi * min(t / steps, 1.0))), _FALL
    ),
    "exponential": ScheduleRule(
        lambda t, rate, every: rate ** (t / every), {"rate": _RATE, "every": STEPS._replace(default=1)}
    ),
    "step": ScheduleRule(lambda t, rate, every: rate ** (t // every), {"rate": _RATE, "every": STEPS}),
}

# -- losses ------------------------------------------------------------------------------------------------------------


class LossParts(NamedTuple):
    """The loss of each element or position, and their gradients, in the shape of outputs and targets.

    `class_axis` is the axis that has length 1 in `losses` if a loss takes classes.
    """

    losses: Any
    gradients: Callable[[], Sequence[Any]]
    class_axis: int | None = None


class LossRule(NamedTuple):
    """A named loss.

    Attributes:
        parts: Function of `ArrayOps`, outputs of at least float32, targets, and the settings that differ from their
            defaults. A framework with automatic differentiation does not call the gradients.
        settings: Settings of `Loss(NAME, ...)`.
        takes_classes: Whether it compares the logits along one axis with a class: its index, or a probability for each
            class. Other losses compare element by element.
        takes_logits: Whether its outputs are logits, so that a model must not end in probabilities.
        symmetric: Whether outputs and targets may be swapped.
    """

    parts: Callable[[Any, Any, Any, Settings], LossParts]
    settings: Mapping[str, Hyperparameter] = {}
    takes_classes: bool = False
    takes_logits: bool = False
    symmetric: bool = False


def cast(ops: Any, array: Any, dtype: Any) -> Any:
    """Return the array in a dtype; the same object if it has it already."""
    return array if array.dtype == dtype else ops.astype(array, dtype)


def _squared_error(ops: Any, outputs: Any, targets: Any, settings: Settings) -> LossParts:
    difference = outputs - cast(ops, targets, outputs.dtype)
    return LossParts(difference * difference, lambda: (2 * difference, -2 * difference))


def _absolute_error(ops: Any, outputs: Any, targets: Any, settings: Settings) -> LossParts:
    difference = outputs - cast(ops, targets, outputs.dtype)

    def gradients() -> Sequence[Any]:
        sign = ops.xp.sign(difference)
        return sign, -sign

    return LossParts(ops.xp.abs(difference), gradients)


def _binary_cross_entropy(ops: Any, logits: Any, targets: Any, settings: Settings) -> LossParts:
    xp, probabilities = ops.xp, cast(ops, targets, logits.dtype)
    losses = xp.maximum(logits, 0.0) - logits * probabilities + xp.log1p(xp.exp(-xp.abs(logits)))

    def gradients() -> Sequence[Any]:
        return 0.5 * (1.0 + xp.tanh(0.5 * logits)) - probabilities, -logits

    return LossParts(losses, gradients)


def _cross_entropy(ops: Any, logits: Any, targets: Any, settings: Settings) -> LossParts:
    xp, by_index = ops.xp, targets.ndim < logits.ndim
    axis, smoothing = settings.get("class_axis", -1), settings.get("label_smoothing", 0.0)

    def along_classes(values: Any) -> Any:
        return values[(slice(None), *[None] * (logits.ndim - axis % logits.ndim - 1))]

    if by_index:
        if "ignore_index" in settings:  # it may be out of range
            targets = cast(ops, xp.where(targets == settings["ignore_index"], 0, targets), targets.dtype)
        selected = targets[with_axis(axis)] == along_classes(ops.arange(logits.shape[axis], targets))
        in_range = xp.any(selected, axis=axis, keepdims=True)  # else NaN, so that the loss is NaN
        probabilities = cast(ops, xp.where(in_range, ops.astype(selected, logits.dtype), math.nan), logits.dtype)
    else:
        probabilities = cast(ops, targets, logits.dtype)
    if smoothing:
        probabilities = probabilities * (1 - smoothing) + smoothing / logits.shape[axis]
    if "class_weights" in settings:
        probabilities = probabilities * along_classes(ops.constant(settings["class_weights"], logits))
    shifted = logits - xp.max(logits, axis=axis, keepdims=True)
    logs = shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))
    # A class of probability 0 adds nothing, even where its logit is -inf.
    terms = probabilities * cast(ops, xp.where(probabilities == 0, 0.0, logs), logits.dtype)

    def gradients() -> Sequence[Any]:
        total = xp.sum(probabilities, axis=axis, keepdims=True)
        return xp.exp(logs) * total - probabilities, None if by_index else -logs * (1 - smoothing)

    return LossParts(-xp.sum(terms, axis=axis, keepdims=True), gradients, axis)


def with_axis(axis: int) -> tuple[Any, ...]:
    """Return the index that adds an axis of size 1 at `axis`."""
    return (*[slice(None)] * axis, None) if axis >= 0 else (..., None, *[slice(None)] * (-1 - axis))


_INTEGER = Hyperparameter(None, lambda it: type(it) is int, "is not an integer", -1)
LOSSES: dict[str, LossRule] = {
    "mse": LossRule(_squared_error, symmetric=True),
    "mae": LossRule(_absolute_error, symmetric=True),
    "cross_entropy": LossRule(
        _cross_entropy,
        {
            "ignore_index": _INTEGER,
            "class_weights": Hyperparameter(
                None, several(between(0)), "are not a number of at least 0 for each class", [1.0, 2.5]
            ),
            "class_axis": _INTEGER._replace(default=-1),
            "label_smoothing": Hyperparameter(0.0, between(0, 1), "is not in [0, 1)", 0.1),
        },
        takes_classes=True,
        takes_logits=True,
    ),
    "binary_cross_entropy": LossRule(_binary_cross_entropy, takes_logits=True),
}
