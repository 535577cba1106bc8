"""TracedProgram: what is compiled, when, and what is cached."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from anyaccel.adapter import TracedProgram, attributes_key
from anyaccel.adapter.compile_cache import CACHE, MAX_SEGMENTS
from anyaccel.adapter.python_values import IdentityKey
from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError, OutOfMemoryError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.segment import ParameterGroup
from anyaccel.specs import Loss, Optimizer

from .program_history import ROWS, SegmentBuilder
from .taped_ops import TapedOps


class CountedOps(TapedOps):
    """Logs compilations and calls of compiled functions."""

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


class EagerOps(CountedOps):
    """Stays uncompiled until compilation is requested."""

    eager_seconds = 1e9


class SharingOps(CountedOps):
    """Compiles once for all programs of a model."""

    def shareable(self):
        return type(self)(self.log)

    def cache_key(self, model):
        return attributes_key([("", model)], lambda _: {"parameters", "buffers"}, lambda _: False)


class OpsBackend(NumpyBackend):
    """Builds programs with the given ops."""

    def __init__(self, ops):
        self.ops = ops

    def build(self, segment):
        return TracedProgram(segment, self.ops)


def dense_program(ops, **settings):
    """A program of one dense layer, its columns and its row orders."""
    builder = SegmentBuilder(OpsBackend(ops))
    builder.node("a", builder.dense(), "x")
    builder.loss("a t", **settings)
    program = builder.backend.build(builder.segment(outputs="a"))
    columns = tuple(builder.columns.values())
    return program, columns, [np.arange(ROWS)] * len(columns)


def train(ops):
    """The losses of single steps and of `train_steps`, and the program."""
    program, columns, orders = dense_program(ops)
    losses = [program.forward(columns)[1]["loss0"][0]]
    _, step_losses, pullback = program.forward_pullback(columns)
    pullback([None])
    program.optimizer_step()
    losses.append(step_losses["loss0"][0])
    return [*map(float, losses), *program.train_steps(columns, orders, 0, 3, 2)[:, 0].tolist()], program


def test_an_untraceable_program_runs_uncompiled_with_the_same_losses():
    losses, program = train(UntraceableOps())
    assert losses == pytest.approx(train(TapedOps())[0], rel=1e-12)
    assert program.untraceable_reason == "TypeError: a value is wanted"
    assert program.estimate_compile(10) is None
    with pytest.raises(CompileError) as caught:
        program.compile((), (), 2)
    assert str(caught.value) == ("steps of segment 'built' cannot be compiled: TypeError: a value is wanted.")


def test_steps_that_cannot_be_compiled_say_why_and_still_run():
    program, columns, orders = dense_program(UntraceableOps())
    with pytest.raises(CompileError, match="steps of segment 'built' cannot be compiled: TypeError: a value is wanted"):
        program.compile(columns, orders, 2)
    assert np.isfinite(program.train_steps(columns, orders, 0, 3, 2)).all()


def test_out_of_memory_while_compiling_is_raised():
    class FullOps(UntraceableOps):
        error = OutOfMemoryError("no room for a step")

    program, columns, orders = dense_program(FullOps())
    for call in (program.forward, lambda columns: program.train_steps(columns, orders, 0, 1, 2)):
        with pytest.raises(OutOfMemoryError, match="no room for a step"):
            call(columns)
    with pytest.raises(OutOfMemoryError):
        program.compile(columns, orders, 2)
    assert program.untraceable_reason == ""


def test_nothing_is_compiled_before_eager_seconds_or_a_call_of_compile():
    ops = EagerOps()
    program, columns, orders = dense_program(ops)
    program.forward(columns)
    program.forward_pullback(columns)[2]([None])
    program.optimizer_step()
    program.train_steps(columns, orders, 0, 3, 2)
    assert "called" not in ops.log
    estimate = program.estimate_compile(100)
    assert estimate is not None and estimate.compile_seconds > 0.0
    program.compile(columns, orders, 2)
    calls = ops.log.count("called")
    program.train_steps(columns, orders, 0, 3, 2)
    assert ops.log.count("called") == calls + 3
    program.train_steps(columns, orders, 0, 1, 3)
    assert ops.log.count("called") == calls + 3, "another batch size runs uncompiled"
    assert program.estimate_compile(100) == CompileEstimate(0.0, 0.0)


def test_functions_are_compiled_after_eager_seconds():
    class CompilingOps(EagerOps):
        eager_seconds = 1e-9

    ops = CompilingOps()
    program, columns, _ = dense_program(ops)
    program.forward(columns)
    assert "called" not in ops.log
    program.forward(columns)
    assert "called" in ops.log


def test_a_segment_without_losses_has_no_steps_to_compile():
    builder = SegmentBuilder(OpsBackend(TapedOps()))
    builder.node("a", builder.dense(), "x")
    with pytest.raises(CompileError, match=r"cannot be compiled: it has no loss"):
        builder.backend.build(builder.segment(outputs="a")).compile((), (), 2)


# -- the compile cache -------------------------------------------------------------------------------------------------


def program_of(ops, model, optimizer=None, loss="mse"):
    """A program over an existing model."""
    builder = SegmentBuilder(OpsBackend(ops))
    builder.node("a", model, "x")
    builder.loss("a t", loss)
    optimizer = optimizer or Optimizer("adam")
    return builder.backend.build(builder.segment(ParameterGroup("main", optimizer, ("a",))))


def test_programs_of_one_model_share_compiled_functions():
    ops = SharingOps()
    builder = SegmentBuilder(OpsBackend(ops))
    model = builder.dense()
    program_of(ops, model)
    compiled, cached = len(ops.log), len(CACHE)
    assert compiled and cached
    program_of(ops, model, Optimizer("adam", lr=0.7))
    assert len(ops.log) == compiled and len(CACHE) == cached
    for changed in ({"optimizer": Optimizer("sgd")}, {"loss": "mae"}, {"optimizer": Optimizer("adam", clip_norm=1.0)}):
        program_of(ops, model, **changed)
        assert len(ops.log) > compiled
        compiled = len(ops.log)
    program_of(ops, model, loss=Loss(lambda y, t: y.mean()))
    cached = len(CACHE)
    program_of(ops, model, loss=Loss(lambda y, t: y.mean()))
    assert len(CACHE) == cached, "a function with unknown contents is not cached"
    compiled, model.extra = len(ops.log), 3
    program_of(ops, model)
    assert len(ops.log) > compiled and len(CACHE) == cached, "the model was changed"


def test_the_cache_is_bounded_and_drops_entries_with_their_model():
    ops = SharingOps()
    models = [SegmentBuilder(OpsBackend(ops)).dense() for _ in range(MAX_SEGMENTS + 3)]
    for model in models:
        program_of(ops, model)
    assert len(CACHE) == MAX_SEGMENTS
    gone = weakref.ref(models[-1])
    model = None
    models.clear()
    gc.collect()
    assert gone() is None and len(CACHE) == 0


ALPHA = 1.0


def scaled_mean(y, t):
    return ALPHA * y.mean()


def test_a_changed_global_of_a_loss_is_compiled_anew(monkeypatch):
    ops = SharingOps()
    model = SegmentBuilder(OpsBackend(ops)).dense()
    program_of(ops, model, loss=Loss(scaled_mean))
    compiled = len(ops.log)
    program_of(ops, model, loss=Loss(scaled_mean))
    assert len(ops.log) == compiled
    monkeypatch.setitem(globals(), "ALPHA", 2.0)
    program_of(ops, model, loss=Loss(scaled_mean))
    assert len(ops.log) > compiled


def test_a_program_says_which_values_have_changed_once_it_is_compiled():
    ops = SharingOps()
    builder = SegmentBuilder(OpsBackend(ops))
    model = builder.dense()
    program = program_of(ops, model)
    model.extra = 3
    assert program.renew_compiled() == [], "nothing is compiled yet"
    program.forward(tuple(builder.columns.values()))
    compiled = len(ops.log)
    model.extra = 4
    assert program.renew_compiled() == ["extra of the model of 'a'"]
    assert len(ops.log) > compiled, "it is compiled anew"
    assert program.renew_compiled() == []


def test_what_is_gone_equals_nothing():
    thing = np.zeros(2)
    same, again = IdentityKey(thing), IdentityKey(thing)
    assert same == again and same != 3
    del thing
    gc.collect()
    assert same != again
