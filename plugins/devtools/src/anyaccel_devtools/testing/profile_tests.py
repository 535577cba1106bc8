"""Tests of the capability `ProfilesSteps`: the content of a profile of some steps, and its side effects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyaccel.adapter.step_profiler import ProfilesSteps, read_trace
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing.harness import NODE, Batch, Harness, assert_close
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
MARK = "phase: steps 3 to 4"


class ProfileTests(Subject):
    """A profile of steps, if the backend declares it."""

    def test_a_profile_is_a_trace_with_names(self, harness: Harness, model: Make, tmp_path: Path) -> None:
        """It has spans in Chrome's format, with the marked ones and each node."""
        prepared = harness.prepare_model(model)
        program = harness.build(prepared, optimizer=Optimizer("sgd", lr=0.1))
        harness.train(program, BATCH, 1)
        path = tmp_path / "trace.json.gz"
        with profiler(harness).profile_steps(path, {NODE: prepared}, [harness.device]) as mark, mark(MARK):
            harness.train(program, BATCH, 2)
        program.close()
        spans = [event for event in read_trace(path) if event.get("ph") == "X"]
        assert all(span["ts"] >= 0 and span["dur"] >= 0 and isinstance(span["name"], str) for span in spans)
        marks = [span for span in spans if span["name"] == MARK]
        assert len(marks) == 1 or harness.device.kind not in ("cpu", "sim")  # an accelerator may have its own, after
        marked = min(marks, key=lambda span: span["ts"])
        nodes = [span for span in spans if NODE in (span["name"], (span.get("args") or {}).get("node"))]
        assert len(nodes) >= 2
        ends = [span["ts"] + span["dur"] for span in nodes]
        assert marked["ts"] <= min(span["ts"] for span in nodes)
        assert max(ends) <= marked["ts"] + marked["dur"] or harness.device.kind not in ("cpu", "sim")

    def test_profiled_steps_have_the_same_numbers(self, harness: Harness, model: Make, tmp_path: Path) -> None:
        """Profiled steps return the same numbers as steps without a profile."""
        plain = harness.prepare_model(model)
        profiled = harness.clone_model(model, plain)
        programs = [harness.build(model, optimizer=Optimizer("sgd", lr=0.1)) for model in (plain, profiled)]
        expected = harness.train(programs[0], BATCH, 2)
        with profiler(harness).profile_steps(tmp_path / "t.json.gz", {NODE: profiled}, [harness.device]):
            actual = harness.train(programs[1], BATCH, 2)
        for program in programs:
            program.close()
        for result, other in zip(actual, expected, strict=True):
            for one, another in zip(result, other, strict=True):
                assert_close(one, another)

    def test_an_error_ends_a_profile(self, harness: Harness, tmp_path: Path) -> None:
        """The recorded part is written, and the next profile has nothing of it."""
        first, second = tmp_path / "first.json.gz", tmp_path / "second.json.gz"
        with pytest.raises(ZeroDivisionError), profiler(harness).profile_steps(first, {}, [harness.device]) as mark:
            with mark("before the error"):
                pass
            raise ZeroDivisionError
        assert "before the error" in _names(first)
        with profiler(harness).profile_steps(second, {}, [harness.device]) as mark, mark("afterwards"):
            pass
        assert "afterwards" in _names(second) and "before the error" not in _names(second)

    def test_steps_outside_a_profile_are_not_recorded(self, harness: Harness, model: Make, tmp_path: Path) -> None:
        """It records neither those before it nor those after it."""
        prepared, path = harness.prepare_model(model), tmp_path / "t.json.gz"
        program = harness.build(prepared, optimizer=Optimizer("sgd", lr=0.1))
        harness.train(program, BATCH, 2)
        with profiler(harness).profile_steps(path, {NODE: prepared}, [harness.device]):
            pass
        harness.train(program, BATCH, 2)
        program.close()
        assert not [name for name in _names(path) if NODE in name.partition(":")[0]]


def profiler(harness: Harness) -> ProfilesSteps:
    """Return the profiler, or skip the test without it."""
    return harness.declared(ProfilesSteps, "profile_steps")


def _names(path: Path) -> list[str]:
    return [str(event.get("name")) for event in read_trace(path)]
