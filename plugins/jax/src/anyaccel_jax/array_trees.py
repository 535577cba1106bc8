"""Objects of JAX and its libraries: their owner, the arrays in them, and the same object with other arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any


def comes_from(obj: Any, *modules: str) -> bool:
    """Whether a base of an object's class is defined in one of these modules or packages."""
    names = {str(base.__module__) for base in type(obj).__mro__}
    return any(name == module or name.startswith(f"{module}.") for name in names for module in modules)


def is_nnx(obj: Any) -> bool:
    """Whether an object is one of Flax NNX's, which hold arrays and are changed in place."""
    return comes_from(obj, "flax.nnx.module", "flax.nnx.object", "flax.nnx.pytreelib")


def is_keras(obj: Any) -> bool:
    """Whether an object is a Keras layer, model or variable, and Keras runs on JAX."""
    return comes_from(obj, "keras") and keras_backend() == "jax"


def keras_backend() -> str:
    """Return the framework that Keras runs on; `""` where no one has imported it."""
    keras: Any = sys.modules.get("keras")
    return str(keras.backend.backend()) if hasattr(keras, "backend") else ""


def is_own_model(obj: Any) -> bool:
    """Whether an object is one of this package's models."""
    return comes_from(obj, "anyaccel_jax.models.base")


def arrays_in(obj: Any) -> Iterator[Any]:
    """Yield the arrays that an array, a model, an optimizer or any pytree holds, without tracers."""
    import jax

    for leaf in jax.tree.leaves(_contents(obj)):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            yield leaf


def map_arrays(obj: Any, function: Callable[[Any], Any]) -> Any:
    """Return the object with `function` applied to its arrays: models and NNX objects are changed, pytrees are new.

    An unchanged pytree is returned itself.
    """
    import jax

    def leaf(value: Any) -> Any:
        return function(value) if isinstance(value, jax.Array) else value

    if is_own_model(obj):
        return obj.map_arrays(leaf)
    if is_nnx(obj):
        from flax import nnx

        nnx.update(obj, jax.tree.map(leaf, nnx.state(obj)))
        return obj
    if is_keras(obj):
        for variable in _keras_variables(obj):
            variable.assign(leaf(variable.value))
        return obj
    before, structure = jax.tree.flatten(obj)
    after = [leaf(value) for value in before]
    unchanged = all(new is old for new, old in zip(after, before, strict=True))
    return obj if unchanged else jax.tree.unflatten(structure, after)


def _contents(obj: Any) -> Any:
    """Return a pytree with all that an object holds."""
    if is_own_model(obj):
        return obj.parameters, obj.buffers
    if is_nnx(obj):
        from flax import nnx

        return nnx.state(obj)
    return [variable.value for variable in _keras_variables(obj)] if is_keras(obj) else obj


def _keras_variables(obj: Any) -> list[Any]:
    """Return the variables of a layer or model that have a value; a single variable is its own."""
    variables = obj.variables if hasattr(obj, "variables") else [obj] if hasattr(obj, "value") else []
    return [variable for variable in variables if variable.value is not None]
