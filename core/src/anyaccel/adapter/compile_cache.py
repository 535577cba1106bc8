"""CompileCache: the compiled functions of segments, which later programs of the same models reuse."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar

from anyaccel.adapter.array_ops import Function
from anyaccel.adapter.optimizer_step import CompiledOptimizerStep, OptimizerStep
from anyaccel.adapter.parameter_state import ParameterState
from anyaccel.adapter.python_values import Incomparable, ValueReader, Values, changed_paths
from anyaccel.adapter.segment_functions import GradientFlow, SegmentDataflow, SegmentFunctions, SegmentLayout, TrainStep
from anyaccel.adapter.traced_ops import StepLoop, TracedOps, ValueAndPullback
from anyaccel.errors import AnyaccelError
from anyaccel.segment import Segment

MAX_SEGMENTS = 32


class CompiledSegment:
    """The functions of a segment, each compiled at its first call. They hold no arrays of a model.

    Args:
        functions: Functions to compile.
        ops: The framework.
        optimizer: Computation of an optimizer step.
        as_a_whole: Whether functions of the whole segment may be compiled.

    Attributes:
        functions: Functions to compile.
        optimizer_functions: Functions of an optimizer step.
        evaluate: `SegmentFunctions.evaluate`.
        forward: `SegmentFunctions.forward` with its pullback.
        proven: Names of the functions that have run compiled.
        ready: Batch shapes with compiled steps.
        watch: Python values that the functions read.
    """

    def __init__(
        self,
        functions: SegmentFunctions,
        ops: TracedOps,
        optimizer: OptimizerStep,
        as_a_whole: bool,
        watch: CompileWatch,
    ) -> None:
        self.functions, self.watch = functions, watch
        if as_a_whole:
            functions.tracing = watch.tracing
        else:  # models are compiled one by one, at any time
            watch.is_traced = True
        self.optimizer_functions = CompiledOptimizerStep(
            optimizer, lambda function: ops.compile(_watched(function, watch))
        )
        self.evaluate: Function = ops.compile(_named("evaluate", functions)) if as_a_whole else functions.evaluate
        self.forward: Callable[[Any, Any], ValueAndPullback] = (
            ops.compile_value_and_pullback(_named("forward", functions))
            if as_a_whole
            else partial(ops.value_and_pullback, functions.forward)
        )
        self.proven: set[str] = set()
        self.ready: set[tuple[int, ...]] = set()
        self._ops = ops
        self._step_loops: dict[tuple[int, int, bool], StepLoop] = {}

    def step_loop(self, batch_size: int, n_microbatches: int, *, quick: bool) -> StepLoop:
        """Return the loop over whole steps; see `TracedOps.compile_steps`."""
        key = (batch_size, n_microbatches, quick)
        if key not in self._step_loops:
            step = TrainStep(self.functions, batch_size, n_microbatches)
            self._step_loops[key] = self._ops.compile_steps(step, quick=quick)
        return self._step_loops[key]


def _watched(function: Function, watch: CompileWatch) -> Function:
    """Return a function in whose trace nothing that it changes itself counts as changed."""

    @wraps(function)
    def traced(*arguments: Any) -> Any:
        with watch.tracing():
            return function(*arguments)

    return traced


def _named(computation: str, functions: SegmentFunctions) -> Function:
    """Return a computation of a segment as a function that has the nodes in its name, too."""
    function: Function = getattr(functions, computation)

    def call(*arguments: Any) -> Any:
        return function(*arguments)

    call.__name__ = f"{computation}_{functions.suffix}"
    return call


def compiled_segment(
    dataflow: SegmentDataflow, ops: TracedOps, flow: GradientFlow, optimizer: OptimizerStep, as_a_whole: bool
) -> CompiledSegment:
    """Return the compiled functions of a segment, reusing those of an earlier program with equal models and specs."""
    shareable = ops.shareable()
    key = None if shareable is None else _cache_key(dataflow.segment, dataflow.layout, ops, as_a_whole)
    values = python_values(dataflow.segment, ops, lambda model: model)
    is_alone = not optimizer.shareable or any(isinstance(value, Incomparable) for _, value in values)
    if shareable is None or key is None or is_alone:
        functions = SegmentFunctions(dataflow, ops, flow, optimizer, lambda model: model)
        watch = CompileWatch(partial(python_values, dataflow.segment, ops, lambda model: model), values)
        return CompiledSegment(functions, ops, optimizer, as_a_whole, watch)
    cached = CACHE.get(key)
    if cached is None or cached.watch.values != values:
        cached = _without_models(dataflow, shareable, flow, optimizer.trees, as_a_whole, values)
        CACHE.add(key, dataflow.layout, cached)
    return cached


def _without_models(
    dataflow: SegmentDataflow,
    ops: TracedOps,
    flow: GradientFlow,
    trees: Mapping[str, Any],
    as_a_whole: bool,
    values: Values,
) -> CompiledSegment:
    """Return compiled functions that refer to models weakly."""
    segment = dataflow.segment
    operations = tuple(
        op if op.model is None else replace(op, model=weakref.ref(op.model)) for op in segment.operations
    )
    weak = SegmentDataflow(replace(segment, operations=operations, states={}), ops, dataflow.layout.without_models())
    optimizer = OptimizerStep(ops, segment.groups, {}, trees)
    functions = SegmentFunctions(weak, ops, flow, optimizer, lambda reference: reference())
    watch = CompileWatch(partial(python_values, weak.segment, ops, lambda reference: reference()), values)
    return CompiledSegment(functions, ops, optimizer, as_a_whole, watch)


def python_values(segment: Segment, ops: TracedOps, model_of: Callable[[Any], Any]) -> Values:
    """Return the Python values that a segment's models, losses and optimizers read."""
    pairs: list[tuple[str, Any]] = []
    models = {id(op.model): (op.label, model_of(op.model)) for op in segment.operations if op.model is not None}
    for label, model in models.values():
        key = ops.cache_key(model)
        pairs += _owned(f"the model of {label!r}", Incomparable() if key is None else key)
    for term in segment.losses:
        reader = ValueReader(ops.is_live, ops.libraries)
        reader.read("loss", term.loss.own)
        reader.read("loss_kwargs", term.loss.kwargs)
        pairs += _owned(f"the loss {term.label!r}", reader.pairs)
    for group in segment.groups:
        reader = ValueReader(ops.is_live, ops.libraries)
        reader.read("optimizer", group.optimizer.own)
        reader.read("settings", group.optimizer.settings)
        pairs += _owned(f"the optimizer {group.optimizer.name!r}", reader.pairs)
    return tuple(pairs)


