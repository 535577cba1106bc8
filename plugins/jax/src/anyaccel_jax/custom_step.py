"""CustomStep: a custom training step on the state of a program: a pure function, compiled where possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter.custom_step import CustomStepRunner
from anyaccel.adapter.optimizer_step import OptimizerStep
from anyaccel.adapter.parameter_state import ParameterState
from anyaccel.adapter.segment_functions import SegmentLayout
from anyaccel.errors import PhaseError
from anyaccel.segment import Path, Segment
from anyaccel_jax.models.base import AsReturned, Model
from anyaccel_jax.ops import JaxOps

Arrays = Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeFunctions:
    """The constants of a node: compared by identity, because compiled steps hold them.

    Attributes:
        label: Label of the node.
        model: Its model as a pure function.
        trainable: Whether it learns.
        group: Name of its parameter group; `""` if it does not learn.
        sharing: Labels of the other nodes that learn with the same optimizer.
        optimizer: Updates of all groups.
    """

    label: str
    model: Model
    trainable: bool
    group: str
    sharing: tuple[str, ...]
    optimizer: OptimizerStep


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """A node of the graph in a training step: values, and functions that return new values. It never changes itself.

    Attributes:
        params: Trained arrays by name, as in `graph.state()`; pass them to `jax.grad`.
        buffers: The other arrays of the model by name, such as running statistics.
        opt_state: Slots of the optimizer, by name of parameter and of slot.
        step: Number of updates so far, an int32 scalar.
        key: A key of `jax.random`, another one in each step and node.
    """

    params: dict[str, Any]
    buffers: dict[str, Any]
    opt_state: dict[str, dict[str, Any]]
    step: Any
    key: Any
    tables: dict[str, Any] = field(repr=False)
    first: Any = field(repr=False)
    functions: NodeFunctions = field(repr=False, metadata={"static": True})

    def apply(
        self,
        params: Arrays,
        *inputs: Any,
        train: bool | None = None,
        key: Any = None,
        buffers: Arrays | None = None,
        **named: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the model's result for these parameters and inputs, unchanged, and its new buffers.

        Args:
            params: Parameters like `self.params`.
            inputs: [batch, ...] each, and more by keyword.
            train: Mode; by default training, and evaluation for a frozen node.
            key: Key that determines everything random in the model; by default that of this step, so that two calls
                have the same random numbers.
            buffers: Buffers like `self.buffers`, such as those of another call.
        """
        arguments: list[Path] = [*((i,) for i in range(len(inputs))), *((name,) for name in named)]
        mode = self.functions.trainable if train is None else train
        before = self.buffers if buffers is None else buffers
        (result,), after = self.functions.model.apply(
            params,
            before,
            [*inputs, *named.values()],
            mode,
            self.key if key is None else key,
            AsReturned(arguments if named else ()),
        )
        return result, dict(before if after is None else after)

    def apply_gradients(self, grads: Arrays, *, value: Any = None, **changes: Any) -> TrainState:
        """Return the state after one update by the node's optimizer, with its schedule and clipping.

        Args:
            grads: Gradients like `params`, or a part of it; other parameters do not change.
            value: The loss, for optimizers that need it (`optax.contrib.reduce_on_plateau`).
            changes: Other attributes to replace, such as `buffers`.

        Raises:
            PhaseError: the node is frozen, or has no such parameters, or is clipped together with others, or its
                optimizer needs the value of the loss.
        """
        functions = self.functions
        self._check_update(grads, value)
        optimizer, group, label = functions.optimizer, functions.group, functions.label
        gradients = {label: dict(grads)}
        limit = optimizer.clip_norms.get(group)
        factor = None if limit is None else optimizer.clip_factor(limit, [optimizer.gradient_stats(gradients)[0]])
        row = self.step - self.first
        scalars = {name: jnp.take(t, row, mode="fill", fill_value=jnp.nan) for name, t in self.tables.items()}
        coefficients = optimizer.with_value(group, {label: scalars}, value)
        after, slots = optimizer.update(
            group, {label: self.params}, {label: self.opt_state}, gradients, coefficients, factor
        )
        return replace(
            self,
            params={**self.params, **after[label]},
            opt_state={**self.opt_state, **slots[label]},
            step=self.step + 1,
            **changes,
        )

    def replace(self, **changes: Any) -> TrainState:
        """Return the same with other attributes, such as `buffers`."""
        return replace(self, **changes)

    def _check_update(self, grads: Arrays, value: Any) -> None:
        functions = self.functions
        problem = f"node {functions.label!r} cannot be updated"
        if not functions.trainable:
            raise PhaseError(f"{problem}: it is frozen", hint="return its state unchanged, or unfreeze the node")
        unknown = [name for name in grads if name not in self.params] if isinstance(grads, Mapping) else None
        if unknown is None or unknown or not grads:
            what = (
                f"no parameter {unknown[0]!r}"
                if unknown
                else f"gradients must be a dict like params, got {grads!r:.60}"
            )
            hint = "pass jax.grad(loss)(state.params) with the params of the same node"
            raise PhaseError(f"{problem}: {what}", available=", ".join(self.params), hint=hint)
        if functions.sharing and functions.group in functions.optimizer.clip_norms:
            raise PhaseError(
                f"{problem} alone: it shares an optimizer with clip_norm with {', '.join(functions.sharing)}, and "
                "their gradients are clipped together",
                hint="use a separate optimizer for each node: ModelNode(..., optimizer=Optimizer(..., clip_norm=...))",
            )
        if value is None and functions.optimizer.rule_of(functions.group, functions.label).needs_value:
            hint = "write apply_gradients(grads, value=loss)"
            raise PhaseError(f"{problem}: its optimizer needs the value of the loss", hint=hint)


