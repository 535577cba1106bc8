"""Parameter groups: the settings of each parameter, and an update rule that has another rule for each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from anyaccel.adapter.optimizers import Slots, UpdateRule
from anyaccel.specs import Optimizer


def settings_of(optimizer: Optimizer, name: str, parameter: Any) -> Optimizer:
    """The optimizer with the settings of a parameter: those of the first group that it is in, else the usual ones."""
    for pattern, group in optimizer.groups:
        if fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern(name, parameter):
            return group
    return optimizer


def unmatched_patterns(optimizer: Optimizer, names: Iterable[str]) -> list[str]:
    """The patterns of groups that no parameter has; predicates are not asked."""
    known = list(names)
    patterns = [pattern for pattern, _ in optimizer.groups if isinstance(pattern, str)]
    return [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in known)]


def grouped_rule(optimizer: Optimizer, make: Callable[[Optimizer], UpdateRule]) -> UpdateRule:
    """The rule of an optimizer; `make` makes one for settings that are the same for all parameters."""
    return GroupedRule(optimizer, make) if optimizer.groups else make(optimizer)


class GroupedRule(UpdateRule):
    """Updates the parameters of each group by a rule of its own; coefficients are named `GROUP|NAME`."""

    def __init__(self, optimizer: Optimizer, make: Callable[[Optimizer], UpdateRule]) -> None:
        super().__init__(optimizer)
        self._make = make
        self._optimizers = [optimizer, *(group for _, group in optimizer.groups)]
        self._rules = [make(each) for each in self._optimizers]
        self.per_parameter = all(rule.per_parameter for rule in self._rules)
        self.needs_value = any(rule.needs_value for rule in self._rules)
        self.shareable = all(rule.shareable for rule in self._rules)

    def for_tree(self, tree: Any) -> GroupedRule:
        """With each rule for the tree, in which only the parameters of its group have values."""
        return GroupedRule(self.optimizer, lambda optimizer: self._make(optimizer).for_tree(tree))

    def coefficients(self, step: int) -> dict[str, float]:
        """Those of all rules."""
        return self._named([rule.coefficients(step) for rule in self._rules])

    def table(self, step: int, count: int) -> dict[str, np.ndarray]:
        """Those of all rules."""
        return self._named([rule.table(step, count) for rule in self._rules])

    def _named(self, values: list[Any]) -> dict[str, Any]:
        return {f"{i}|{key}": value for i, own in enumerate(values) for key, value in own.items()}

    def _parts(self, names: Iterable[str], parameters: Mapping[str, Any]) -> dict[int, list[str]]:
        """Names of parameters by the number of their group."""
        parts: dict[int, list[str]] = {}
        for name in names:
            own = settings_of(self.optimizer, name, parameters[name])
            number = next(i for i, each in enumerate(self._optimizers) if each is own)
            parts.setdefault(number, []).append(name)
        return parts

    def slots(self, xp: Any, kept: Slots, parameters: Mapping[str, Any]) -> Slots:
        """As in `UpdateRule`, of each rule for its parameters."""
        slots: dict[str, Mapping[str, Any]] = {}
        for i, names in self._parts(parameters, parameters).items():
            slots.update(self._rules[i].slots(xp, _some(kept, names), _some(parameters, names)))
        return slots

    def fits(self, slots: Slots, parameters: Mapping[str, Any]) -> bool:
        """Whether the slots of each group fit its rule."""
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
        """A step of each rule with the gradients of its parameters."""
        updated: dict[str, Any] = {}
        kept: dict[str, Mapping[str, Any]] = {}
        for i, names in self._parts(gradients, parameters).items():
            own = {key.partition("|")[2]: value for key, value in coefficients.items() if key.startswith(f"{i}|")}
            own |= {key: value for key, value in coefficients.items() if key == "value"}
            part = [_some(values, names) for values in (parameters, gradients, slots)]
            new, new_slots = self._rules[i].step(xp, part[0], part[1], part[2], own)
            updated.update(new)
            kept.update(new_slots)
        return updated, kept


def _some(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}
