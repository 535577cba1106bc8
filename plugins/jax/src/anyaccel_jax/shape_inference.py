"""Shapes and dtypes of a model's outputs, found by tracing it on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from anyaccel.adapter.call_layout import CallLayout, ProbeLayout
from anyaccel.adapter.model_outputs import CODE_ERRORS, call_hint, code_error, input_error, input_hint, probe_outputs
from anyaccel.errors import ENVIRONMENT_ERRORS, AnyaccelError, ShapeError
from anyaccel.segment import OutputSpec, Path, TensorSpec
from anyaccel_jax.error_translation import first_line, translate_errors
from anyaccel_jax.host_transfer import check_dtype
from anyaccel_jax.models.base import Model


def infer_outputs(
    model: Model, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
) -> tuple[OutputSpec, ...]:
    """Return the outputs of `model` for `inputs`; see `Compute.infer_outputs`.

    Raises:
        ShapeError: the model does not accept the inputs, returns no arrays, or none with a batch.
        MoveError: an input of a dtype that JAX does not keep.
    """
    for spec in inputs:
        check_dtype(spec.dtype)
    name = type(model).__name__ if repr(model).startswith("<") else repr(model)
    layout = ProbeLayout(arguments)
    try:
        with translate_errors(f"the parameters of a {name}"):
            model.build(inputs, seed, layout)
            snapshot = model.attribute_snapshot()
        try:
            return probe_outputs(
                name, lambda batch: layout.by_path(_outputs(model, inputs, layout, batch)), _dtype_name
            )
        finally:
            snapshot.restore()
    except (AnyaccelError, *ENVIRONMENT_ERRORS):
        raise
    except CODE_ERRORS as error:
        raise code_error(name, error, first_line(error)) from error
    except Exception as error:
        raise input_error(name, inputs, first_line(error), _hint(inputs, error)) from error


def infer_training(model: Model, inputs: Sequence[TensorSpec], arguments: Sequence[Path]) -> tuple[OutputSpec, ...]:
    """Return the outputs of a built model in training mode; see `Compute.infer_training`.

    Raises:
        ShapeError: it returns no arrays then, or none with a batch.
    """
    snapshot, layout = model.attribute_snapshot(), ProbeLayout(arguments)
    try:
        run = partial(_outputs, model, inputs, layout, train=True)
        return probe_outputs(f"in training, {model!r}", lambda batch: layout.by_path(run(batch)), _dtype_name)
    except (ShapeError, *ENVIRONMENT_ERRORS):
        raise
    except Exception:  # the first step has the right error
        return ()
    finally:
        snapshot.restore()


def _outputs(
    model: Model, inputs: Sequence[TensorSpec], layout: CallLayout, batch: int, *, train: bool = False
) -> tuple[Any, ...]:
    """Return the outputs, as shapes and dtypes."""
    struct: Any = jax.ShapeDtypeStruct
    structs = [struct((batch, *spec.shape), getattr(jax.numpy, spec.dtype)) for spec in inputs]

    def evaluate(parameters: Any, buffers: Any, inputs: Any) -> Any:
        return model.apply(parameters, buffers, inputs, train, jax.random.key(0), layout)[0]

    outputs: tuple[Any, ...] = jax.eval_shape(evaluate, model.parameters, model.buffers, structs)
    return outputs


def _dtype_name(output: Any) -> str:
    return str(output.dtype.name)


_COLLECTIONS_ARE_MISSING = (  # names of errors of Flax, which need not be imported
    "ScopeCollectionNotFound",
    "ApplyScopeInvalidVariablesTypeError",
    "ApplyScopeInvalidVariablesStructureError",
)


def _hint(inputs: Sequence[TensorSpec], error: Exception) -> str:
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return "use jax.numpy.where or jax.lax.cond for conditions in the model: it is compiled without values"
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return "use functions of jax.numpy instead of numpy in the model: it is compiled without values"
    if type(error).__name__ in _COLLECTIONS_ARE_MISSING:
        return "pass all collections, as module.init returns them: anyaccel_jax.Linen(module, variables)"
    return call_hint(error) or input_hint(inputs, error=error)