State = dict[str, TrainState]


def check_after(before: State, result: Any) -> tuple[State, Any]:
    """Return the state and the figures of a step.

    Raises:
        PhaseError: they are not such a pair; or the state has other nodes, names, shapes or dtypes, or changes frozen
            values.
    """
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
        raise PhaseError(
            f"the step returned a {type(result).__name__} instead of the new state and its figures",
            hint="write return state, {'loss': loss}, where state is a dict like the given one",
        )
    after = dict(result[0])
    if sorted(after) != sorted(before) or not all(isinstance(s, TrainState) for s in after.values()):
        raise PhaseError(
            f"the step returned a state of {', '.join(map(str, after)) or 'no nodes'}",
            available=f"one TrainState for each of {', '.join(before)}",
            hint="write return {**state, 'NODE': changed}, ...",
        )
    for label, state in after.items():
        _check_same(label, before[label], state)
    return after, result[1]


def _check_same(label: str, before: TrainState, after: TrainState) -> None:
    for name in ("params", "buffers", "opt_state", "step"):
        old, new = getattr(before, name), getattr(after, name)
        if _specs(old) != _specs(new):
            leaves = jax.tree_util.tree_leaves_with_path(old)[:4]
            raise PhaseError(
                f"the step returned {name} of node {label!r} with other names, shapes or dtypes",
                cause=", ".join(
                    f"{jax.tree_util.keystr(p, simple=True, separator='.')} {jnp.shape(x)}" for p, x in leaves
                ),
                hint="return arrays like those in the state",
            )
        unchanged = all(map(lambda x, y: x is y, jax.tree.leaves(old), jax.tree.leaves(new)))
        if not before.functions.trainable and not unchanged:
            raise PhaseError(
                f"the step changed {name} of node {label!r}, which is frozen",
                hint="return its state unchanged, or unfreeze the node",
            )


def _specs(tree: Any) -> list[Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(path, jnp.shape(leaf), jnp.result_type(leaf)) for path, leaf in leaves]


# -- CustomStep: runs the step, compiled where possible ----------------------------------------------------------------


class Values(NamedTuple):
    """The values of a node that a step changes."""

    params: dict[str, Any]
    buffers: dict[str, Any]
    opt_state: dict[str, dict[str, Any]]
    step: Any


