"""What a model gives for inputs of known shapes, found by tracing it; and building what is unbuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from anyaccel import rng
from anyaccel.errors import AnyaccelError, ShapeError
from anyaccel.segment import TensorSpec
from anyaccel_tensorflow import runtime_config, variables
from anyaccel_tensorflow.builtin_models import FromRecipe, SequentialCNN
from anyaccel_tensorflow.error_translation import first_line, telling
from anyaccel_tensorflow.functional_call import call_of, called, outputs_of
from anyaccel_tensorflow.stateless_rng import seeded
from anyaccel_tensorflow.tf_functions import compiled
from anyaccel_tensorflow.tree_utils import first_string


def infer(model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
    """Specifications per sample of what `model` gives for `inputs`; see `Compute.infer`.

    Raises:
        ShapeError: the model does not take the inputs, gives no tensors, or does not keep the batch as first axis.
    """
    if not callable(model):
        raise ShapeError(
            f"{type(model).__name__} cannot be called", hint="give it a __call__ that takes a batch and gives outputs"
        )
    runtime_config.begin()
    try:
        with telling(f"a batch through {type(model).__name__}"), tf.device(first_string(model) or "/CPU:0"):
            _build(model, inputs, seed)
            found = [_traced(model, inputs, batch) for batch in (2, 3)]
    except AnyaccelError:
        raise
    except Exception as error:
        raise _refused(model, inputs, error) from error
    for batch, outputs in zip((2, 3), found, strict=True):
        for output in outputs:
            if output.shape.rank is None or output.shape.rank < 1 or output.shape[0] != batch:
                raise _no_batch(model, output, batch)
    first, second = (tuple(map(_spec, outputs)) for outputs in found)
    if first != second:
        raise _varying(model, first, second)
    return first


def _spec(output: Any) -> TensorSpec:
    return TensorSpec(tuple(output.shape[1:]), output.dtype.name)


def wanted_dtype(model: Any) -> str | None:
    """Dtype of the first floating parameter, or that which an unbuilt model will have."""
    held = variables.held(model) if is_built(model) else variables.Held({}, {})
    for variable in held.parameters.values():
        return str(tf.as_dtype(variable.dtype).name)
    for part in variables.parts(model):
        if isinstance(part, FromRecipe):
            return part.recipe.dtype
        if variables.is_layer(part) and not hasattr(part, "layers"):  # a model's own says nothing of its layers'
            return str(part.variable_dtype) if "float" in str(part.variable_dtype) else None
    return None


def is_built(model: Any) -> bool:
    """Whether a model has its variables, as far as it can be told: a tf.Module may make them when it likes."""
    if variables.is_layer(model):
        return bool(model.built) and not _unbuilt(model)
    return not _unbuilt(model)


def _unbuilt(model: Any) -> list[FromRecipe]:
    return [part for part in variables.parts(model) if isinstance(part, FromRecipe) and not part.is_built]


# -- building --------------------------------------------------------------------------------------------------------


def _build(model: Any, inputs: Sequence[TensorSpec], seed: int) -> None:
    """Make the variables of what is unbuilt: ours by their recipes, others by a batch of zeros, from the seed."""
    if isinstance(model, FromRecipe):
        model.build([spec.shape for spec in inputs], seed)
        return
    if variables.is_layer(model) and model.built:
        return
    before = {id(variable): (variable, variables.read(variable)) for _, variable in variables.walk(model)}
    for path, part in variables.named_parts(model):
        _reseed(part, rng.key(seed, path))
    with seeded(seed, stream=not variables.is_layer(model)):
        outputs_of(called(model, [_zeros(spec) for spec in inputs], train=False))
    for variable, value in before.values():
        variables.write(variable, value)


def _reseed(part: Any, key: int) -> None:
    """Let what an unbuilt layer draws for its weights follow from a key, unless the user has given it a seed."""
    if isinstance(part, FromRecipe):
        part.initial_seed = key
    if not variables.is_layer(part) or part.built:
        return
    for name, value in vars(part).items():
        if isinstance(value, variables.keras().initializers.Initializer) and _is_unseeded(value):
            value.seed = rng.key(key, name) % 2**31


def _is_unseeded(initializer: Any) -> bool:
    try:
        return hasattr(initializer, "seed") and initializer.get_config().get("seed", 0) is None
    except NotImplementedError:  # one of the user's own, which is asked for no configuration
        return False


def _zeros(spec: TensorSpec, batch: int = 2) -> Any:
    return tf.zeros([batch, *spec.shape], spec.dtype)


# -- tracing ---------------------------------------------------------------------------------------------------------


def _traced(model: Any, inputs: Sequence[TensorSpec], batch: int) -> tuple[Any, ...]:
    """The outputs for a batch of this size in evaluation mode, which have shapes and dtypes, but no values."""
    call = call_of(model)
    parameters, buffers = ({name: _shape_of(one) for name, one in held.items()} for held in call.held)
    given = [tf.TensorSpec([batch, *spec.shape], spec.dtype) for spec in inputs]
    function = compiled(lambda p, b, x: call(p, b, x, False, None)[0])
    found = tuple(function.get_concrete_function(parameters, buffers, given).structured_outputs)
    if all(output.shape.is_fully_defined() for output in found):
        return found
    values = ({name: variables.read(one) for name, one in held.items()} for held in call.held)
    return tuple(function(*values, [_zeros(spec, batch) for spec in inputs]))


def _shape_of(variable: Any) -> tf.TensorSpec:
    return tf.TensorSpec(variable.shape, tf.as_dtype(variable.dtype))


# -- images ----------------------------------------------------------------------------------------------------------


def layout(model: Any) -> tuple[str, str]:
    """As `Compute.layout`: of a Keras layer for images, or a Sequential that begins or ends with one.

    Of other models nothing is said: they may move the axes.
    """
    if isinstance(model, SequentialCNN):
        return "channels_first", ""
    layers = [layer for layer in _flat(model) if not _is_elementwise(layer)] if variables.is_layer(model) else []
    first, last = (_format(end[0]) if end else "" for end in (layers[:1], layers[-1:]))
    return first, "" if layers and "Global" in type(layers[-1]).__name__ else last


def _flat(layer: Any) -> list[Any]:
    inner = layer.layers if isinstance(layer, variables.keras().Sequential) else []
    return [one for part in inner for one in _flat(part)] or [layer]


def _format(layer: Any) -> str:
    words = ("Conv", "Pooling", "UpSampling", "ZeroPadding", "Cropping")
    return str(getattr(layer, "data_format", "")) if any(word in type(layer).__name__ for word in words) else ""


def _is_elementwise(layer: Any) -> bool:
    return any(word in type(layer).__module__ for word in ("keras.src.layers.activations", "layers.regularization"))


# -- telling ---------------------------------------------------------------------------------------------------------


def _refused(model: Any, inputs: Sequence[TensorSpec], error: Exception) -> ShapeError:
    wanted = wanted_dtype(model)
    other = next((spec.dtype for spec in inputs if wanted not in (None, spec.dtype)), None)
    remedy = "correct the sizes of the model, or what feeds it"
    if any(spec.shape == () for spec in inputs):
        remedy = "a single number a sample arrives as [batch]: store the column as [n, 1] if the model wants [batch, 1]"
    elif not isinstance(error, (ValueError, tf.errors.InvalidArgumentError)):
        remedy = "mend the model's call; the whole traceback is above"
    elif other is not None and "int" in other:
        remedy = f"cast the data: feature_set.cast({{...: {wanted!r}}}, keep_splits=True)"
    elif other is not None:
        remedy = f"give {wanted} inputs if the dtype is in the way, or make the model with dtype={other!r}"
    asked = f"{type(model).__name__} does not take {' and '.join(map(str, inputs)) or 'no input'} per sample"
    return ShapeError(asked, available=first_line(error), hint=remedy)


def _no_batch(model: Any, output: Any, batch: int) -> ShapeError:
    return ShapeError(
        f"{type(model).__name__} gives shape {output.shape} for a batch of {batch}",
        available="the first axis of every output must be the batch",
        hint="keep the batch first in what the model gives",
    )


def _varying(model: Any, first: Sequence[TensorSpec], second: Sequence[TensorSpec]) -> ShapeError:
    shown = [", ".join(map(str, specs)) for specs in (first, second)]
    return ShapeError(
        f"{type(model).__name__} gives {shown[0]} per sample for a batch of 2 and {shown[1]} for a batch of 3",
        hint="let the model treat every sample alike, whatever the batch",
    )


def mixes(model: Any) -> str:
    """The name of the first class among the parts that normalizes over the batch while it trains, or `""`."""
    for part in variables.parts(model):
        name = next((cls.__name__ for cls in type(part).__mro__ if cls.__name__.startswith("BatchNorm")), "")
        if name and getattr(part, "trainable", True):
            return name
    return ""
