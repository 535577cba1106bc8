"""CustomStep: a custom training step on the state of a program: a pure function, compiled where possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from anyaccel.adapter import values_of
from anyaccel.adapter.compile_cache import python_values
from anyaccel.adapter.custom_step import StepCompiler, UpdateTables, check_arguments
from anyaccel.adapter.optimizer_step import OptimizerStep
from anyaccel.adapter.parameter_state import ParameterState
from anyaccel.adapter.segment_functions import SegmentLayout
from anyaccel.segment import Segment
from anyaccel_jax.models.base import LIBRARIES
from anyaccel_jax.ops import JaxOps
from anyaccel_jax.train_state import NodeFunctions, TrainState, check_after

_EXAMPLE = "def step(state, batch): ... return {**state, 'NODE': changed}, {'loss': loss}"


class Values(NamedTuple):
    """The values of a node that a step changes."""

    params: dict[str, Any]
    buffers: dict[str, Any]
    opt_state: dict[str, dict[str, Any]]
    step: Any


class CustomStep:
    """A custom step.

    Args:
        step: Function of (state, batch).
        segment: The segment to train.
        ops: Ops of the program.
        layout: Layout of the segment.
        state: Parameters and optimizer state, which the steps change.
        off: Do not compile.

    Raises:
        PhaseError: the function does not take these arguments.
    """

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
        check_arguments(step, ("state", "batch"), _EXAMPLE)
        self.step, self._state = step, state
        self._groups = {owner: group for group, owners in layout.groups.items() for owner in owners}
        self._functions = {
            label: _functions(label, layout, self._groups, ops, state.optimizer) for label in layout.models
        }
        devices = layout.owner_device
        self._tables = UpdateTables(
            {owner: state.optimizer.rules[group] for owner, group in self._groups.items()},
            lambda owner, column: ops.move(jnp.asarray(column), devices[owner]),
        )
        self._steps: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {}

        def read() -> Any:
            own = tuple((f"{path} of the step", key) for path, key in values_of("step", step, LIBRARIES))
            return (*python_values(segment, ops, lambda model: model), *own)

        self._compiler = StepCompiler(read, jax.jit, off=off or ops.eager)
        self._run = partial(_run, step, self._functions)

    def begin(self, buffers: Mapping[str, Mapping[str, Any]]) -> None:
        self._buffers = {label: dict(buffers[label]) for label in self._functions}
        self._steps = {owner: np.int32(self._state.states[owner].step) for owner in self._groups}
        self._tables.invalidate()

    def run(self, batch: Mapping[str, Any], key: Any) -> Any:
        """Return the figures of the step; the state is changed.

        Args:
            batch: Columns by name.
            key: Random key of the step, as data.

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
        """Write the state to the program and return the buffers, after waiting for the last step."""
        self._state.set_steps(self._counts())
        return self._buffers

    def begin_epoch(self) -> None:
        self._tables.invalidate()

    def renew(self) -> list[str]:
        """Return names of the Python values that have changed since the step was compiled, which is then done again."""
        return self._compiler.renew()

    def close(self) -> None:
        """Do nothing."""


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
