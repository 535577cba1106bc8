"""Objects of JAX and its libraries: the arrays in them, and the same object with other arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any


def comes_from(obj: Any, *modules: str) -> bool:
    """Whether one of the bases of an object's class comes from one of these modules or packages."""
    names = {str(base.__module__) for base in type(obj).__mro__}
    return any(name == module or name.startswith(f"{module}.") for name in names for module in modules)


def is_nnx(obj: Any) -> bool:
    """Whether an object is one of Flax NNX's own, which hold arrays and are changed in place."""
    return comes_from(obj, "flax.nnx.module", "flax.nnx.object", "flax.nnx.pytreelib")


def is_keras(obj: Any) -> bool:
    """Whether an object is a Keras layer, model or variable, and Keras runs on JAX."""
    return comes_from(obj, "keras") and keras_backend() == "jax"


def keras_backend() -> str:
    """The framework that Keras runs on; `""` where nobody has imported it."""
    keras: Any = sys.modules.get("keras")
    return str(keras.backend.backend()) if hasattr(keras, "backend") else ""


def is_held(obj: Any) -> bool:
    """Whether an object is one of this package's models."""
    return comes_from(obj, "anyaccel_jax.models.base")


def arrays_in(obj: Any) -> Iterator[Any]:
    """The arrays that an array, a model, an optimizer or any pytree holds; what JAX traces is none."""
    import jax

    for leaf in jax.tree.leaves(_content(obj)):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            yield leaf


def mapped(obj: Any, fn: Callable[[Any], Any]) -> Any:
    """The object with `fn` applied to its arrays: models and NNX's objects are changed, pytrees are made anew."""
    import jax

    def leaf(value: Any) -> Any:
        return fn(value) if isinstance(value, jax.Array) else value

    if is_held(obj):
        return obj.mapped(leaf)
    if is_nnx(obj):
        from flax import nnx

        nnx.update(obj, jax.tree.map(leaf, nnx.state(obj)))
        return obj
    if is_keras(obj):
        for variable in _variables(obj):
            variable.assign(leaf(variable.value))
        return obj
    found = [leaf(value) for value in jax.tree.leaves(obj)]
    same = all(one is other for one, other in zip(found, jax.tree.leaves(obj), strict=True))
    return obj if same else jax.tree.unflatten(jax.tree.structure(obj), found)


def _content(obj: Any) -> Any:
    """A pytree with all that an object holds."""
    if is_held(obj):
        return obj.parameters, obj.buffers
    if is_nnx(obj):
        from flax import nnx

        return nnx.state(obj)
    return [variable.value for variable in _variables(obj)] if is_keras(obj) else obj


def _variables(obj: Any) -> list[Any]:
    """Keras's variables that have a value; one alone is its own."""
    found = obj.variables if hasattr(obj, "variables") else [obj] if hasattr(obj, "value") else []
    return [variable for variable in found if variable.value is not None]