class CompileCache:
    """Compiled segments by key, each until one of its models is freed; the least recently used is evicted first."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._entries: dict[Hashable, tuple[CompiledSegment, list[weakref.ref[Any]]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> CompiledSegment | None:
        """Return the entry, which becomes the most recently used."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._entries[key] = entry
        return entry[0]

    def add(self, key: Hashable, layout: SegmentLayout, compiled: CompiledSegment) -> None:
        """Store a compiled segment until one of the layout's models is freed; it replaces one with an equal key."""
        references = [weakref.ref(model, lambda _: self._entries.pop(key, None)) for model in layout.models.values()]
        self._entries.pop(key, None)
        self._entries[key] = (compiled, references)
        while len(self._entries) > self._max_segments:
            self._entries.pop(next(iter(self._entries)), None)


CACHE = CompileCache(MAX_SEGMENTS)


# -- keys --------------------------------------------------------------------------------------------------------------


def _cache_key(segment: Segment, layout: SegmentLayout, ops: TracedOps, as_a_whole: bool) -> Hashable | None:
    """Return the other dependencies of a segment's functions, besides `python_values`; None if they cannot be
    cached.
    """
    models = [
        (id(model), tuple((name, tuple(x.shape), str(x.dtype)) for name, x in layout.parameters[label].items()))
        for label, model in layout.models.items()
    ]
    losses = [
        (term.label, term.loss.name, repr(term.loss.kwargs), term.inputs, term.device, term.weight)
        for term in segment.losses
    ]
    groups = [
        (
            group.name,
            spec.name,
            repr(spec.settings) if spec.own is None else "",
            spec.clip_norm,
            spec.clip_value,
            group.nodes,
            repr(spec.groups),
        )
        for group, spec in ((group, group.optimizer) for group in segment.groups)
    ]
    custom_objects = [*(term.loss.own for term in segment.losses), *(group.optimizer.own for group in segment.groups)]
    custom_objects += [key for group in segment.groups for key, _ in group.optimizer.groups if not isinstance(key, str)]
    if any(item is not None and not _is_module_attribute(item) for item in custom_objects):
        return None  # it may hold a model, which would be kept
    operations = [replace(op, model=None if op.model is None else id(op.model)) for op in segment.operations]
    values = (tuple(segment.inputs.items()), segment.outputs, segment.needs_pullback, segment.precision)
    key = (type(ops), ops.variant, as_a_whole, tuple(operations), values, tuple(models), tuple(losses), tuple(groups))
    try:
        hash(key)
        for model in layout.models.values():
            weakref.ref(model)
    except TypeError:  # a part has no hash, or a model cannot be referred to weakly
        return None
    return key


