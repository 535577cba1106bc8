"""Step cost: the values that a node keeps for its backward pass, as TensorFlow differentiates it; nothing is
computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from anyaccel.adapter.array_ops import concatenate_vjp
from anyaccel.adapter.segment_functions import SegmentDataflow
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.device import Device
from anyaccel.errors import CapabilityError
from anyaccel.segment import Operation, Segment
from anyaccel_tensorflow.functional_call import is_differentiable
from anyaccel_tensorflow.ops import TensorFlowOps

_SAME_MEMORY = ("Identity", "IdentityN", "StopGradient", "PreventGradient", "Reshape", "ExpandDims", "Squeeze")
_GIVEN = ("Placeholder", "Const", "ReadVariableOp")


class TensorFlowStepCosts(StepCosts):
    """Activations; operations are not counted."""

    def step_cost(self, segment: Segment, batch_size: int) -> StepCost:
        """Return activations only."""
        return StepCost(activations=self.activations(segment, batch_size))

    def activations(self, segment: Segment, batch_size: int) -> dict[str, int]:
        """Count outputs, and values of the forward pass that operations of the backward pass read.

        Raises:
            CapabilityError: the backward pass reads a value without a size, such as the list of a loop.
        """
        ops = _UnmovedOps(segment, lambda device: "/device:CPU:0")
        dataflow = SegmentDataflow(segment, ops)
        kept: dict[str, int] = {}

        def call(op: Operation, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            if op.model is None:
                return tuple(concatenate_vjp(ops, op, inputs).outputs)
            keywords = (dataflow.training_calls if op.trainable else dataflow.calls)[op.label]
            wanted = [name in dataflow.layout.needs_cotangent for name in op.inputs]
            with tf.init_scope():
                specs = {name: (value.shape, value.dtype) for name, value in ops.parameters(op.model).items()}
            graph: Any = tf.compat.v1.get_default_graph()
            parameters = {name: tf.compat.v1.placeholder(dtype, shape) for name, (shape, dtype) in specs.items()}
            stopped = tuple(tf.stop_gradient(x) for x in inputs)
            sources = [*parameters.values(), *(x for x, want in zip(stopped, wanted, strict=True) if want)]
            sources = [source for source in sources if is_differentiable(source)]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                results, _ = ops.apply(
                    op.model, parameters, _buffers(ops, op), stopped, op.trainable, ops.key(0), **keywords
                )
            targets = [x for x in results if is_differentiable(x)]
            before = set(graph.get_operations())
            tape.gradient(targets, sources, [tf.ones_like(x) for x in targets])
            after = [operation for operation in graph.get_operations() if operation not in before]
            read = [x for operation in after for x in operation.inputs if x.op in before]
            constants = {x.ref() for x in stopped}
            made = {x.ref(): x for tensor in [*results, *read] for x in _computed(tensor, constants)}
            kept[op.label] = sum(_size(x) for x in made.values())
            return results

        def run(*inputs: Any) -> None:
            dataflow.run(inputs, call)

        specs = [tf.TensorSpec((batch_size, *spec.shape), spec.dtype) for spec, _ in segment.inputs.values()]
        tf.function(run, autograph=False).get_concrete_function(*specs)
        return kept


class _UnmovedOps(TensorFlowOps):
    """Trace models as parts of one function; nothing moves, so the devices do not have to exist here."""

    def __init__(self, segment: Segment, device_string: Any) -> None:
        super().__init__(segment, device_string)
        self.uses_several_devices = False

    def move(self, array: Any, device: Device) -> Any:
        return array


def _buffers(ops: TensorFlowOps, op: Operation) -> Mapping[str, Any]:
    with tf.init_scope():
        return ops.buffers(op.model)


def _computed(tensor: Any, stopped: set[Any]) -> Iterator[Any]:
    """Yield the tensor whose memory a tensor has; nothing if that was given."""
    while tensor.ref() not in stopped and tensor.op.type in _SAME_MEMORY:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    if tensor.ref() not in stopped and tensor.op.type not in _GIVEN and tensor.dtype != tf.resource:
        yield tensor


def _size(tensor: Any) -> int:
    if tensor.shape.num_elements() is None or tensor.dtype == tf.variant:
        raise CapabilityError(
            f"the backward pass reads {tensor.name}, but its size is unknown before it is computed",
            hint="measure the memory during a run with run.stats",
        )
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)
