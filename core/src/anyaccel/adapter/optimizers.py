"""The named optimizers as functions of parameter, gradient and slots, by docs/reference/formulas.md."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer, Schedule

Slots = Mapping[str, Mapping[str, Any]]


class UpdateRule(ABC):
    """How one optimizer recipe changes the parameters of a node. Everything but `coefficients` is pure and traceable.

    Slots are arrays by name of parameter and of slot; a rule that keeps anything else for a node puts it under names of
    its own.
    """

    def __init__(self, recipe: Optimizer) -> None:
        self.recipe = recipe

    @abstractmethod
    def coefficients(self, step: int) -> dict[str, float]:
        """The scalars of a step, which counts from 1; in float64. Computed on the host."""

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """The scalars of `count` steps from `step` on, [count] each. The default asks for one after the other."""
        rows = [self.coefficients(step + i) for i in range(count)]
        return {key: np.array([row[key] for row in rows], dtype=np.float64) for key in (rows[0] if rows else ())}

    @abstractmethod
    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """What `step` needs for some parameters: what was kept of them, else what they begin with."""

    @abstractmethod
    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Whether slots of an earlier phase are of this rule and these parameters."""

    @abstractmethod
    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        """The parameters that have gradients, and their slots, after a step."""


class PerParameterRule(UpdateRule):
    """A rule that treats each parameter by itself."""

    pointwise: ClassVar[bool] = False
    """Whether it treats each number of a parameter by itself, too, so that several may be updated as one vector."""
    names: tuple[str, ...]
    """Names of the arrays that are kept for each parameter; all start as zeros of its shape."""

    def __init__(self, recipe: Optimizer) -> None:
        super().__init__(recipe)
        self.weight_decay = float(recipe.settings["weight_decay"])

    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """Zeros at first."""
        return {
            name: kept[name] if name in kept else {slot: xp.zeros_like(w) for slot in self.names}
            for name, w in parameters.items()
        }

    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Whether every parameter has these slots in its shape."""
        return all(
            set(slots.get(name, ())) == set(self.names)
            and all(tuple(slot.shape) == tuple(w.shape) for slot in slots.get(name, {}).values())
            for name, w in parameters.items()
        )

    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        """One after the other."""
        found = {name: self.update(xp, parameters[name], g, slots[name], coefficients) for name, g in gradients.items()}
        return {name: w for name, (w, _) in found.items()}, {name: kept for name, (_, kept) in found.items()}

    @abstractmethod
    def update(
        self, xp: Any, w: Any, g: Any, slots: Mapping[str, Any], coefficients: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The parameter and its slots after a step with gradient `g`; nothing is written to."""


def update_rule(recipe: Optimizer) -> UpdateRule:
    """The rule of a named optimizer.

    Raises:
        SpecError: the recipe is a framework's own.
    """
    if recipe.own is not None:
        raise SpecError(
            f"the optimizer {recipe.name} is no name, and this framework has the named ones only",
            available=", ".join(_RULES),
            hint="use one of these names",
        )
    return _RULES[recipe.name](recipe)


class Descent(PerParameterRule):
    """Gradient descent, with momentum where it is asked for."""

    pointwise = True

    def __init__(self, recipe: Optimizer) -> None:
        super().__init__(recipe)
        self.momentum = float(recipe.settings["momentum"])
        self.nesterov = bool(recipe.settings["nesterov"])
        self.names = ("velocity",) if self.momentum else ()

    def coefficients(self, step: int) -> dict[str, float]:
        """The learning rate."""
        return {"rate": self.recipe.rate(step - 1)}

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

    pointwise = True
    names = ("m", "v")
    decoupled = False

    def __init__(self, recipe: Optimizer) -> None:
        super().__init__(recipe)
        self.betas = recipe.settings["betas"]
        self.eps = float(recipe.settings["eps"])

    def coefficients(self, step: int) -> dict[str, float]:
        """The rate with the correction of `m`, the root of the correction of `v`, and what decay leaves of `w`."""
        rate = self.recipe.rate(step - 1)
        first, second = (1.0 - beta**step for beta in self.betas)
        return {"rate": rate / first, "root": math.sqrt(second), "kept": 1.0 - rate * self.weight_decay}

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """As in `UpdateRule`, for all steps at once."""
        steps, rates = np.arange(step, step + count), _rates(self.recipe, step, count)
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


def _rates(recipe: Optimizer, step: int, count: int) -> np.ndarray:
    """The learning rates of `count` steps, of which the first is `step`, which counts from 1."""
    if recipe.schedule == Schedule():
        return np.full(count, recipe.lr)
    return np.array([recipe.rate(step - 1 + i) for i in range(count)])


class AdamW(Adam):
    """Adam whose weight decay goes past the moments."""

    decoupled = True


_RULES: dict[str, type[PerParameterRule]] = {"sgd": Descent, "momentum": Descent, "adam": Adam, "adamw": AdamW}