def _owned(owner: str, key: Any) -> list[tuple[str, Any]]:
    """Return the pairs of a key with the owner in their paths; of a key of a plugin's own, one pair."""
    is_values = isinstance(key, (list, tuple)) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in key
    )
    return [(f"{path} of {owner}", value) for path, value in key] if is_values else [(owner, key)]


def _is_module_attribute(obj: Any) -> bool:
    """Return whether its module has a class or function under its name."""
    module = sys.modules.get(str(getattr(obj, "__module__", "")))
    return getattr(module, str(getattr(obj, "__qualname__", "")), None) is obj


# -- CompileWatch: whether Python values that compiled functions have read are still the same --------------------------


class CompileWatch:
    """The Python values that the functions of a segment read when they are traced.

    Args:
        read: Function that reads them.
        values: Their current values.

    Attributes:
        values: The values that compiled functions have read, including changes that tracing itself makes (a counter).
        is_traced: Whether anything was traced.
    """

    def __init__(self, read: Callable[[], Values], values: Values) -> None:
        self.values = values
        self.is_traced = False
        self._read = read

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Wrap a trace: changes that it makes itself do not count."""
        before = self._read()
        was_current = not self.is_traced or before == self.values  # before the first trace, nothing has read others
        yield
        self.is_traced = True
        if was_current:
            self.values = self._read()
            return
        after = self._read()
        changed = set(changed_paths(before, after))
        if changed:
            self.values = (
                *(pair for pair in self.values if pair[0] not in changed),
                *(pair for pair in after if pair[0] in changed),
            )

    def changed(self) -> list[str]:
        """Return the paths of the values that changed since they were read."""
        return changed_paths(self.values, self._read())


# -- CompileSwitch: whether the functions of a traced program run compiled or eagerly ----------------------------------


Result = TypeVar("Result")


class CompileSwitch:
    """Run functions compiled, or eagerly if compiling is turned off, has failed, or is not worth it yet.

    The optimizer functions of the parameter state follow.

    Args:
        ops: The framework; this sets its `eager`.
        state: The parameters of the program.
        compiled: The compiled functions.
        off: Never compile.

    Attributes:
        untraceable_reason: Why nothing is compiled any more, after a failed attempt; otherwise `""`.
    """

    def __init__(self, ops: TracedOps, state: ParameterState, compiled: CompiledSegment, *, off: bool) -> None:
        self._ops, self._state, self._compiled = ops, state, compiled
        self._eager_functions = CompiledOptimizerStep(state.optimizer, lambda function: function)
        self._seconds_spent = 0.0
        self.untraceable_reason = ""
        ops.eager = off
        state.optimizer_functions = self._eager_functions if off or ops.eager_seconds else compiled.optimizer_functions

    def replace(self, compiled: CompiledSegment) -> None:
        """Run other compiled functions from now on."""
        if self._state.optimizer_functions is self._compiled.optimizer_functions:
            self._state.optimizer_functions = compiled.optimizer_functions
        self._compiled = compiled

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Compile nothing inside this context."""
        before = self._ops.eager, self._state.optimizer_functions
        self._ops.eager, self._state.optimizer_functions = True, self._eager_functions
        try:
            with self._ops.eager_scope():
                yield
        finally:
            self._ops.eager, self._state.optimizer_functions = before

    def run(self, name: str, compiled: Callable[[], Result], eager: Callable[[], Result]) -> Result:
        """Return the result of a function. Run it eagerly at first, for `TracedOps.eager_seconds`, or if necessary."""
        if self._ops.eager:
            return eager()
        if name not in self._compiled.proven and self._seconds_spent < (self._ops.eager_seconds or 0.0):
            began = time.perf_counter()
            with self.eagerly():
                result = eager()
            self._seconds_spent += time.perf_counter() - began
            return result
        return self.run_compiled(name, compiled, eager)

    def run_compiled(self, name: str, compiled: Callable[[], Result], eager: Callable[[], Result]) -> Result:
        """Return the result of a compiled function. If its first run fails and the eager one does not, stop compiling
        it.

        Raises:
            AnyaccelError: raised by the compiled function, or any exception of one that has run before.
        """
        try:
            result = compiled()
        except (AnyaccelError, MemoryError):
            raise
        except Exception as error:
            if name in self._compiled.proven:
                raise
            reason = first_line(error)
        else:
            self._compiled.proven.add(name)
            self._state.optimizer_functions = self._compiled.optimizer_functions
            return result
        with self.eagerly():
            result = eager()
        self.untraceable_reason, self._ops.eager = reason, True
        self._state.optimizer_functions = self._eager_functions
        return result


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message that is not empty."""
    lines = [line.strip() for line in str(error).splitlines()]
    return f"{type(error).__name__}: {next((line for line in lines if line), '')}"
