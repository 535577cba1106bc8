"""ParameterTree: a model's parameters in the pytree of its library, and the state of Optax for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp

Arrays = Mapping[str, Any]
Slots = Mapping[str, Mapping[str, Any]]
_Paths = dict[tuple[Any, ...], str]


class ParameterTree:
    """A model's parameters in the pytree of its library.

    Args:
        tree: Name of each parameter at its position; None for values that are not trained.
        parameters: Arrays by name.
        source: How users get such a tree, for messages.
        boxed: The same for a new state of an optimizer, if it receives the parameters in boxes, as in Flax NNX.
        unbox: Function that removes the boxes.
        variables: Variables with the parameters as values, by name; none if the library has no such objects.

    Attributes:
        specs: Shapes and dtypes of the parameters, by name.
        source: The argument.
        variables: The argument, held weakly.
    """

    def __init__(
        self,
        tree: Any,
        parameters: Arrays,
        source: str,
        *,
        boxed: Any = None,
        unbox: Callable[[Any], Any] = lambda tree: tree,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        struct: Any = jax.ShapeDtypeStruct
        self.specs = {name: struct(array.shape, array.dtype) for name, array in parameters.items()}
        self.source, self._unbox, self.variables = source, unbox, WeakValueDictionary(variables or {})
        self._names, self._structure = jax.tree.flatten(tree)
        self._boxed = self._structure if boxed is None else jax.tree.structure(boxed)

    def __str__(self) -> str:
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(self.join(self.specs))[0]]
        texts = [jax.tree_util.keystr(path) or "the tree itself" for path in paths[:4]]
        more = f" and {len(paths) - 4} more" if len(paths) > 4 else ""
        return f"{self.source}, with the leaves {', '.join(texts)}{more}"

    def join(self, arrays: Arrays) -> Any:
        """Return the tree with these parameters, and None in the places of others."""
        return jax.tree.unflatten(self._structure, [arrays.get(name) for name in self._names])

    def initial_state(self, init: Callable[[Any], Any], arrays: Arrays) -> Any:
        """Return the state that an optimizer begins with."""
        return self._unbox(init(jax.tree.unflatten(self._boxed, [arrays.get(name) for name in self._names])))

    def split(self, tree: Any, arrays: Arrays) -> dict[str, Any]:
        """The leaves of a tree like `join(arrays)`, by name.

        Raises:
            ValueError: it has another structure.
        """
        names = [name for name in self._names if name in arrays]
        structure: Any = jax.tree.structure(self.join(arrays))
        return dict(zip(names, structure.flatten_up_to(tree), strict=True))

    # -- state of an optimizer, by parameter -----------------------------------------------------------------------

    def split_state(self, state: Any, arrays: Arrays) -> dict[str, dict[str, Any]]:
        """Return the leaves of an Optax state over `join(arrays)`, by parameter and by name of slot.

        A leaf of a parameter is named by its path in the state without the path of the parameter. Leaves of all
        parameters are stored with the first by name. Random keys become their data, which can be saved.
        """
        slots: dict[str, dict[str, Any]] = {name: {} for name in arrays}
        for (name, slot), leaf in self._places(state, arrays):
            slots[name][slot] = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        return slots

    def join_state(self, like: Any, arrays: Arrays, slots: Slots) -> Any:
        """Return the state with these slots, of the structure of another one."""
        leaves = [_as(slots[name][slot], leaf) for (name, slot), leaf in self._places(like, arrays)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _places(self, state: Any, arrays: Arrays) -> list[tuple[tuple[str, str], Any]]:
        """Return the parameter that each leaf of a state belongs to and the name of its slot, and the leaf."""
        tree = self.join({name: name for name in arrays})
        paths: _Paths = dict(jax.tree_util.tree_flatten_with_path(tree)[0])
        kind, first, places = type(tree), min(arrays), []

        def is_like_parameters(node: Any) -> bool:
            return type(node) is kind and _is_like_parameters(node, paths)

        for outer, node in jax.tree_util.tree_flatten_with_path(state, is_leaf=is_like_parameters)[0]:
            for inner, leaf in jax.tree_util.tree_flatten_with_path(node)[0]:
                length = _length_of_owner(inner, paths)
                owner, slot = (first, inner) if length is None else (paths[inner[:length]], inner[length:])
                name = jax.tree_util.keystr((*outer, *slot), simple=True, separator=".").replace("/", "|")
                places.append(((owner, name), leaf))
        return places


def _is_like_parameters(node: Any, paths: _Paths) -> bool:
    """Whether a part of a state, of the type of the parameters' tree, has a leaf or a small tree for each of them."""
    inner = [path for path, _ in jax.tree_util.tree_flatten_with_path(node)[0]]
    if not inner or any(_length_of_owner(path, paths) is None for path in inner):
        return False
    if all(path in paths for path in inner):
        return True
    # parameters in a tuple have the same paths as the states of a chain, which have trees like the parameters inside

    def is_inside(part: Any) -> bool:
        if part is node or type(part) is not type(node):
            return False
        below = [path for path, _ in jax.tree_util.tree_flatten_with_path(part)[0]]
        return bool(below) and all(path in paths for path in below)

    return not any(is_inside(part) for part in jax.tree.leaves(node, is_leaf=is_inside))


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _as(slot: Any, like: Any) -> Any:
    """Return a slot as the leaf of a state."""
    if not _is_key(like):
        return slot
    kinds: list[Any] = []  # a shape does not tell it, an array while tracing does
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(slot, impl=kinds[0])


def _length_of_owner(path: tuple[Any, ...], paths: _Paths) -> int | None:
    """Return how much of a path leads to a parameter."""
    return next((length for length in range(len(path) + 1) if path[:length] in paths), None)