class CustomStep(CustomStepRunner):
    """A custom step of (state, batch); counts and buffers are in this object between steps."""

    arguments = ("state", "batch")
    example = "def step(state, batch): ... return {**state, 'NODE': changed}, {'loss': loss}"

    def __init__(
        self,
        step: Callable[..., Any],
        segment: Segment,
        ops: JaxOps,
        layout: SegmentLayout,
        state: ParameterState,
        *,
        off: bool,
    ) -> None:
        devices = layout.owner_device

        def put(owner: Any, column: Any) -> Any:
            return ops.move(jnp.asarray(column), devices[owner])

        super().__init__(step, segment, ops, layout, state, off=off, put=put, compile_function=jax.jit)
        self._functions = {
            label: _functions(label, layout, self._groups, ops, state.optimizer) for label in layout.models
        }
        self._steps: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._run = partial(_run, step, self._functions)

    def begin(self, buffers: Mapping[str, Mapping[str, Any]]) -> None:
        self._buffers = {label: dict(buffers[label]) for label in self._functions}
        self._steps = {owner: np.int32(self._state.states[owner].step) for owner in self._groups}
        self._tables.invalidate()

    def run(self, batch: Mapping[str, Any], key: Any) -> Any:
        """Return the figures of the step; the state is changed.

        Raises:
            PhaseError: the step did not return a state with figures.
        """
        self._tables.advance(self._counts)
        parameters = self._state.parameters
        before = {
            label: Values(
                dict(parameters[label]), self._buffers[label], self._slots(label), self._steps.get(label, np.int32(0))
            )
            for label in self._functions
        }
        first = {owner: np.int32(count) for owner, count in self._tables.first.items()}
        after, figures = self._compiler.run(self._run, before, self._tables.tables, first, dict(batch), key)
        trained = {owner: after[owner] for owner in self._groups}
        self._state.store(
            {owner: values.params for owner, values in trained.items()},
            {owner: values.opt_state for owner, values in trained.items()},
            0,
        )
        self._steps = {owner: values.step for owner, values in trained.items()}
        self._buffers = {label: values.buffers for label, values in after.items()}
        return figures

    def _slots(self, label: str) -> dict[str, Any]:
        if label not in self._groups:
            return {}
        return self._state.slots(self._groups[label], label, self._state.parameters[label])

    def _counts(self) -> dict[str, int]:
        return {owner: int(step) for owner, step in self._steps.items()}

    def collect(self) -> Mapping[str, Mapping[str, Any]]:
        self._state.set_steps(self._counts())
        return self._buffers


def _functions(
    label: str, layout: SegmentLayout, groups: Mapping[str, str], ops: JaxOps, optimizer: OptimizerStep
) -> NodeFunctions:
    group = groups.get(label, "")
    return NodeFunctions(
        label=label,
        model=ops.model(layout.models[label]),
        trainable=label in groups,
        group=group,
        sharing=tuple(owner for owner, other in groups.items() if other == group and owner != label and group),
        optimizer=optimizer,
    )


def _run(
    step: Callable[..., Any],
    functions: Mapping[str, NodeFunctions],
    before: Mapping[str, Values],
    tables: Mapping[str, Any],
    first: Mapping[str, Any],
    batch: dict[str, Any],
    key: Any,
) -> tuple[dict[str, Values], Any]:
    """Return the step between plain values, so that all the rest is constant, and not returned."""
    base, state = jax.random.wrap_key_data(key), {}
    for number, (label, values) in enumerate(before.items()):
        state[label] = TrainState(
            params=values.params,
            buffers=values.buffers,
            opt_state=values.opt_state,
            step=values.step,
            key=jax.random.fold_in(base, number),
            tables=tables.get(label, {}),
            first=first.get(label, 0),
            functions=functions[label],
        )
    after, figures = check_after(state, step(dict(state), batch))
    return {label: Values(s.params, s.buffers, s.opt_state, s.step) for label, s in after.items()}, figures
