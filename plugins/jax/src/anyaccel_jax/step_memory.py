"""Step memory: the bytes of a step, by the analysis of XLA's compiler; nothing is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from anyaccel.errors import CapabilityError
from anyaccel_jax.error_translation import lowered
from anyaccel_jax.program import JaxProgram
from anyaccel_jax.step_loop import abstract, compiled_memory


class PlannedProgram(JaxProgram):
    """A program that is compiled for a device and never runs.

    Its compiled functions are those of later programs of the segment's models, which do not compile them again.
    """

    def training_memory(self, jax_device: Any, batch_size: int, n_microbatches: int, n_steps: int) -> int:
        """Return the bytes of a training step besides parameters, buffers, optimizer state and columns.

        These are the new state, gradients and activations, and what a run has besides them: the model's arrays from
        the start of the phase, and a snapshot from which steps are repeated.
        """
        if not self.can_compile_steps:
            raise CapabilityError(str(self._compile_error().problem))
        place = partial(abstract, sharding=jax.sharding.SingleDeviceSharding(jax_device))
        n_rows, reached = n_steps * batch_size, self._reached
        columns = [_array((n_rows, *spec.shape), spec.dtype) for spec, _ in self.segment.inputs.values()]
        orders = [_array((n_rows,), "int32")] * len(columns)
        state, rest = jax.tree.map(place, self._abstract_arguments(reached, columns, orders))
        cursor = self._step_cursor(reached, orders, 0, 1, batch_size, n_microbatches)
        taken: int = self._compiled.step_loop(batch_size, n_microbatches, quick=False).memory(state, rest, cursor)  # type: ignore[attr-defined]
        trained = _nbytes((state["parameters"], {owner: state["buffers"][owner] for _, owner in reached}))
        slots = _nbytes(state["slots"])
        if n_steps > 1 or self._traced.donates:
            return taken + trained + (trained + slots)  # the model's, and those of the snapshot
        return taken + trained + (slots if jax_device.platform == "cpu" else 0)  # of the call that compiles the loop

    def _abstract_arguments(
        self, reached: Sequence[tuple[str, str]], columns: Sequence[Any], orders: Sequence[Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return `_step_arguments` without values: slots that do not exist yet are not made."""
        values = self._state.parameters, self._buffers

        def arguments(parameters: Any, buffers: Any, columns: Any, orders: Any) -> Any:
            self._state.parameters, self._buffers = parameters, buffers
            return self._step_arguments(reached, columns, orders)

        try:
            return jax.eval_shape(arguments, *values, columns, orders)  # type: ignore[no-any-return]
        finally:
            self._state.parameters, self._buffers = values

    def forward_memory(self, jax_device: Any, batch_size: int) -> int:
        """Return the bytes of a forward pass besides parameters and buffers: a batch, activations and outputs."""
        place = partial(abstract, sharding=jax.sharding.SingleDeviceSharding(jax_device))
        specs = {name: spec for name, (spec, _) in self.segment.inputs.items()}
        inputs = {name: _array((batch_size, *spec.shape), spec.dtype) for name, spec in specs.items()}
        arguments = jax.tree.map(place, (self._state.parameters, self._buffers, inputs))
        return _nbytes(inputs) + compiled_memory(lowered(self._compiled.evaluate, *arguments))

    def _unshare_state(self) -> None:
        """Share the arrays of the models: nothing destroys them."""


def _array(shape: tuple[int, ...], dtype: str) -> Any:
    make: Any = jax.ShapeDtypeStruct
    return make(shape, jax.dtypes.canonicalize_dtype(dtype))


def _nbytes(tree: Any) -> int:
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in jax.tree.leaves(tree))
