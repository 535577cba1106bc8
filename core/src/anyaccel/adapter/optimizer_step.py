"""OptimizerStep: clipping and updates of parameter groups as pure functions of trees, which a framework can compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps, Function, at_least_float32, scaled
from anyaccel.adapter.optimizers import GroupedRule, UpdateRule
from anyaccel.errors import SpecError
from anyaccel.formulas import cast
from anyaccel.segment import LossTerm, ParameterGroup


class OptimizerStep:
    """The optimizer step of some parameter groups.

    Args:
        ops: The framework.
        groups: Parameter groups, each with its optimizer.
        constraints: Functions applied to parameters after each update, by owner and name.
        trees: Parameter tree of each model's library, by node, as `ArrayOps.parameter_tree` returns it.

    Attributes:
        rules: Update rules by group name.
        trees: The argument.
        clip_norms: Maximum norm of a group's gradients, for groups that have one.
        clip_values: Maximum absolute value of an element of a group's gradients, for groups that have one.
        constraints: Functions applied to parameters after each update, by owner and name.

    Raises:
        SpecError: the framework lacks an optimizer.
    """

    def __init__(
        self,
        ops: ArrayOps,
        groups: Iterable[ParameterGroup],
        constraints: Mapping[str, Mapping[str, Callable[[Any], Any]]],
        trees: Mapping[str, Any],
    ) -> None:
        self._ops = ops
        groups = list(groups)
        specs = {group.name: group.optimizer for group in groups}
        self.rules = {
            name: GroupedRule(spec, ops.update_rule) if spec.groups else ops.update_rule(spec)
            for name, spec in specs.items()
        }
        self.constraints, self.trees = constraints, trees
        self._of_nodes = {
            node: self.rules[group.name].for_tree(trees[node])
            for group in groups
            for node in group.nodes
            if trees.get(node) is not None
        }
        self.clip_norms = {name: float(spec.clip_norm) for name, spec in specs.items() if spec.clip_norm is not None}
        self.clip_values = {name: float(spec.clip_value) for name, spec in specs.items() if spec.clip_value is not None}

    def rule_of(self, group: str, node: str) -> UpdateRule:
        """Return the update rule of a node of a group, which knows the tree of its parameters."""
        return self._of_nodes.get(node, self.rules[group])

    @property
    def shareable(self) -> bool:
        """Whether compiled updates serve other models with parameters of the same names, shapes and dtypes."""
        return not self.constraints and all(rule.shareable for rule in self._of_nodes.values())

    @cached_property
    def needs_value(self) -> bool:
        """Whether a rule needs the value of the loss."""
        return any(rule.needs_value for rule in (*self.rules.values(), *self._of_nodes.values()))

    def update(
        self, group: str, parameters: Any, slots: Any, gradients: Any, coefficients: Any, factor: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters and slots of some nodes of a group after one step.

        Args:
            group: Name of the group.
            parameters: Arrays by node and name.
            slots: Arrays by node, name and slot.
            gradients: Arrays by node and name, for the parameters to update.
            coefficients: The rule's scalars for this step, by node.
            factor: Multiplier of all gradients; None for 1.
        """
        new_parameters: dict[str, Any] = {}
        new_slots: dict[str, Any] = {}
        for node, arrays in gradients.items():
            new_parameters[node], new_slots[node] = {}, {}
            grads = {name: g if factor is None else scaled(self._ops, g, factor) for name, g in arrays.items()}
            grads = {name: self._clipped(group, g) for name, g in grads.items()}
            rule, before, constraints = self.rule_of(group, node), parameters[node], self.constraints.get(node, {})
            together: dict[Any, list[str]] = {}  # those of one dtype, or all if the rule needs them all
            for name in grads:
                together.setdefault(before[name].dtype if rule.per_parameter else None, []).append(name)
            for names in together.values():
                dtype = before[names[0]].dtype
                scalars = {  # Python floats adapt to any dtype
                    key: value if isinstance(value, float) else cast(self._ops, value, dtype)
                    for key, value in coefficients[node].items()
                }
                updated, kept = rule.step(self._ops.xp, before, {n: grads[n] for n in names}, slots[node], scalars)
                for name, w in updated.items():
                    after = cast(self._ops, w, before[name].dtype)
                    if name in constraints:
                        after = cast(self._ops, constraints[name](after), after.dtype)
                    new_parameters[node][name] = after
                new_slots[node].update(kept)
        return new_parameters, new_slots

    def with_value(self, group: str, coefficients: Any, value: Any) -> Any:
        """Return a group's coefficients by node, with the value of the loss if its rule needs it.

        Raises:
            SpecError: it needs it, and `value` is None.
        """
        if not any(self.rule_of(group, node).needs_value for node in coefficients):
            return coefficients
        if value is None:
            raise SpecError(
                f"the optimizer {self.rules[group].optimizer.name} needs the value of the loss, but the step "
                "is computed in several parts, and none of them has it",
                hint="train all nodes on one device, with one framework and one feature set, or use another optimizer",
            )
        return {node: {**scalars, "value": value} for node, scalars in coefficients.items()}

    def _clipped(self, group: str, gradient: Any) -> Any:
        """Return a gradient with each element in the limits of a group that has a `clip_value`; NaN stays NaN."""
        limit = self.clip_values.get(group)
        if limit is None:
            return gradient
        return cast(self._ops, self._ops.xp.minimum(limit, self._ops.xp.maximum(gradient, -limit)), gradient.dtype)

    def gradient_stats(self, gradients: Any) -> tuple[Any, Any]:
        """Return the squared norm of gradients by node and name, and whether all are finite."""
        xp, arrays = self._ops.xp, [gradient for by_name in gradients.values() for gradient in by_name.values()]
        squares = [xp.sum(g * g) for g in (at_least_float32(self._ops, array) for array in arrays)]
        return (
            xp.sum(xp.stack([cast(self._ops, square, squares[0].dtype) for square in squares])),
            xp.all(xp.stack([xp.all(xp.isfinite(g)) for g in arrays])),
        )

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """Return the clipping factor for squares on one device; see `Program.clip_factor`."""
        total = squares[0]
        for square in squares[1:]:
            total = total + cast(self._ops, square, total.dtype)
        return self._ops.xp.minimum(1.0, limit / (self._ops.xp.sqrt(total) + 1e-6))


class CompiledOptimizerStep:
    """The functions of an `OptimizerStep`, each compiled at its first use."""

    def __init__(self, step: OptimizerStep, compile_function: Callable[[Function], Function]) -> None:
        self._step = step
        self._compile = compile_function

    @cached_property
    def gradient_stats(self) -> Function:
        """The compiled `OptimizerStep.gradient_stats`."""
        return self._compile(self._step.gradient_stats)

    @cached_property
    def update(self) -> dict[str, Function]:
        """By group, the compiled `OptimizerStep.update` without its first argument."""
        return {name: self._compile(partial(self._step.update, name)) for name in self._step.rules}


def weighted_sum(means: Sequence[Any], losses: Sequence[LossTerm]) -> Any:
    """Return the loss that a step minimizes, from the means of its losses on one device; more means may follow."""
    first, *more = (mean * term.weight for mean, term in zip(means, losses, strict=False))
    return sum(more, start=first)


def select_nodes(values: Mapping[str, Mapping[str, Any]], nodes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the entries of some nodes, as new dicts."""
    return {node: dict(values[node]) for node in nodes}
