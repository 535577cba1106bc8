"""Update rules: how the parameters of a node change in a step, by a named optimizer's formula or another library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from anyaccel.errors import SpecError
from anyaccel.formulas import OPTIMIZERS
from anyaccel.specs import Optimizer, Schedule

Slots = Mapping[str, Mapping[str, Any]]
"""Arrays by name of parameter and of slot."""


class UpdateRule(ABC):
    """How one optimizer changes the parameters of a node. All methods except `coefficients` are pure and traceable.

    Slots are arrays by name of parameter and of slot; a rule that stores anything else for a node uses separate names.
    """

    per_parameter: bool = False
    """Whether each parameter is updated independently of the others, so that those of one dtype may come alone."""
    elementwise: bool = False
    """Whether each element is, too, so that several parameters may be updated as one vector."""
    needs_value: bool = False
    """Whether `step` finds the step's loss among its coefficients, as `value`: the weighted sum of the mean losses."""

    shareable: bool = True
    """Whether its compiled updates serve other models with parameters of the same names, shapes and dtypes."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def for_tree(self, tree: Any) -> UpdateRule:
        """Return the rule for a model whose library holds parameters in a `tree` of `ArrayOps.parameter_tree`.

        The default is the rule itself, which sees parameters by name.
        """
        return self

    @abstractmethod
    def coefficients(self, step: int) -> dict[str, float]:
        """Return the scalars of a step, counted from 1, in float64. Computed on the host."""

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """Return the scalars of `count` steps from `step` on, [count] each. The default calls `coefficients` for
        each.
        """
        rows = [self.coefficients(step + i) for i in range(count)]
        return {key: np.array([row[key] for row in rows], dtype=np.float64) for key in (rows[0] if rows else ())}

    @abstractmethod
    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """Return the slots that `step` needs for some parameters: the kept ones, or initial ones.

        Args:
            xp: The framework's namespace of functions by NumPy's names; see `ArrayOps.xp`.
            kept: Slots of an earlier step, for all of these parameters, some or none.
            parameters: Arrays by name, which give initial slots their shapes, dtypes and devices.
        """

    def continued(self, slots: Slots, parameters: Mapping[str, Any]) -> Slots:
        """Return the slots of an earlier phase, which may have trained others of a model's parameters, for these.

        The default returns them as they are.
        """
        return slots

    @abstractmethod
    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Return whether slots of an earlier phase belong to this rule and these parameters; reads only names and
        shapes.
        """

    @abstractmethod
    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        """Return the parameters that have gradients, and their slots, after a step. No array is written to.

        Args:
            xp: The framework's namespace of functions by NumPy's names; see `ArrayOps.xp`.
            parameters: Arrays by name; parameters without a gradient may be among them.
            gradients: Gradients in the shape of their parameter, by its name.
            slots: Output of `slots` or of the previous step.
            coefficients: Coefficients of this step from `coefficients` or a row of `table`: numbers, or scalar arrays
                if steps are compiled; and `value` if the rule `needs_value`.
        """


