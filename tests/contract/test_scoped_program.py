"""ScopedProgram: all that computes runs inside its scope, with the numbers of a TracedProgram."""

from __future__ import annotations

from contextlib import contextmanager
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest

from anyaccel.adapter import ScopedProgram

from .program_history import ProgramHistory, SegmentBuilder
from .taped_ops import TapedBackend, TapedOps


class CheckedOps(TapedOps):
    """Models and compiled functions are called inside a scope only."""

    depth = 0

    def compile(self, function):
        run = super().compile(function)

        def checked(*given):
            assert self.depth
            return run(*given)

        return checked

    def write(self, *given):
        assert self.depth
        super().write(*given)


class NotedProgram(ScopedProgram):
    """Notes the subjects, and translates the errors of NumPy."""

    def __init__(self, segment, ops):
        self.subjects, self.checked = [], ops
        super().__init__(segment, ops)

    @contextmanager
    def scope(self, subject):
        self.subjects.append(subject)
        self.checked.depth += 1
        try:
            yield
        except ValueError as error:
            raise RuntimeError(f"{subject}: translated") from error
        finally:
            self.checked.depth -= 1


class ScopedBackend(TapedBackend):
    def build(self, segment):
        return NotedProgram(segment, CheckedOps())


def history(backend):
    builder = SegmentBuilder(backend)
    builder.node("a", builder.dense(), "x")
    builder.loss("a t")
    return ProgramHistory(builder, builder.segment(outputs="a", pull="x"))


def test_all_that_computes_is_inside_the_scope_with_the_same_numbers():
    scoped, plain = history(ScopedBackend()), history(TapedBackend())
    recorded, expected = scoped.run(), plain.run()
    assert recorded.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(recorded[name], array)
    program = scoped.program
    program.seed(0)
    program.clip_factor(1.0, [square for square, _ in program.grad_stats().values()])
    batch = "a batch through segment 'built'"
    assert set(program.subjects) >= {
        *("a seed", batch, f"the backward pass of {batch}", "an update of segment 'built'"),
        *("steps of 2 rows in segment 'built'", "gradient statistics", "the clipping factor of gradients"),
        "the state of models",
    }


# By method: what it calls, which fails here, and arguments.
CALLS = {
    "seed": ("checked.key", (0,)),
    "forward": ("_switch.run", ([None],)),
    "forward_pullback": ("_switch.run", ([None],)),
    "train_steps": ("_switch.run_compiled", ([], [], 0, 1, 2)),
    "compile": ("_compile_error", ([], [], 2)),
    "loss_weights": ("_dataflow.loss_weights", ([None, None],)),
    "summed_weights": ("_dataflow.summed_weights", ([None, None],)),
    "grad_stats": ("_state.gradient_stats", ()),
    "clip_factor": ("_state.optimizer.clip_factor", (1.0, [])),
    "optimizer_step": ("_state.optimizer_step", ()),
    "sync_models": ("synchronize", ()),
    "close": ("_write_models", ()),
}


def broken(*given, **settings):
    raise ValueError("broken")


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_raises_goes_through_the_scope(name, monkeypatch):
    program = history(ScopedBackend()).program
    called, given = CALLS[name]
    owner, _, function = f"program.{called}".rpartition(".")
    monkeypatch.setattr(attrgetter(owner)(SimpleNamespace(program=program)), function, broken)
    if name == "compile":  # other errors become a CompileError
        monkeypatch.setattr(NotedProgram, "can_compile_steps", False)
    with pytest.raises(RuntimeError, match="translated"):
        getattr(program, name)(*given)
    assert not program.checked.depth


def test_what_a_pullback_raises_goes_through_the_scope(monkeypatch):
    program = history(ScopedBackend()).program
    monkeypatch.setattr(program, "_switch", SimpleNamespace(run=lambda *given: ((), {}, broken)))
    _, _, pullback = program.forward_pullback([None])
    with pytest.raises(RuntimeError, match="the backward pass of a batch through segment 'built': translated"):
        pullback([])
