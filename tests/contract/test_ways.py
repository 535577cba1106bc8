"""TracedProgram: compiled, one by one, and when which."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from anyaccel.adapter import TracedProgram
from anyaccel.adapter.cache_key import IdentityKey, attributes_key
from anyaccel.adapter.compile_cache import CACHE, MAX_SEGMENTS
from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError, OutOfMemoryError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.segment import ParameterGroup
from anyaccel.specs import Loss, Optimizer

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside this one

from lives import ROWS, Case
from taped import TapedOps


class CountedOps(TapedOps):
    """Counts what is compiled and what is called compiled."""

    def __init__(self, log=None):
        self.log = [] if log is None else log

    def compile(self, function):
        self.log.append("compiled")
        run = super().compile(function)

        def counted(*given):
            self.log.append("called")
            return run(*given)

        return counted


class UntraceableOps(CountedOps):
    """Nothing can be compiled."""

    error = TypeError("a value is wanted\nof what has none")

    def compile(self, function):
        def refuse(*given):
            raise self.error

        return refuse


class PatientOps(CountedOps):
    """One by one for as long as nobody asks."""

    eager_seconds = 1e9


class SharingOps(CountedOps):
    """Compiles once for all programs of a model."""

    def shareable(self):
        return type(self)(self.log)

    def cache_key(self, model):
        return attributes_key([("", model)], lambda _: {"parameters", "buffers"}, lambda _: False)


class Backend(NumpyBackend):
    """Programs of some ops."""

    def __init__(self, ops):
        self.ops = ops

    def build(self, segment):
        return TracedProgram(segment, self.ops)


def made(ops, **settings):
    """A program of one dense layer, its columns and its orders."""
    case = Case(Backend(ops))
    case.node("a", case.dense(), "x")
    case.loss("a t", **settings)
    program = case.backend.build(case.segment(outputs="a"))
    columns = tuple(case.columns.values())
    return program, columns, [np.arange(ROWS)] * len(columns)


def lived(ops):
    """Losses of both ways of training."""
    program, columns, orders = made(ops)
    losses = [program.forward(columns)[1]["loss0"][0]]
    _, found, pull = program.forward_pullback(columns)
    pull([None])
    program.optimizer_step()
    losses.append(found["loss0"][0])
    return [*map(float, losses), *program.train_steps(columns, orders, 0, 3, 2)[:, 0].tolist()], program


def test_what_cannot_be_traced_is_done_one_by_one_with_the_same_numbers():
    found, program = lived(UntraceableOps())
    assert found == pytest.approx(lived(TapedOps())[0], rel=1e-12)
    assert program.untraceable_reason == "TypeError: a value is wanted"
    assert program.estimate_compile(10) is None
    with pytest.raises(CompileError) as caught:
        program.compile((), (), 2)
    assert str(caught.value) == ("steps of segment 'case' cannot be compiled: TypeError: a value is wanted.")


def test_steps_that_cannot_be_compiled_say_why_and_go_on():
    program, columns, orders = made(UntraceableOps())
    with pytest.raises(CompileError, match="steps of segment 'case' cannot be compiled: TypeError: a value is wanted"):
        program.compile(columns, orders, 2)
    assert np.isfinite(program.train_steps(columns, orders, 0, 3, 2)).all()


def test_a_lack_of_memory_is_no_reason_to_go_on_plainly():
    class FullOps(UntraceableOps):
        error = OutOfMemoryError("no room for a step")

    program, columns, orders = made(FullOps())
    for act in (program.forward, lambda given: program.train_steps(given, orders, 0, 1, 2)):
        with pytest.raises(OutOfMemoryError, match="no room for a step"):
            act(columns)
    with pytest.raises(OutOfMemoryError):
        program.compile(columns, orders, 2)
    assert program.untraceable_reason == ""


def test_patience_leaves_everything_plain_until_it_is_asked_for():
    ops = PatientOps()
    program, columns, orders = made(ops)
    program.forward(columns)
    program.forward_pullback(columns)[2]([None])
    program.optimizer_step()
    program.train_steps(columns, orders, 0, 3, 2)
    assert "called" not in ops.log
    offer = program.estimate_compile(100)
    assert offer is not None and offer.compile_seconds > 0.0
    program.compile(columns, orders, 2)
    begun = ops.log.count("called")
    program.train_steps(columns, orders, 0, 3, 2)
    assert ops.log.count("called") == begun + 3
    program.train_steps(columns, orders, 0, 1, 3)
    assert ops.log.count("called") == begun + 3, "another size is done plainly"
    assert program.estimate_compile(100) == CompileEstimate(0.0, 0.0)


def test_patience_ends():
    class ImpatientOps(PatientOps):
        eager_seconds = 1e-9

    ops = ImpatientOps()
    program, columns, _ = made(ops)
    program.forward(columns)
    assert "called" not in ops.log
    program.forward(columns)
    assert "called" in ops.log


def test_a_segment_without_losses_has_no_steps_to_compile():
    case = Case(Backend(TapedOps()))
    case.node("a", case.dense(), "x")
    with pytest.raises(CompileError, match=r"cannot be compiled: it has no loss"):
        case.backend.build(case.segment(outputs="a")).compile((), (), 2)


# -- what is kept ------------------------------------------------------------------------------------------------------


def shared(ops, model, optimizer=None, loss="mse"):
    """A program over a model that is there."""
    case = Case(Backend(ops))
    case.node("a", model, "x")
    case.loss("a t", loss)
    optimizer = optimizer or Optimizer("adam")
    return case.backend.build(case.segment(ParameterGroup("main", optimizer, ("a",))))


def test_programs_of_one_model_share_what_is_compiled():
    ops = SharingOps()
    case = Case(Backend(ops))
    model = case.dense()
    shared(ops, model)
    first, known = len(ops.log), len(CACHE)
    assert first and known
    shared(ops, model, Optimizer("adam", lr=0.7))
    assert len(ops.log) == first and len(CACHE) == known
    for changed in ({"optimizer": Optimizer("sgd")}, {"loss": "mae"}, {"optimizer": Optimizer("adam", clip_norm=1.0)}):
        shared(ops, model, **changed)
        assert len(ops.log) > first
        first = len(ops.log)
    shared(ops, model, loss=Loss(lambda y, t: y.mean()))
    known = len(CACHE)
    shared(ops, model, loss=Loss(lambda y, t: y.mean()))
    assert len(CACHE) == known, "a function that may hold anything is not kept"
    model.extra = 3
    shared(ops, model)
    assert len(CACHE) == known + 1, "the model was changed"


def test_what_is_kept_goes_with_its_model_and_is_not_more_than_some():
    ops = SharingOps()
    models = [Case(Backend(ops)).dense() for _ in range(MAX_SEGMENTS + 3)]
    for model in models:
        shared(ops, model)
    assert len(CACHE) == MAX_SEGMENTS
    gone = weakref.ref(models[-1])
    model = None
    models.clear()
    gc.collect()
    assert gone() is None and len(CACHE) == 0


def test_natures_compare_plain_values_and_know_objects():
    class Part:
        pass

    part, thing = Part(), Part()
    part.rate, part.sizes, part.act, part.table = 0.5, [1, (2, "x")], thing, np.arange(3)

    def told():
        return attributes_key([("", part)], lambda _: (), lambda _: False)

    before = told()
    assert told() == before and hash(told()) == hash(before)
    for name, value in (("rate", 0.25), ("sizes", [1]), ("act", Part()), ("table", np.zeros(3, int)), ("rate", 1)):
        kept = getattr(part, name)
        setattr(part, name, value)
        assert told() != before, name
        setattr(part, name, kept)
    assert told() == before
    part.act = thing = None
    gc.collect()
    assert told() != before
    part.held = object()
    assert told() is None, "it cannot be held weakly"
    part.held = [[[[[[[[1]]]]]]]]
    assert told() is None, "it is too deep"


def test_what_is_gone_equals_nothing():
    thing = np.zeros(2)
    same, again = IdentityKey(thing), IdentityKey(thing)
    assert same == again and same != 3
    del thing
    gc.collect()
    assert same != again
