"""Update rules: the named optimizers as functions of parameter, gradient and slots, by docs/reference/formulas.md."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer, Schedule

Slots = Mapping[str, Mapping[str, Any]]
"""Arrays by name of parameter and of slot."""


class UpdateRule(ABC):
    """How one optimizer changes the parameters of a node. Everything but `coefficients` is pure and traceable.

    Slots are arrays by name of parameter and of slot; a rule that keeps anything else for a node puts it under names of
    its own.
    """

    per_parameter: bool = False
    """Whether each parameter is updated independently of the others, so that those of one dtype may come alone."""
    needs_value: bool = False
    """Whether `step` finds the step's loss among its coefficients, as `value`: the weighted sum of the mean losses."""

    shareable: bool = True
    """Whether its compiled updates serve other models with parameters of the same names, shapes and dtypes."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def for_tree(self, tree: Any) -> UpdateRule:
        """The rule for a model whose library holds parameters in a `tree`, as `ArrayOps.parameter_tree` gives it.

        The default is the rule itself, which sees parameters by name.
        """
        return self

    @abstractmethod
    def coefficients(self, step: int) -> dict[str, float]:
        """The scalars of a step, counted from 1, in float64. Computed on the host."""

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """The scalars of `count` steps from `step` on, [count] each. The default calls `coefficients` for each."""
        rows = [self.coefficients(step + i) for i in range(count)]
        return {key: np.array([row[key] for row in rows], dtype=np.float64) for key in (rows[0] if rows else ())}

    @abstractmethod
    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """The slots that `step` needs for some parameters: the kept ones, else initial ones.

        Args:
            xp: the framework's namespace of functions by NumPy's names, as `ArrayOps.xp`.
            kept: of an earlier step, for all of these parameters, some or none.
            parameters: arrays by name, which give initial slots their shapes, dtypes and devices.
        """

    @abstractmethod
    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Whether slots of an earlier phase belong to this rule and these parameters; reads names and shapes only."""

    @abstractmethod
    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        """The parameters that have gradients, and their slots, after a step. No array is written to.

        Args:
            xp: the framework's namespace of functions by NumPy's names, as `ArrayOps.xp`.
            parameters: arrays by name; others than those with a gradient may be among them.
            gradients: of the shape of their parameter, by its name.
            slots: as `slots` gave them, or the step before.
            coefficients: of this step, as `coefficients` or a row of `table` has them: numbers, or scalar arrays where
                steps are compiled; and `value` if the rule `needs_value`.
        """


