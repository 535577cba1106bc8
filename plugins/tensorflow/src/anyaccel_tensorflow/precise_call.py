"""Calls of models in another precision, and calls whose values are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from anyaccel.adapter import ArrayOps
from anyaccel.adapter.call_layout import POSITIONAL, CallLayout
from anyaccel.adapter.precision_casts import apply_in_precision
from anyaccel.precision import NodePrecision
from anyaccel_tensorflow.functional_call import FunctionalCall, OutputsAndBuffers, StatelessCall, is_differentiable
from anyaccel_tensorflow.variables import keras


class InPrecision:
    """A `FunctionalCall` computed in a precision: layers of Keras by their dtype policies, other models by casts."""

    def __init__(self, ops: ArrayOps, call: FunctionalCall, precision: NodePrecision) -> None:
        self._ops, self._call, self._precision = ops, call, precision

    def __call__(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        """As of `FunctionalCall`."""

        def apply(parameters: Any, buffers: Any, inputs: Any) -> OutputsAndBuffers:
            return self._call(parameters, buffers, inputs, train, key, layout)

        scope: AbstractContextManager[None] | None = None
        if isinstance(self._call, StatelessCall):
            scope = keras().computing_in(self._call.model, self._precision)
        dtype = tf.as_dtype(self._precision.dtype)
        outputs, after = apply_in_precision(
            self._ops, self._precision, dtype, apply, parameters, buffers, tuple(inputs), scope
        )
        return outputs, None if after is None else dict(after)


class Recomputed:
    """A call that keeps only what it is given for its backward pass, which calls it again."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(
        self,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: Sequence[Any],
        train: bool,
        key: Any,
        layout: CallLayout = POSITIONAL,
    ) -> OutputsAndBuffers:
        """As of `FunctionalCall`, by `tf.recompute_grad`."""
        sources = [*parameters.values(), *(x for x in inputs if is_differentiable(x))]
        kept: list[Any] = []

        def run(*arrays: Any) -> Any:
            named = dict(zip(parameters, arrays, strict=False))
            floating = iter(arrays[len(named) :])
            given = [next(floating) if is_differentiable(x) else x for x in inputs]
            outputs, after = self._call(named, buffers, given, train, key, layout)
            kept[:] = [outputs, after]
            return tf.nest.flatten((tuple(x for x in outputs if is_differentiable(x)), () if after is None else after))

        flat = tf.recompute_grad(run)(*sources)
        flat = list(flat) if isinstance(flat, (list, tuple)) else [flat]
        outputs, after = kept
        count = sum(is_differentiable(x) for x in outputs)
        values = iter(flat[:count])
        packed = None if after is None else tf.nest.pack_sequence_as(after, flat[count:])
        return tuple(next(values) if is_differentiable(x) else x for x in outputs), packed
