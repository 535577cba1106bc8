"""Which kind of model an object is, and how it is looked at as pure functions."""

from __future__ import annotations

from typing import Any

from anyaccel.errors import StateError
from anyaccel_jax.models.base import Model
from anyaccel_jax.tree_utils import comes_from, is_keras, is_nnx


def wrap(model: Any) -> Any:
    """What a node holds for a model: of Linen and Equinox, whose modules are functions only, an object with values."""
    if comes_from(model, "flax.linen.module"):
        from anyaccel_jax.models.linen import Linen

        return Linen(model)
    if comes_from(model, "equinox._module"):
        from anyaccel_jax.models.equinox import Equinox

        return Equinox(model)
    return model


def view(model: Any) -> Model:
    """A model as pure functions, with the values that it has now.

    Raises:
        StateError: it is none, or one that holds no values.
    """
    if isinstance(model, Model):
        return model
    if is_nnx(model):
        from anyaccel_jax.models.nnx import NnxView

        return NnxView(model)
    if is_keras(model):
        from anyaccel_jax.models.keras import KerasView

        return KerasView(model)
    name = f"{type(model).__module__}.{type(model).__name__}"
    raise StateError(f"a {name} holds no values that could be trained", hint=_remedy(model))


def _remedy(model: Any) -> str:
    if comes_from(model, "flax.linen.module"):
        return "wrap it: anyaccel_jax.Linen(module)"
    if comes_from(model, "equinox._module"):
        return "wrap it: anyaccel_jax.Equinox(module)"
    return "give anyaccel_jax.Function(apply, parameters), or a module of Flax, Equinox or Keras"
