"""ParameterFlattening: the arrays of small models as one vector each while many steps run, as every operation costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps
from anyaccel.adapter.optimizers import UpdateRule

MAX_SIZE = 2**17
"""Elements of a model that is flattened; the arithmetic of a larger one outweighs the overhead of its operations."""

Arrays = Mapping[str, Any]
ByOwner = Mapping[str, Arrays]
Shapes = Mapping[str, tuple[int, ...]]


class ParameterFlattening:
    """Converts parameters, gradients and slots by owner: those of some owners to one vector per dtype, and back.

    A vector has the name of its dtype in place of the names of its arrays.

    Args:
        ops: the framework.
        shapes: by owner and dtype, the shapes of arrays by name, in their order in the vector; other owners stay.
    """

    def __init__(self, ops: ArrayOps, shapes: Mapping[str, Mapping[str, Shapes]]) -> None:
        self._ops = ops
        self._shapes = shapes

    def flatten(self, arrays: ByOwner) -> dict[str, Any]:
        """Arrays by owner and name, as vectors."""
        return {owner: self._vectors(owner, named) for owner, named in arrays.items()}

    def unflatten(self, arrays: ByOwner) -> dict[str, Any]:
        """The inverse of `flatten`."""
        return {owner: self._arrays(owner, vectors) for owner, vectors in arrays.items()}

    def flatten_slots(self, slots: ByOwner) -> dict[str, Any]:
        """Slots by owner, name and slot, as vectors."""
        return {owner: self._slot_vectors(owner, named) for owner, named in slots.items()}

    def unflatten_slots(self, slots: ByOwner) -> dict[str, Any]:
        """The inverse of `flatten_slots`."""
        return {owner: self._slot_arrays(owner, vectors) for owner, vectors in slots.items()}

    def _vectors(self, owner: str, arrays: Arrays) -> Arrays:
        if owner not in self._shapes:
            return arrays
        return {dtype: self._vector(arrays, shapes) for dtype, shapes in self._shapes[owner].items()}

    def _vector(self, arrays: Arrays, shapes: Shapes) -> Any:
        return self._ops.xp.concatenate([self._ops.xp.reshape(arrays[name], (-1,)) for name in shapes])

    def _arrays(self, owner: str, vectors: Arrays) -> Arrays:
        if owner not in self._shapes:
            return vectors
        arrays: dict[str, Any] = {}
        for dtype, shapes in self._shapes[owner].items():
            begin = 0
            for name, shape in shapes.items():
                end = begin + math.prod(shape)
                arrays[name] = self._ops.xp.reshape(vectors[dtype][begin:end], shape)
                begin = end
        return arrays

    def _slot_vectors(self, owner: str, arrays: Arrays) -> Arrays:
        if owner not in self._shapes:
            return arrays
        slots = _slot_names(arrays)
        each = {slot: self._vectors(owner, {name: kept[slot] for name, kept in arrays.items()}) for slot in slots}
        return {dtype: {slot: each[slot][dtype] for slot in slots} for dtype in self._shapes[owner]}

    def _slot_arrays(self, owner: str, vectors: Arrays) -> Arrays:
        if owner not in self._shapes:
            return vectors
        slots = _slot_names(vectors)
        each = {slot: self._arrays(owner, {dtype: kept[slot] for dtype, kept in vectors.items()}) for slot in slots}
        names = [name for shapes in self._shapes[owner].values() for name in shapes]
        return {name: {slot: each[slot][name] for slot in slots} for name in names}


def plan_flattening(
    ops: ArrayOps, rules: Mapping[str, UpdateRule], parameters: ByOwner, slots: ByOwner
) -> ParameterFlattening:
    """Flatten small models of several arrays whose update rule is elementwise.

    Args:
        ops: the framework.
        rules: by owner.
        parameters: by owner and name.
        slots: by owner, name and slot.
    """
    shapes = {
        owner: _shapes_by_dtype(arrays)
        for owner, arrays in parameters.items()
        if _is_worth_it(rules[owner], arrays) and _have_own_dtype(slots[owner], arrays)
    }
    return ParameterFlattening(ops, shapes)


def _is_worth_it(rule: UpdateRule, arrays: Arrays) -> bool:
    size = sum(math.prod(array.shape) for array in arrays.values())
    return rule.elementwise and len({str(array.dtype) for array in arrays.values()}) < len(arrays) and size <= MAX_SIZE


def _have_own_dtype(slots: Mapping[str, Arrays], arrays: Arrays) -> bool:
    """Whether slots have the dtypes of their parameters."""
    return all(slot.dtype == array.dtype for name, array in arrays.items() for slot in slots[name].values())


def _shapes_by_dtype(arrays: Arrays) -> dict[str, dict[str, tuple[int, ...]]]:
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, array in arrays.items():
        shapes.setdefault(str(array.dtype), {})[name] = tuple(array.shape)
    return shapes


def _slot_names(arrays: Mapping[str, Arrays]) -> Iterable[str]:
    return list(next(iter(arrays.values())))