class PerParameterRule(UpdateRule):
    """A rule that updates each parameter independently of the others."""

    per_parameter = True
    elementwise: ClassVar[bool] = False
    """Whether it also updates each element independently, so that several parameters may be updated as one vector."""
    names: tuple[str, ...]
    """Names of the slots of each parameter; all start as zeros of its shape."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.weight_decay = float(optimizer.settings["weight_decay"])

    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """Zeros at first."""
        return {
            name: kept[name] if name in kept else {slot: xp.zeros_like(w) for slot in self.names}
            for name, w in parameters.items()
        }

    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Whether the parameters that have slots, at least one, have these in their shape; others are new."""
        known = {name: w for name, w in parameters.items() if slots.get(name)}
        return bool(known or not self.names) and all(
            set(slots[name]) == set(self.names)
            and all(tuple(slot.shape) == tuple(w.shape) for slot in slots[name].values())
            for name, w in known.items()
        )

    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        """`update` of each parameter."""
        updated = {
            name: self.update(xp, parameters[name], g, slots[name], coefficients) for name, g in gradients.items()
        }
        return {name: w for name, (w, _) in updated.items()}, {name: slots for name, (_, slots) in updated.items()}

    @abstractmethod
    def update(
        self, xp: Any, w: Any, g: Any, slots: Mapping[str, Any], coefficients: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The parameter and its slots after a step; no array is written to.

        Args:
            xp: the framework's namespace of functions by NumPy's names, as `ArrayOps.xp`.
            w: the parameter.
            g: its gradient, of the same shape.
            slots: its own, by `names`.
            coefficients: of this step; see `UpdateRule.step`.
        """


def update_rule(optimizer: Optimizer) -> UpdateRule:
    """The rule of a named optimizer.

    Raises:
        SpecError: the optimizer is a framework's own, or has a name without a formula here.
    """
    if optimizer.own is not None:
        raise SpecError(
            f"optimizer {optimizer.name!r} is a framework's own, and this framework takes named optimizers only",
            available=", ".join(_RULES),
            hint="use one of these names",
        )
    rule = _RULES.get(optimizer.name)
    if rule is None:
        raise SpecError(
            f"there is no formula for the optimizer {optimizer.name!r} here",
            available=", ".join(_RULES),
            hint="use one of these names",
        )
    return rule(optimizer)


class SGD(PerParameterRule):
    """Gradient descent, with momentum where it is set."""

    elementwise = True

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.momentum = float(optimizer.settings["momentum"])
        self.nesterov = bool(optimizer.settings["nesterov"])
        self.names = ("velocity",) if self.momentum else ()

    def coefficients(self, step: int) -> dict[str, float]:
        """The learning rate."""
        return {"rate": self.optimizer.rate(step - 1)}

    def update(
        self, xp: Any, w: Any, g: Any, slots: Mapping[str, Any], coefficients: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """As in `PerParameterRule`."""
        if self.weight_decay:
            g = g + self.weight_decay * w
        if not self.momentum:
            return w - coefficients["rate"] * g, {}
        velocity = self.momentum * slots["velocity"] + g
        g = g + self.momentum * velocity if self.nesterov else velocity
        return w - coefficients["rate"] * g, {"velocity": velocity}


class Adam(PerParameterRule):
    """Adam; with `decoupled`, AdamW."""

    elementwise = True
    names = ("m", "v")
    decoupled = False

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.betas = optimizer.settings["betas"]
        self.eps = float(optimizer.settings["eps"])

    def coefficients(self, step: int) -> dict[str, float]:
        """Bias-corrected rate, root of the bias correction of `v`, and the factor of decoupled weight decay."""
        rate = self.optimizer.rate(step - 1)
        first, second = (1.0 - beta**step for beta in self.betas)
        return {"rate": rate / first, "root": math.sqrt(second), "kept": 1.0 - rate * self.weight_decay}

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """As in `UpdateRule`, vectorized."""
        steps, rates = np.arange(step, step + count), _rates(self.optimizer, step, count)
        first, second = (1.0 - beta**steps for beta in self.betas)
        return {"rate": rates / first, "root": np.sqrt(second), "kept": 1.0 - rates * self.weight_decay}

    def update(
        self, xp: Any, w: Any, g: Any, slots: Mapping[str, Any], coefficients: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """As in `PerParameterRule`."""
        if self.decoupled:
            w = w * coefficients["kept"]
        elif self.weight_decay:
            g = g + self.weight_decay * w
        b1, b2 = self.betas
        m = b1 * slots["m"] + (1.0 - b1) * g
        v = b2 * slots["v"] + (1.0 - b2) * g * g
        return w - coefficients["rate"] * m / (xp.sqrt(v) / coefficients["root"] + self.eps), {"m": m, "v": v}


_CONSTANT = Schedule()  # made once: a table of rates is made for each call of compiled steps


def _rates(optimizer: Optimizer, step: int, count: int) -> np.ndarray:
    """The learning rates of `count` steps from `step` on, counted from 1."""
    if optimizer.schedule == _CONSTANT and type(optimizer).rate is Optimizer.rate:
        return np.full(count, optimizer.lr)
    return np.array([optimizer.rate(step - 1 + i) for i in range(count)])


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    decoupled = True


_RULES: dict[str, type[PerParameterRule]] = {"sgd": SGD, "momentum": SGD, "adam": Adam, "adamw": AdamW}
