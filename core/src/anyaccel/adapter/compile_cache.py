"""CompileCache: the compiled functions of segments, shared by the programs of the same models in turn."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from anyaccel.adapter.array_ops import Function
from anyaccel.adapter.optimizer_step import CompiledOptimizerStep, OptimizerStep
from anyaccel.adapter.segment_analysis import GradientFlow, SegmentDataflow, SegmentLayout
from anyaccel.adapter.segment_functions import SegmentFunctions, TrainStep
from anyaccel.adapter.traced_ops import StepLoop, TracedOps, ValueAndPullback
from anyaccel.segment import Segment
from anyaccel.specs import Loss, Optimizer

MAX_SEGMENTS = 32


class CompiledSegment:
    """The functions of a segment, each compiled at its first call. They hold no arrays of a model.

    Args:
        functions: what is compiled.
        ops: the framework.
        optimizer: what an optimizer step computes.
        as_a_whole: whether functions of the whole segment may be compiled.

    Attributes:
        functions: what is compiled.
        optimizer_functions: of an optimizer step.
        evaluate: `SegmentFunctions.evaluate`.
        forward: `SegmentFunctions.forward` with its pullback.
        proven: names of the functions that have run compiled.
        ready: batch shapes for which whole steps are compiled.
    """

    def __init__(self, functions: SegmentFunctions, ops: TracedOps, optimizer: OptimizerStep, as_a_whole: bool) -> None:
        self.functions = functions
        self.optimizer_functions = CompiledOptimizerStep(optimizer, ops.compile)
        self.evaluate: Function = ops.compile(functions.evaluate) if as_a_whole else functions.evaluate
        self.forward: Callable[[Any, Any], ValueAndPullback] = (
            ops.compile_value_and_pullback(functions.forward)
            if as_a_whole
            else partial(ops.value_and_pullback, functions.forward)
        )
        self.proven: set[str] = set()
        self.ready: set[tuple[int, ...]] = set()
        self._ops = ops
        self._step_loops: dict[tuple[int, int, bool], StepLoop] = {}

    def step_loop(self, batch_size: int, n_microbatches: int, *, quick: bool) -> StepLoop:
        """The loop over whole steps, as of `TracedOps.compile_steps`."""
        key = (batch_size, n_microbatches, quick)
        if key not in self._step_loops:
            step = TrainStep(self.functions, batch_size, n_microbatches)
            self._step_loops[key] = self._ops.compile_steps(step, quick=quick)
        return self._step_loops[key]


def compiled_segment(
    dataflow: SegmentDataflow, ops: TracedOps, flow: GradientFlow, optimizer: OptimizerStep, as_a_whole: bool
) -> CompiledSegment:
    """The compiled functions of a segment; those of an earlier program with equal models and specs if any."""
    shareable = ops.shareable()
    key = None if shareable is None else _cache_key(dataflow.segment, dataflow.layout, ops, as_a_whole)
    if shareable is None or key is None:
        functions = SegmentFunctions(dataflow, ops, flow, optimizer, lambda model: model)
        return CompiledSegment(functions, ops, optimizer, as_a_whole)
    cached = CACHE.get(key)
    if cached is None:
        cached = _without_models(dataflow, shareable, flow, as_a_whole)
        CACHE.add(key, dataflow.layout, cached)
    return cached


def _without_models(dataflow: SegmentDataflow, ops: TracedOps, flow: GradientFlow, as_a_whole: bool) -> CompiledSegment:
    """Compiled functions that refer to models weakly."""
    segment = dataflow.segment
    operations = tuple(
        op if op.model is None else replace(op, model=weakref.ref(op.model)) for op in segment.operations
    )
    weak = SegmentDataflow(replace(segment, operations=operations, states={}), ops, dataflow.layout.without_models())
    optimizer = OptimizerStep(ops, segment.groups)
    functions = SegmentFunctions(weak, ops, flow, optimizer, lambda reference: reference())
    return CompiledSegment(functions, ops, optimizer, as_a_whole)


class CompileCache:
    """Compiled segments by key, each until one of its models is freed; the least recently used goes first."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._entries: dict[Hashable, tuple[CompiledSegment, list[weakref.ref[Any]]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> CompiledSegment | None:
        """The entry, now the most recently used."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._entries[key] = entry
        return entry[0]

    def add(self, key: Hashable, layout: SegmentLayout, compiled: CompiledSegment) -> None:
        """Keep a compiled segment until one of the layout's models is freed."""
        references = [weakref.ref(model, lambda _: self._entries.pop(key, None)) for model in layout.models.values()]
        self._entries[key] = (compiled, references)
        while len(self._entries) > self._max_segments:
            self._entries.pop(next(iter(self._entries)), None)


CACHE = CompileCache(MAX_SEGMENTS)


# -- keys --------------------------------------------------------------------------------------------------------------


def _cache_key(segment: Segment, layout: SegmentLayout, ops: TracedOps, as_a_whole: bool) -> Hashable | None:
    """Everything that the functions of a segment depend on; None where that is not known."""
    models = [
        (id(model), ops.cache_key(model), _parameter_specs(layout, label)) for label, model in layout.models.items()
    ]
    losses = [(term.label, _spec_key(term.loss), term.inputs, term.device, term.weight) for term in segment.losses]
    groups = [(group.name, _spec_key(group.optimizer), group.nodes) for group in segment.groups]
    if any(entry[1] is None for entry in (*models, *losses, *groups)):
        return None
    operations = [replace(op, model=None if op.model is None else id(op.model)) for op in segment.operations]
    values = (tuple(segment.inputs.items()), segment.outputs, segment.needs_pullback)
    key = (type(ops), as_a_whole, tuple(operations), values, tuple(models), tuple(losses), tuple(groups))
    return key if _has_weak_references(layout) and _is_hashable(key) else None


def _parameter_specs(layout: SegmentLayout, label: str) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((name, tuple(array.shape), str(array.dtype)) for name, array in layout.parameters[label].items())


def _spec_key(spec: Loss | Optimizer) -> Hashable | None:
    """Of a loss, or of an optimizer without its rates, which are given in each step; None if it may hold a model."""
    settings: Mapping[str, Any] = spec.kwargs if isinstance(spec, Loss) else spec.settings
    if spec.own is not None and not _is_module_attribute(spec.own):
        return None
    clip_norm = None if isinstance(spec, Loss) else spec.clip_norm
    return (spec.name, spec.own, repr(sorted(settings.items())), clip_norm)


def _is_module_attribute(obj: Any) -> bool:
    """Whether a class or function is what its module has under its name."""
    module = sys.modules.get(str(getattr(obj, "__module__", "")))
    return getattr(module, str(getattr(obj, "__qualname__", "")), None) is obj


def _has_weak_references(layout: SegmentLayout) -> bool:
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
