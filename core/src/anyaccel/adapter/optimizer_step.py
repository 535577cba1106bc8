"""What an optimizer step does, as pure functions of trees of arrays, so that a framework can compile them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, Function, cast, scaled
from anyaccel.adapter.optimizers import PerParameterRule
from anyaccel.segment import ParameterGroup


class Updates:
    """The rules and limits of some parameter groups.

    Attributes:
        rules: by name of group.
        limits: the largest norm of a group's gradients, for groups that have one.

    Raises:
        SpecError: an optimizer that is not a named one.
    """

    def __init__(self, ops: ArrayOps, groups: Iterable[ParameterGroup]) -> None:
        self._ops = ops
        self.rules = {group.name: ops.update_rule(group.optimizer) for group in groups}
        self.limits = {
            name: float(one.recipe.clip_norm) for name, one in self.rules.items() if one.recipe.clip_norm is not None
        }

    def updated(
        self, group: str, parameters: Any, slots: Any, gradients: Any, coefficients: Any, factor: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parameters and slots of some nodes of a group after one step.

        Args:
            group: the group's name.
            parameters: arrays by node and name.
            slots: by node, name and slot.
            gradients: by node and name; each of these parameters is updated.
            coefficients: the rule's scalars for this step, by node.
            factor: for all gradients, or None.
        """
        after: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        for node, there in gradients.items():
            after[node], kept[node] = {}, {}
            given = {name: g if factor is None else scaled(self._ops, g, factor) for name, g in there.items()}
            for names in self._alike(group, parameters[node], given):
                new, slot = self._step(
                    group, parameters[node], {n: given[n] for n in names}, slots[node], coefficients[node]
                )
                after[node].update(new)
                kept[node].update(slot)
        return after, kept

    def _step(self, group: str, own: Any, given: Any, slots: Any, coefficients: Any) -> tuple[Any, Any]:
        dtype = own[next(iter(given))].dtype
        scalars = {key: self._like(value, dtype) for key, value in coefficients.items()}
        new, kept = self.rules[group].step(self._ops.xp, own, given, slots, scalars)
        return {name: cast(self._ops, w, own[name].dtype) for name, w in new.items()}, kept

    def _alike(self, group: str, own: Any, given: Any) -> Iterable[list[str]]:
        """Names of parameters that may be updated together: of one dtype, or all if the rule takes no parts."""
        if not isinstance(self.rules[group], PerParameterRule):
            return [list(given)]
        found: dict[Any, list[str]] = {}
        for name in given:
            found.setdefault(own[name].dtype, []).append(name)
        return found.values()

    def measured(self, gradients: Any) -> tuple[Any, Any]:
        """The squared norm of gradients by node and name, and whether all are finite."""
        xp, arrays = self._ops.xp, [gradient for there in gradients.values() for gradient in there.values()]
        squares = [xp.sum(g * g) for g in (self._wide(array) for array in arrays)]
        return (
            xp.sum(xp.stack([cast(self._ops, square, squares[0].dtype) for square in squares])),
            xp.all(xp.stack([xp.all(xp.isfinite(g)) for g in arrays])),
        )

    def _wide(self, gradient: Any) -> Any:
        """In 16 bits a square soon is infinite."""
        return self._ops.astype(gradient, self._ops.xp.float32) if "16" in str(gradient.dtype) else gradient

    def factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """As `Program.clip_factor`, for squares on one device."""
        total = squares[0]
        for square in squares[1:]:
            total = total + cast(self._ops, square, total.dtype)
        return self._ops.xp.minimum(1.0, limit / (self._ops.xp.sqrt(total) + 1e-6))

    def _like(self, value: Any, dtype: Any) -> Any:
        """A scalar in a dtype; Python's own numbers take any."""
        return value if isinstance(value, float) else cast(self._ops, value, dtype)


class Acts:
    """What `Updates` do, made faster by a framework once it is asked for."""

    def __init__(self, updates: Updates, compiled: Callable[[Function], Function]) -> None:
        self._updates = updates
        self._compiled = compiled

    @cached_property
    def measured(self) -> Function:
        """`Updates.measured`."""
        return self._compiled(self._updates.measured)

    @cached_property
    def updated(self) -> dict[str, Function]:
        """`Updates.updated` by group, without its first argument."""
        return {name: self._compiled(partial(self._updates.updated, name)) for name in self._updates.rules}


def by_node(values: Mapping[str, Mapping[str, Any]], nodes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The entries of some nodes, as dicts that may be changed."""
    return {node: dict(values[node]) for node in nodes}
