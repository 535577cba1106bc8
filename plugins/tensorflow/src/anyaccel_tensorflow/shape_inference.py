"""Shapes and dtypes of a model's outputs, found by tracing it; and building models that have no variables yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from anyaccel import rng
from anyaccel.adapter.call_layout import CallLayout, ProbeLayout
from anyaccel.adapter.model_outputs import CODE_ERRORS, call_hint, code_error, input_error, input_hint, probe_outputs
from anyaccel.errors import ENVIRONMENT_ERRORS, AnyaccelError, ShapeError
from anyaccel.segment import OutputSpec, Path, TensorSpec
from anyaccel_tensorflow import runtime_config, variables
from anyaccel_tensorflow.builtin_models import SequentialCNN, SpecModel
from anyaccel_tensorflow.error_translation import first_line, translate_errors
from anyaccel_tensorflow.functional_call import call_model, functional_call, outputs_of
from anyaccel_tensorflow.object_location import device_name_of
from anyaccel_tensorflow.stateless_rng import key_of, seeded
from anyaccel_tensorflow.tf_functions import compiled
from anyaccel_tensorflow.variables import keras, model_variables

# As ENVIRONMENT_ERRORS, of what TensorFlow itself reads and writes.
_OF_FILES = (
    *(tf.errors.NotFoundError, tf.errors.FailedPreconditionError, tf.errors.PermissionDeniedError),
    *(tf.errors.AlreadyExistsError, tf.errors.DataLossError, tf.errors.UnavailableError),
)


def infer_outputs(
    model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
) -> tuple[OutputSpec, ...]:
    """Return the outputs of `model` for `inputs`; see `Compute.infer_outputs`.

    Raises:
        ShapeError: the model does not accept the inputs, returns no tensors, or none with a batch.
    """
    name = type(model).__name__
    if not callable(model):
        raise ShapeError(f"{name} cannot be called", hint="define a __call__ that takes a batch and returns outputs")
    runtime_config.allow_memory_growth()
    keras().refuse_stateful(model)
    layout = ProbeLayout(arguments)
    try:
        with translate_errors(f"a batch through {name}"), tf.device(device_name_of(model) or "/CPU:0"):
            _build(model, inputs, layout, seed)
            snapshot = keras().attribute_snapshot(model)
            try:
                return probe_outputs(
                    name,
                    lambda batch: layout.by_path(_trace(model, inputs, layout, batch)),
                    lambda output: output.dtype.name,
                )
            finally:
                snapshot.restore()
    except (AnyaccelError, *ENVIRONMENT_ERRORS, *_OF_FILES):
        raise
    except CODE_ERRORS as error:
        raise code_error(name, error, first_line(error)) from error
    except Exception as error:
        hint = input_hint(
            inputs,
            is_code_error=not isinstance(error, (ValueError, tf.errors.InvalidArgumentError)),
            dtype=parameter_dtype(model),
            convert="create the model with dtype={dtype!r}",
            error=error,
        )
        raise input_error(name, inputs, first_line(error), call_hint(error) or hint) from error


def infer_training(model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path]) -> tuple[OutputSpec, ...]:
    """Return the outputs of a built model in training mode; see `Compute.infer_training`.

    Raises:
        ShapeError: it returns no tensors then, or none with a batch.
    """
    snapshot, layout = keras().attribute_snapshot(model), ProbeLayout(arguments)
    try:
        with tf.device(device_name_of(model) or "/CPU:0"):
            name, run = f"in training, {type(model).__name__}", partial(_trace, model, inputs, layout, train=True)
            return probe_outputs(name, lambda batch: layout.by_path(run(batch)), lambda output: output.dtype.name)
    except (ShapeError, *ENVIRONMENT_ERRORS, *_OF_FILES):
        raise
    except Exception:  # the first step has the right error
        return ()
    finally:
        snapshot.restore()


def parameter_dtype(model: Any) -> str | None:
    """Return the dtype of the first floating parameter, or the one that an unbuilt model will have."""
    if is_built(model):
        for variable in model_variables(model).parameters.values():
            if tf.as_dtype(variable.dtype).is_floating:
                return str(tf.as_dtype(variable.dtype).name)
    for part in variables.parts(model):
        if isinstance(part, SpecModel):
            return part.spec.dtype
        if keras().is_layer(part) and not hasattr(part, "layers"):
            return keras().unbuilt_dtype(part)
    return None


def is_built(model: Any, held: Iterable[tuple[str, Any]] | None = None) -> bool:
    """Whether a model has its variables, to the extent that can be known: a tf.Module may create them at any time.

    `held` is the result of `keras().walk(model)`, if the caller has it.
    """
    walked = keras().walk(model) if held is None else held
    if any(isinstance(part, SpecModel) and not part.is_built for _, part in walked):
        return False
    return bool(model.built) if keras().is_layer(model) else True


# -- building --------------------------------------------------------------------------------------------------------


def _build(model: Any, inputs: Sequence[TensorSpec], layout: CallLayout, seed: int) -> None:
    """Create missing variables from the seed: by the spec of a model that has one, otherwise by a batch of zeros."""
    if isinstance(model, SpecModel):
        model.build([spec.shape for spec in inputs], seed)
        return
    if keras().is_layer(model) and model.built:
        return
    before = [(variable, variables.read(variable)) for variable in variables.variables_in(model)]
    snapshot = keras().attribute_snapshot(model)
    keras().seed_initializers(model, seed)
    for path, part in variables.named_parts(model):
        if isinstance(part, SpecModel):
            part.initial_seed = rng.key(seed, path)
    with seeded(seed, include_stream=not keras().is_layer(model)):
        outputs_of(call_model(model, [_zeros(spec, 2) for spec in inputs], False, layout), layout)
    for variable, value in before:
        variables.write(variable, value)
    if len(list(variables.variables_in(model))) == len(before):  # nothing had to be built
        snapshot.restore()


def _zeros(spec: TensorSpec, batch: int) -> Any:
    return tf.zeros([batch, *spec.shape], spec.dtype)


# -- tracing ---------------------------------------------------------------------------------------------------------


def _trace(
    model: Any, inputs: Sequence[TensorSpec], layout: CallLayout, batch: int, *, train: bool = False
) -> tuple[Any, ...]:
    """Return the outputs for a batch of this size: symbolic ones, unless their shapes depend on values."""
    call = functional_call(model)
    parameters, buffers = (
        {name: tf.TensorSpec(v.shape, tf.as_dtype(v.dtype)) for name, v in named.items()} for named in call.variables
    )
    specs = [tf.TensorSpec([batch, *spec.shape], spec.dtype) for spec in inputs]
    key = key_of(0) if train else None
    function = compiled(lambda p, b, x: call(p, b, x, train, key, layout)[0])
    outputs = tuple(function.get_concrete_function(parameters, buffers, specs).structured_outputs)
    if all(output.shape.is_fully_defined() for output in outputs):
        return outputs
    values = ({name: variables.read(v) for name, v in named.items()} for named in call.variables)
    return tuple(function(*values, [_zeros(spec, batch) for spec in inputs]))


# -- traits ----------------------------------------------------------------------------------------------------------


def data_format(model: Any) -> tuple[str, str]:
    """Return the format of a Keras layer for images, or of a Sequential that begins or ends with one.

    Other models may move the axes, so their format is unknown.
    """
    if isinstance(model, SequentialCNN):
        return "channels_first", ""
    return keras().data_format(model) if keras().is_layer(model) else ("", "")


def batch_coupling(model: Any) -> str:
    """Return the name of the first class among the parts that normalizes over the batch while it trains, or `""`."""
    for part in variables.parts(model):
        name = next((cls.__name__ for cls in type(part).__mro__ if cls.__name__.startswith("BatchNorm")), "")
        if name and getattr(part, "trainable", True):
            return name
    return ""


def untrainable_reason(model: Any) -> str:
    """Return why a model cannot be trained whole; see `Compute.untrainable_reason`."""
    values = [getattr(variable, "value", variable) for variable in getattr(model, "variables", ())]
    if any(len(getattr(value, "values", ())) > 1 for value in values):  # MirroredVariable and its like
        return (
            "a scope of tf.distribute created its variables on several devices; create it outside of the scope, "
            "and use replicas"
        )
    reason = keras().untrainable_reason(model)
    kind = getattr(getattr(keras().module, "layers", None), "SpectralNormalization", ())
    for path, part in () if reason else variables.named_parts(model):
        if isinstance(part, kind) and part.trainable_variables:
            return f"{path or type(part).__name__} (SpectralNormalization) assigns to a weight that it trains"
    return reason
