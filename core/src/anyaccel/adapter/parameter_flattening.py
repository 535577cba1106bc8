"""Packing: the arrays of small models as vectors while many steps are done, as each operation on an array costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from anyaccel.adapter.array_ops import ArrayOps
from anyaccel.adapter.optimizers import PerParameterRule, UpdateRule

MOST = 2**17
"""Numbers of a model that is packed. What is beyond has more to compute than operations cost."""

Arrays = Mapping[str, Any]
ByOwner = Mapping[str, Arrays]
Shapes = Mapping[str, tuple[int, ...]]


class Packing:
    """Parameters, their gradients and slots by owner; those of some owners as one vector for each dtype.

    A vector goes by the name of its dtype, where arrays would go by theirs.

    Args:
        ops: the framework.
        shapes: by owner and dtype, the shapes of arrays by name, in the order in which they lie in the vector.
    """

    def __init__(self, ops: ArrayOps, shapes: Mapping[str, Mapping[str, Shapes]]) -> None:
        self._ops = ops
        self._shapes = shapes

    def packed(self, arrays: ByOwner) -> dict[str, Any]:
        """Arrays by owner and name, with vectors."""
        return {owner: self._vectors(owner, there) for owner, there in arrays.items()}

    def unpacked(self, arrays: ByOwner) -> dict[str, Any]:
        """The other way."""
        return {owner: self._arrays(owner, there) for owner, there in arrays.items()}

    def packed_slots(self, slots: ByOwner) -> dict[str, Any]:
        """Slots by owner, name and slot, with vectors."""
        return {owner: self._slot_vectors(owner, there) for owner, there in slots.items()}

    def unpacked_slots(self, slots: ByOwner) -> dict[str, Any]:
        """The other way."""
        return {owner: self._slot_arrays(owner, there) for owner, there in slots.items()}

    def _vectors(self, owner: str, there: Arrays) -> Arrays:
        if owner not in self._shapes:
            return there
        return {dtype: self._vector(there, shapes) for dtype, shapes in self._shapes[owner].items()}

    def _vector(self, there: Arrays, shapes: Shapes) -> Any:
        return self._ops.xp.concatenate([self._ops.xp.reshape(there[name], (-1,)) for name in shapes])

    def _arrays(self, owner: str, there: Arrays) -> Arrays:
        if owner not in self._shapes:
            return there
        found: dict[str, Any] = {}
        for dtype, shapes in self._shapes[owner].items():
            begin = 0
            for name, shape in shapes.items():
                end = begin + math.prod(shape)
                found[name] = self._ops.xp.reshape(there[dtype][begin:end], shape)
                begin = end
        return found

    def _slot_vectors(self, owner: str, there: Arrays) -> Arrays:
        if owner not in self._shapes:
            return there
        kinds = _kinds(there)
        each = {kind: self._vectors(owner, {name: slots[kind] for name, slots in there.items()}) for kind in kinds}
        return {dtype: {kind: each[kind][dtype] for kind in kinds} for dtype in self._shapes[owner]}

    def _slot_arrays(self, owner: str, there: Arrays) -> Arrays:
        if owner not in self._shapes:
            return there
        kinds = _kinds(there)
        each = {kind: self._arrays(owner, {dtype: slots[kind] for dtype, slots in there.items()}) for kind in kinds}
        names = [name for shapes in self._shapes[owner].values() for name in shapes]
        return {name: {kind: each[kind][name] for kind in kinds} for name in names}


def packing(ops: ArrayOps, rules: Mapping[str, UpdateRule], parameters: ByOwner, slots: ByOwner) -> Packing:
    """What is packed: small models of several arrays whose rule treats each number by itself.

    Args:
        ops: the framework.
        rules: by owner.
        parameters: by owner and name.
        slots: by owner, name and slot.
    """
    shapes = {
        owner: _shapes(there)
        for owner, there in parameters.items()
        if _fits(rules[owner], there) and _alike(there, slots[owner])
    }
    return Packing(ops, shapes)


def _fits(rule: UpdateRule, there: Arrays) -> bool:
    pointwise = isinstance(rule, PerParameterRule) and rule.pointwise
    size = sum(math.prod(one.shape) for one in there.values())
    return pointwise and len({str(one.dtype) for one in there.values()}) < len(there) and size <= MOST


def _alike(there: Arrays, slots: Mapping[str, Arrays]) -> bool:
    """Whether slots have the dtypes of their parameters."""
    return all(slot.dtype == one.dtype for name, one in there.items() for slot in slots[name].values())


def _shapes(there: Arrays) -> dict[str, dict[str, tuple[int, ...]]]:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, one in there.items():
        found.setdefault(str(one.dtype), {})[name] = tuple(one.shape)
    return found


def _kinds(there: Mapping[str, Arrays]) -> Iterable[str]:
    """The slots of each array."""
    return list(next(iter(there.values())))
