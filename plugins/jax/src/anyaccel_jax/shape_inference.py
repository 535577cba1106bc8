"""What a model gives for inputs of known shapes, found by tracing it on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from anyaccel.errors import AnyaccelError, ShapeError
from anyaccel.segment import TensorSpec
from anyaccel_jax.error_translation import first_line, telling
from anyaccel_jax.host_transfer import check_dtype
from anyaccel_jax.models.base import Model, outputs_of


def infer(model: Model, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
    """Specifications per sample of what `model` gives for `inputs`; see `Compute.infer`.

    Raises:
        ShapeError: the model does not take the inputs, gives no arrays, or does not keep the batch as first axis.
        MoveError: an input of a dtype that JAX does not hold.
    """
    for spec in inputs:
        check_dtype(spec.dtype)
    try:
        with telling(f"the parameters of a {_shown(model)}"):
            model.build(inputs, seed)
        found = [_outputs(model, inputs, batch) for batch in (2, 3)]
    except AnyaccelError:
        raise
    except Exception as error:
        raise _refused(model, inputs, error) from error
    for batch, outputs in zip((2, 3), found, strict=True):
        for output in outputs:
            if output.ndim < 1 or output.shape[0] != batch:
                raise _no_batch(model, output, batch)
    first, second = (tuple(map(_spec, outputs)) for outputs in found)
    if first != second:
        raise _varying(model, first, second)
    return first


def _outputs(model: Model, inputs: Sequence[TensorSpec], batch: int) -> tuple[Any, ...]:
    """The outputs in evaluation mode, as shapes and dtypes."""
    shaped: Any = jax.ShapeDtypeStruct
    given = [shaped((batch, *spec.shape), getattr(jax.numpy, spec.dtype)) for spec in inputs]

    def evaluated(parameters: Any, buffers: Any, inputs: Any) -> Any:
        return outputs_of(model.apply(parameters, buffers, inputs, False, jax.random.key(0))[0])

    found: tuple[Any, ...] = jax.eval_shape(evaluated, model.parameters, model.buffers, given)
    return found


def _spec(output: Any) -> TensorSpec:
    return TensorSpec(tuple(output.shape[1:]), output.dtype.name)


# -- telling ---------------------------------------------------------------------------------------------------------


def _refused(model: Model, inputs: Sequence[TensorSpec], error: Exception) -> ShapeError:
    remedy = "correct the sizes of the model, or what feeds it"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        remedy = "let the model decide by jax.numpy.where or jax.lax.cond: it is compiled, and sees no values"
    elif any(spec.shape == () for spec in inputs):
        remedy = "a single number a sample arrives as [batch]: store the column as [n, 1] if the model wants [batch, 1]"
    elif isinstance(error, (AttributeError, NameError)):
        remedy = "mend the model; the whole traceback is above"
    asked = f"{_shown(model)} does not take {' and '.join(map(str, inputs)) or 'no input'} per sample"
    return ShapeError(asked, available=first_line(error), hint=remedy)


def _no_batch(model: Model, output: Any, batch: int) -> ShapeError:
    return ShapeError(
        f"{_shown(model)} gives shape {list(output.shape)} for a batch of {batch}",
        available="the first axis of every output must be the batch",
        hint="keep the batch first in what the model gives",
    )


def _varying(model: Model, first: Sequence[TensorSpec], second: Sequence[TensorSpec]) -> ShapeError:
    shown = [", ".join(map(str, specs)) for specs in (first, second)]
    return ShapeError(
        f"{_shown(model)} gives {shown[0]} per sample for a batch of 2 and {shown[1]} for a batch of 3",
        hint="let the model treat every sample alike, whatever the batch",
    )


def _shown(model: Model) -> str:
    return type(model).__name__ if repr(model).startswith("<") else repr(model)
