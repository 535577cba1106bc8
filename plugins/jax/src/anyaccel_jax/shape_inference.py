"""Shapes and dtypes of a model's outputs, found by tracing it on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from anyaccel.adapter.model_outputs import input_error, input_hint, probe_output_specs
from anyaccel.errors import AnyaccelError, ShapeError
from anyaccel.segment import TensorSpec
from anyaccel_jax.error_translation import first_line, translate_errors
from anyaccel_jax.host_transfer import check_dtype
from anyaccel_jax.models.base import Model, outputs_of


def infer(model: Model, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
    """Specs per sample of what `model` returns for `inputs`; see `Compute.infer`.

    Raises:
        ShapeError: the model does not accept the inputs, returns no arrays, or does not keep the batch as first axis.
        MoveError: an input of a dtype that JAX does not keep.
    """
    for spec in inputs:
        check_dtype(spec.dtype)
    name = type(model).__name__ if repr(model).startswith("<") else repr(model)
    try:
        with translate_errors(f"the parameters of a {name}"):
            model.build(inputs, seed)
            snapshot = model.attribute_snapshot()
        try:
            return probe_output_specs(name, lambda batch: _outputs(model, inputs, batch), _spec_of)
        finally:
            snapshot.restore()
    except AnyaccelError:
        raise
    except Exception as error:
        raise input_error(name, inputs, first_line(error), _hint(inputs, error)) from error


def infer_training(model: Model, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Specs per sample of what a built model returns in training mode; see `Compute.infer_training`.

    Raises:
        ShapeError: it returns no arrays then, or does not keep the batch as first axis.
    """
    snapshot = model.attribute_snapshot()
    try:
        return probe_output_specs(
            f"in training, {model!r}", lambda batch: _outputs(model, inputs, batch, train=True), _spec_of
        )
    except ShapeError:
        raise
    except Exception:  # the first step has the right error
        return ()
    finally:
        snapshot.restore()


def _outputs(model: Model, inputs: Sequence[TensorSpec], batch: int, *, train: bool = False) -> tuple[Any, ...]:
    """The outputs, as shapes and dtypes."""
    struct: Any = jax.ShapeDtypeStruct
    given = [struct((batch, *spec.shape), getattr(jax.numpy, spec.dtype)) for spec in inputs]

    def evaluate(parameters: Any, buffers: Any, inputs: Any) -> Any:
        return outputs_of(model.apply(parameters, buffers, inputs, train, jax.random.key(0))[0])

    outputs: tuple[Any, ...] = jax.eval_shape(evaluate, model.parameters, model.buffers, given)
    return outputs


def _spec_of(output: Any) -> TensorSpec:
    return TensorSpec(tuple(output.shape[1:]), output.dtype.name)


def _hint(inputs: Sequence[TensorSpec], error: Exception) -> str:
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return "use jax.numpy.where or jax.lax.cond for decisions in the model: it is compiled, and sees no values"
    return input_hint(inputs, is_code_error=isinstance(error, (AttributeError, NameError)))