class NamedRule(UpdateRule):
    """The rule of a named optimizer, by its entry in `anyaccel.formulas.OPTIMIZERS`."""

    per_parameter = True

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self._rule, self._settings = OPTIMIZERS[optimizer.name], optimizer.settings
        self._slots = self._rule.slots(optimizer.settings)
        self.elementwise = self._rule.elementwise

    def coefficients(self, step: int) -> dict[str, float]:
        numbers = self._rule.coefficients(self._settings, np, self.optimizer.rate(step - 1), step)
        return {name: float(number) for name, number in numbers.items()}

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        optimizer = self.optimizer
        if optimizer.schedule == _CONSTANT and type(optimizer).rate is Optimizer.rate:
            rates = np.full(count, optimizer.lr)
        else:
            rates = np.array([optimizer.rate(step - 1 + i) for i in range(count)])
        return self._rule.coefficients(self._settings, np, rates, np.arange(step, step + count, dtype=np.float64))

    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        return {
            name: kept[name] if name in kept else {slot: xp.zeros_like(w) for slot in self._slots}
            for name, w in parameters.items()
        }

    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Return whether the parameters that have slots, at least one, have these in their shape; others are new."""
        present = {name: w for name, w in parameters.items() if slots.get(name)}
        return bool(present or not self._slots) and all(
            set(slots[name]) == set(self._slots)
            and all(tuple(slot.shape) == tuple(w.shape) for slot in slots[name].values())
            for name, w in present.items()
        )

    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        updated = {
            name: self._rule.update(self._settings, xp, parameters[name], g, slots[name], coefficients)
            for name, g in gradients.items()
        }
        return {name: w for name, (w, _) in updated.items()}, {name: slots for name, (_, slots) in updated.items()}


_CONSTANT = Schedule()  # made once: a table of rates is made for each call of compiled steps


def update_rule(optimizer: Optimizer) -> UpdateRule:
    """Return the rule of a named optimizer.

    Raises:
        SpecError: the optimizer is an optimizer of a framework.
    """
    if optimizer.own is not None:
        raise SpecError(
            f"optimizer {optimizer.name!r} belongs to a framework, but this framework accepts named optimizers only",
            available=", ".join(OPTIMIZERS),
            hint="use one of these names",
        )
    return NamedRule(optimizer)


def settings_of(optimizer: Optimizer, name: str, parameter: Any) -> Optimizer:
    """Return the optimizer with the settings of a parameter: of the first group that contains it, or the usual ones."""
    for pattern, group in optimizer.groups:
        if fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern(name, parameter):
            return group
    return optimizer


def unmatched_patterns(optimizer: Optimizer, names: Iterable[str]) -> list[str]:
    """Return the patterns of groups that no parameter matches; predicates are not checked."""
    all_names = list(names)
    patterns = [pattern for pattern, _ in optimizer.groups if isinstance(pattern, str)]
    return [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in all_names)]


class GroupedRule(UpdateRule):
    """Update the parameters of each group by a separate rule; coefficients are named `GROUP|NAME`."""

    def __init__(self, optimizer: Optimizer, make: Callable[[Optimizer], UpdateRule]) -> None:
        super().__init__(optimizer)
        self._make = make
        self._optimizers = [optimizer, *(group for _, group in optimizer.groups)]
        self._rules = [make(optimizer) for optimizer in self._optimizers]
        self.per_parameter = all(rule.per_parameter for rule in self._rules)
        self.needs_value = any(rule.needs_value for rule in self._rules)
        self.shareable = all(rule.shareable for rule in self._rules)

    def for_tree(self, tree: Any) -> GroupedRule:
        """Return the rules for the tree; each sees only the parameters of its group."""
        return GroupedRule(self.optimizer, lambda optimizer: self._make(optimizer).for_tree(tree))

    def coefficients(self, step: int) -> dict[str, float]:
        """Return the coefficients of all rules."""
        return self._named([rule.coefficients(step) for rule in self._rules])

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """Return the tables of all rules."""
        return self._named([rule.table(step, count) for rule in self._rules])

    def _named(self, values: list[Any]) -> dict[str, Any]:
        return {f"{i}|{key}": value for i, part in enumerate(values) for key, value in part.items()}

    def _parts(self, names: Iterable[str], parameters: Mapping[str, Any]) -> dict[int, list[str]]:
        """Return names of parameters by the number of their group."""
        parts: dict[int, list[str]] = {}
        for name in names:
            settings = settings_of(self.optimizer, name, parameters[name])
            number = next(i for i, optimizer in enumerate(self._optimizers) if optimizer is settings)
            parts.setdefault(number, []).append(name)
        return parts

    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """Return the slots of each rule for its parameters."""
        slots: dict[str, Mapping[str, Any]] = {}
        for i, names in self._parts(parameters, parameters).items():
            slots.update(self._rules[i].slots(xp, _some(kept, names), _some(parameters, names)))
        return slots

    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Return whether the slots of each group fit its rule."""
        parts = self._parts(parameters, parameters)
        return all(self._rules[i].fits(_some(slots, part), _some(parameters, part)) for i, part in parts.items())

    def step(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        slots: Slots,
        coefficients: Mapping[str, Any],
    ) -> tuple[dict[str, Any], Slots]:
        """Run a step of each rule with the gradients of its parameters."""
        updated: dict[str, Any] = {}
        kept: dict[str, Mapping[str, Any]] = {}
        for i, names in self._parts(gradients, parameters).items():
            group_coefficients = {
                key.partition("|")[2]: value for key, value in coefficients.items() if key.startswith(f"{i}|")
            }
            group_coefficients |= {key: value for key, value in coefficients.items() if key == "value"}
            part = [_some(values, names) for values in (parameters, gradients, slots)]
            new, new_slots = self._rules[i].step(xp, part[0], part[1], part[2], group_coefficients)
            updated.update(new)
            kept.update(new_slots)
        return updated, kept


def _some(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}
