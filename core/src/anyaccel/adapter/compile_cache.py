"""Compiled: the functions of a segment as a framework compiles them, for one program or for several in turn."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import Function
from anyaccel.adapter.optimizer_step import Acts, Updates
from anyaccel.adapter.segment_analysis import Layout, Reach, Wired
from anyaccel.adapter.segment_functions import SegmentFunctions, Step
from anyaccel.adapter.traced_ops import StepLoop, TracedOps, ValueAndPullback
from anyaccel.segment import Segment
from anyaccel.specs import Loss, Optimizer

MAX_SEGMENTS = 32
"""Segments whose compiled functions are kept."""


class Compiled:
    """Functions that are compiled when they are first called; they hold no array of a model.

    Attributes:
        functions: what is compiled.
        acts: what an optimizer step does.
        evaluated: `functions.evaluate`.
        pulled: `functions.run` and the way back.
        proven: the names of those that have worked.
        ready: for what whole steps are compiled.
    """

    def __init__(self, functions: SegmentFunctions, ops: TracedOps, updates: Updates, whole: bool) -> None:
        self.functions = functions
        self.acts = Acts(updates, ops.compile)
        self.evaluated: Function = ops.compile(functions.evaluate) if whole else functions.evaluate
        self.value_and_pullback: Callable[[Any, Any], ValueAndPullback] = (
            ops.compile_value_and_pullback(functions.run) if whole else partial(ops.value_and_pullback, functions.run)
        )
        self.proven: set[str] = set()
        self.ready: set[tuple[int, ...]] = set()
        self._ops = ops
        self._repeated: dict[tuple[int, int, bool], StepLoop] = {}

    def compile_steps(self, batch: int, parts: int, *, quick: bool) -> StepLoop:
        """Whole steps of so many rows and parts."""
        key = (batch, parts, quick)
        if key not in self._repeated:
            self._repeated[key] = self._ops.compile_steps(Step(self.functions, batch, parts), quick=quick)
        return self._repeated[key]


def compiled(wired: Wired, ops: TracedOps, reach: Reach, updates: Updates, whole: bool) -> Compiled:
    """The functions of a segment: those of an earlier program of the same models and recipes if there was one."""
    shared = ops.shareable()
    key = None if shared is None else _signature(wired.segment, wired.layout, ops, whole)
    if shared is None or key is None:
        return Compiled(SegmentFunctions(wired, ops, reach, updates, lambda model: model), ops, updates, whole)
    found = CACHE.get(key)
    return CACHE.keep(key, wired.layout, _apart(wired, shared, reach, whole)) if found is None else found


def _apart(wired: Wired, ops: TracedOps, reach: Reach, whole: bool) -> Compiled:
    """Functions that hold no model but by weak references."""
    segment = wired.segment
    operations = tuple(
        one if one.model is None else replace(one, model=weakref.ref(one.model)) for one in segment.operations
    )
    bare = Wired(replace(segment, operations=operations, states={}), ops, wired.layout.bare())
    updates = Updates(ops, segment.groups)
    return Compiled(SegmentFunctions(bare, ops, reach, updates, lambda held: held()), ops, updates, whole)


class Keeping:
    """What was compiled, by what it was made of, for as long as the models live. The oldest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[Hashable, tuple[Compiled, list[weakref.ref[Any]]]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable) -> Compiled | None:
        """What is kept; it is the youngest now."""
        there = self._found.pop(key, None)
        if there is None:
            return None
        self._found[key] = there
        return there[0]

    def keep(self, key: Hashable, layout: Layout, made: Compiled) -> Compiled:
        """Keep what was made until one of the models is gone."""
        refs = [weakref.ref(model, lambda _: self._found.pop(key, None)) for model in layout.models.values()]
        self._found[key] = (made, refs)
        while len(self._found) > self._most:
            self._found.pop(next(iter(self._found)), None)
        return made


CACHE = Keeping(MAX_SEGMENTS)


# -- what functions depend on ------------------------------------------------------------------------------------------


def _signature(segment: Segment, layout: Layout, ops: TracedOps, whole: bool) -> Hashable | None:
    """Everything that the functions of a segment depend on; None where that is not known."""
    natures = [(id(model), ops.cache_key(model), _arrays(layout, label)) for label, model in layout.models.items()]
    losses = [(one.label, _own(one.loss), one.inputs, one.device, one.weight) for one in segment.losses]
    groups = [(one.name, _own(one.optimizer), one.nodes) for one in segment.groups]
    if any(cache_key is None for _, cache_key, _ in natures) or any(one[1] is None for one in (*losses, *groups)):
        return None
    operations = [replace(one, model=None if one.model is None else id(one.model)) for one in segment.operations]
    inputs = tuple(segment.inputs.items())
    key = (type(ops), whole, tuple(operations), inputs, segment.outputs, segment.needs_pullback)
    found = (*key, tuple(natures), tuple(losses), tuple(groups))
    return found if _is_weak(layout) and _is_hashable(found) else None


def _arrays(layout: Layout, label: str) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Names, shapes and dtypes of parameters."""
    return tuple((name, tuple(one.shape), str(one.dtype)) for name, one in layout.parameters[label].items())


def _own(recipe: Loss | Optimizer) -> Hashable | None:
    """A loss, or an optimizer but for its rates, which are given in each step; None for what may hold a model."""
    settings: Mapping[str, Any] = recipe.kwargs if isinstance(recipe, Loss) else recipe.settings
    if recipe.own is not None and not _is_of_a_module(recipe.own):
        return None
    clip = None if isinstance(recipe, Loss) else recipe.clip_norm
    return (recipe.name, recipe.own, repr(sorted(settings.items())), clip)


def _is_of_a_module(own: Any) -> bool:
    """Whether a class or function is what its module has by this name."""
    module = sys.modules.get(str(getattr(own, "__module__", "")))
    return getattr(module, str(getattr(own, "__qualname__", "")), None) is own


def _is_weak(layout: Layout) -> bool:
    try:
        return all(weakref.ref(model) is not None for model in layout.models.values())
    except TypeError:
        return False


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True
