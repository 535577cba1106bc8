"""Step cost: the values that a node keeps for its backward pass, as JAX differentiates it; nothing is computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from anyaccel.adapter.array_ops import concatenate_vjp
from anyaccel.adapter.segment_functions import SegmentDataflow
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.device import Device
from anyaccel.segment import Operation, Segment
from anyaccel_jax.ops import JaxOps


class JaxStepCosts(StepCosts):
    """Activations; operations are not counted."""

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """Return activations only."""
        return StepCost(activations=self.activations(segment, batch_size))

    def activations(self, segment: Segment, batch_size: int) -> dict[str, int]:
        """Count outputs, and residuals of `jax.vjp` that are neither parameters nor inputs."""
        ops = _UnmovedOps()
        dataflow = SegmentDataflow(segment, ops)
        kept: dict[str, int] = {}

        def call(op: Operation, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            if op.model is None:
                return tuple(concatenate_vjp(ops, op, inputs).outputs)
            node = _Node(ops, dataflow, op)
            kept[op.label] = node.kept(inputs)
            return node.outputs(inputs)

        columns = [_abstract((batch_size, *spec.shape), spec.dtype) for spec, _ in segment.inputs.values()]
        jax.eval_shape(lambda *inputs: dataflow.outputs(dataflow.run(inputs, call)), *columns)
        return kept


class _UnmovedOps(JaxOps):
    """Trace models as parts of one function; nothing moves, so the devices do not have to exist here."""

    eager = True

    def __init__(self) -> None:
        super().__init__(_unmoved)


def _unmoved(array: Any, device: Device) -> Any:
    return array


class _Node:
    """An operation with a model in a training step."""

    def __init__(self, ops: JaxOps, dataflow: SegmentDataflow, op: Operation) -> None:
        self._ops, self._op = ops, op
        self._keywords = (dataflow.training_calls if op.trainable else dataflow.calls)[op.label]
        self._wanted = [name in dataflow.layout.needs_cotangent for name in op.inputs]
        self._values = dict(ops.parameters(op.model)), dict(ops.buffers(op.model)), ops.key(0)

    def outputs(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return its outputs."""
        return self._outputs(self._values, inputs)

    def _outputs(self, values: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        parameters, buffers, key = values
        apply, train = self._ops.apply, self._op.trainable
        return apply(self._op.model, parameters, buffers, inputs, train, key, **self._keywords)[0]

    def kept(self, inputs: tuple[Any, ...]) -> int:
        """Return the bytes of the result of `jax.vjp`, without its arguments."""
        active = [
            want and bool(jnp.issubdtype(x.dtype, jnp.inexact)) for want, x in zip(self._wanted, inputs, strict=True)
        ]

        def forward(values: Any, inputs: tuple[Any, ...]) -> Any:
            def differentiated(parameters: Any, traced: list[Any]) -> Any:
                traced_values = iter(traced)
                arguments = tuple(
                    next(traced_values) if is_active else x for x, is_active in zip(inputs, active, strict=True)
                )
                return self._outputs((parameters, *values[1:]), arguments)

            return jax.vjp(
                differentiated, values[0], [x for x, is_active in zip(inputs, active, strict=True) if is_active]
            )

        shapes = jax.tree.map(lambda x: _abstract(x.shape, x.dtype), (self._values, inputs))
        jaxpr = jax.make_jaxpr(forward)(*shapes).jaxpr
        passed = {id(variable) for variable in (*jaxpr.invars, *jaxpr.constvars)}
        made: dict[int, Any] = {id(x): x.aval for x in jaxpr.outvars if isinstance(x, Var) and id(x) not in passed}
        return sum(int(aval.size) * aval.dtype.itemsize for aval in made.values())


def _abstract(shape: tuple[int, ...], dtype: Any) -> Any:
    make: Any = jax.ShapeDtypeStruct
    return make(shape, dtype)
