"""TapedOps: modules of the NumPy backend for `TracedProgram`, differentiated by a small tape.

A module is one entry of the tape, with its own pullback. There are further rules for arithmetic, `concatenate` and
moves. A compiled function that keeps arrays, or takes numbers that would stay those of its first call, fails.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext

import numpy as np

from anyaccel import rng
from anyaccel.adapter import TracedOps, TracedProgram
from anyaccel.adapter.loss_scaling import steps_behind
from anyaccel.adapter.step_profiler import ProfilesSteps, SpanRecorder, write_trace
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.ops import rounded_vjp
from anyaccel.numpy_backend.sim_array import place_of
from anyaccel.numpy_backend.transfers import gather_rows, moved


class Box:
    """An array on a tape."""

    __hash__ = None

    def __init__(self, value, tape):
        self.value, self.tape = value, tape

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    dtype = property(lambda self: self.value.dtype)
    __array_ufunc__ = None  # an array left of an operator leaves the operation to the box

    def __eq__(self, other):
        return self.value == bare(other)

    def __getitem__(self, key):
        return record(self.value[key], [self], lambda c: [_put(np.zeros_like(self.value), key, c)])

    def __neg__(self):
        return record(-self.value, [self], lambda c: [-c])

    def mean(self):
        return record(np.mean(self.value), [self], lambda c: [np.full_like(self.value, 1 / self.value.size) * c])


def _put(array, key, value):
    array[key] = value
    return array


RULES = {
    "add": lambda a, b, c: (c, c),
    "sub": lambda a, b, c: (c, -c),
    "mul": lambda a, b, c: (c * b, c * a),
    "truediv": lambda a, b, c: (c / b, -c * a / (b * b)),
}


def _operator(name, swapped):
    function, rule = getattr(operator, name), RULES[name]

    def method(self, other):
        given = [other, self] if swapped else [self, other]
        a, b = map(bare, given)
        return record(function(a, b), given, lambda c: [_summed(part, x) for part, x in zip(rule(a, b, c), (a, b))])  # noqa: B905

    return method


for _name in RULES:
    setattr(Box, f"__{_name}__", _operator(_name, False))
    setattr(Box, f"__r{_name}__", _operator(_name, True))


def _summed(cotangent, like):
    """Undo the broadcasting of `like`, a number or an array."""
    shape = np.shape(like)
    extra = np.ndim(cotangent) - len(shape)
    axes = (*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1))
    return np.reshape(np.sum(cotangent, axis=axes), shape)


def record(value, inputs, pullback):
    """A value or a tuple of values, boxed if an input is boxed; `pullback` gives a cotangent or None for each input."""
    tape = next((value.tape for value in inputs if isinstance(value, Box)), None)
    if tape is None:
        return value
    single = not isinstance(value, tuple)
    boxes = tuple(Box(each, tape) for each in ((value,) if single else value))
    tape.append((boxes, inputs, (lambda cs: pullback(cs[0])) if single else pullback))
    return boxes[0] if single else boxes


def tree_map(function, tree):
    """The tree with a function applied to every array or box."""
    if isinstance(tree, Mapping):
        return {key: tree_map(function, tree[key]) for key in sorted(tree)}  # sorted, as compilers do
    if isinstance(tree, (tuple, list)):
        return type(tree)(tree_map(function, part) for part in tree)
    return None if tree is None else function(tree)


def leaves(tree):
    """The arrays of a tree."""
    arrays = []
    tree_map(arrays.append, tree)
    return arrays


def bare(value):
    """The array in a box, or the value itself."""
    return value.value if isinstance(value, Box) else value


def destroy(array):
    """Overwrite the memory of a floating-point array with NaN."""
    if array.dtype.kind == "f" and isinstance(array, np.ndarray):
        np.asarray(array)[...] = np.nan


class Namespace:
    """NumPy for boxes; only operations with a rule above are differentiated."""

    def __getattr__(self, name):
        member = getattr(np, name)
        if isinstance(member, type):
            return member
        return lambda *inputs, **settings: member(*tree_map(bare, inputs), **tree_map(bare, settings))

    def concatenate(self, parts, axis=0):
        cuts = np.cumsum([part.shape[axis] for part in parts])[:-1]
        whole = np.concatenate([bare(part) for part in parts], axis=axis)
        return record(whole, list(parts), lambda c: np.split(c, cuts.tolist(), axis=axis))


class TapedOps(TracedOps):
    """Modules as pure functions."""

    xp = Namespace()
    recorder = None  # while steps are profiled

    def named_scope(self, name):
        return nullcontext() if TapedOps.recorder is None else TapedOps.recorder.span(name)

    def parameters(self, model):
        return model.parameters

    def buffers(self, model):
        return model.buffers

    def write(self, model, parameters, buffers):
        model.parameters.update(parameters)
        model.buffers.update(buffers)

    def apply(self, model, parameters, buffers, inputs, train, key, precision=None):
        names, given = list(parameters), [*parameters.values(), *inputs]
        own, held = dict(zip(names, map(bare, given), strict=False)), tree_map(bare, dict(buffers))

        def run(own, given):
            return model.apply({**own, **held}, given, train=train, key=int(key))

        plain = tuple(map(bare, inputs))
        applied = run(own, plain) if precision is None else rounded_vjp(precision, run, own, plain)

        def pullback(cotangents):
            gradients, back = applied.pullback(cotangents)
            return [*(gradients.get(name) for name in names), *back]

        changed = {**tree_map(bare, dict(buffers)), **applied.buffers} if applied.buffers else None
        return record(tuple(applied.outputs), given, pullback), changed

    def value_and_pullback(self, function, primals, rest):
        tape = []
        boxes = tree_map(lambda array: Box(bare(array), tape), primals)
        values, others = function(boxes, tree_map(bare, rest))

        def pullback(cotangents):
            flow = {}
            pairs = [*zip(leaves(values), leaves(cotangents), strict=True)]
            _add(flow, pairs)
            for outputs, inputs, back in reversed(tape):
                given = [flow.pop(id(box), None) for box in outputs]
                if any(cotangent is not None for cotangent in given):
                    complete = [np.zeros_like(o.value) if c is None else c for o, c in zip(outputs, given, strict=True)]
                    _add(flow, zip(inputs, back(tuple(complete)), strict=True))
            return tree_map(lambda box: flow.get(id(box), np.zeros_like(box.value)), boxes)

        return tree_map(bare, values), tree_map(bare, others), pullback

    def move(self, array, device):
        home = getattr(place_of(bare(array)), "device", place_of(bare(array)))
        result = moved(bare(array), device)
        return array if result is bare(array) else record(result, [array], lambda c: [moved(c, home)])

    def gather_rows(self, column, start, stop, order):
        return gather_rows(column, start, stop, order)

    def gather_batch(self, column, order, start, size):
        return gather_rows(column, int(start), int(start) + size, order)

    def astype(self, array, dtype):
        return bare(array).astype(dtype)

    def arange(self, count, like):
        return moved(np.arange(count), getattr(place_of(bare(like)), "device", place_of(bare(like))))

    def constant(self, values, like):
        return moved(np.array(values, like.dtype), getattr(place_of(bare(like)), "device", place_of(bare(like))))

    def scalar(self, value):
        return np.array(value)

    def key(self, seed):
        return np.array(seed, np.uint64)

    def fold(self, key, number):
        return np.array(rng.key(int(key), int(number)), np.uint64)

    def compile(self, function):
        """A function that is first called on copies that are then destroyed, as if it were traced."""

        def run(*given):
            assert all(isinstance(leaf, (np.ndarray, np.generic, Box)) for leaf in leaves(given)), (
                "a number in the code"
            )
            places = {str(place_of(bare(leaf))) for leaf in leaves(given) if leaf.ndim}
            assert self.multi_device or len(places) < 2, f"compiled for {places}"
            trial = tree_map(lambda leaf: bare(leaf).copy(), given)
            function(*trial)
            tree_map(destroy, trial)
            return function(*given)

        return run


def _add(flow, pairs):
    for box, cotangent in pairs:
        if isinstance(box, Box) and cotangent is not None:
            flow[id(box)] = flow[id(box)] + cotangent if id(box) in flow else cotangent


class DonatingOps(TapedOps):
    """Destroys the state that steps are given, compiles for one device only, and flattens small models."""

    donates, multi_device = True, False

    def compile_steps(self, body, *, quick=False):
        def inside(state, rest, row):
            state, step, unflatten = body.flatten(state)
            state, result = step(state, rest, row)
            return unflatten(state), result

        compiled = self.compile(inside)

        def run(state, rest, cursor, count):
            results = []
            for _ in range(count):
                before = state
                state, result = compiled(before, rest, tree_map(np.array, cursor.scalars(steps_behind(state, int))))
                cursor.advance(1)
                state = tree_map(self.copy, state)
                tree_map(destroy, before)
                results.append(result)
            return state, np.stack(results) if results else None

        return run


class TapedProfiler(ProfilesSteps):
    """Records what the ops are asked to compute."""

    @contextmanager
    def profile_steps(self, path, nodes, devices):
        TapedOps.recorder = recorder = SpanRecorder()
        try:
            yield recorder.span
        finally:
            TapedOps.recorder = None
            write_trace(path, recorder.events)


class TapedBackend(NumpyBackend):
    """NumPy as a framework that differentiates and compiles whole functions."""

    ops = TapedOps
    capabilities = {**NumpyBackend.capabilities, ProfilesSteps: TapedProfiler}

    def build(self, segment):
        return TracedProgram(segment, self.ops())


class DonatingBackend(TapedBackend):
    """The same, where a step destroys the previous state."""

    ops = DonatingOps
