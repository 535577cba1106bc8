"""Find the model of an object, by the library of its class."""

from __future__ import annotations

from typing import Any

from anyaccel.errors import StateError
from anyaccel_jax.array_trees import comes_from, is_keras, is_nnx
from anyaccel_jax.models.base import Model


def wrap(model: Any) -> Any:
    """Return the object that a node stores for a model: for immutable ones (Linen, Equinox, TrainState), one with
    values.
    """
    if comes_from(model, "flax.linen.module"):
        from anyaccel_jax.models.linen import Linen

        return Linen(model)
    if comes_from(model, "equinox._module"):
        from anyaccel_jax.models.equinox import Equinox

        return Equinox(model)
    if comes_from(model, "flax.training.train_state"):
        from anyaccel_jax.models.flax_train_state import FlaxTrainState

        return FlaxTrainState(model)
    return model


def as_model(model: Any) -> Model:
    """Return a model as a pure function, with its current values.

    Raises:
        StateError: it is not a model, or it holds no values.
    """
    if isinstance(model, Model):
        return model
    if is_nnx(model):
        from anyaccel_jax.models.nnx import NnxModel

        return NnxModel(model)
    if is_keras(model):
        from anyaccel_jax.models.keras import KerasModel

        return KerasModel(model)
    name = f"{type(model).__module__}.{type(model).__name__}"
    if comes_from(model, "flax.linen.module"):
        hint = "wrap it: anyaccel_jax.Linen(module)"
    elif comes_from(model, "equinox._module"):
        hint = "wrap it: anyaccel_jax.Equinox(module)"
    else:
        hint = "pass anyaccel_jax.Function(apply, parameters), or a module of Flax, Equinox or Keras"
    raise StateError(f"a {name} has no trainable values", hint=hint)
