"""Tests of models that have the batch on another axis than the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter.call_layout import ArgumentPaths
from anyaccel.backend import Program
from anyaccel.segment import OutputSpec, Segment, TensorSpec
from anyaccel_devtools.testing.harness import NODE, Harness, assert_close
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
X = TensorSpec((2, 4), "float32")
ARGUMENTS = ArgumentPaths([("x",)], [1])
SAMPLES = np.random.default_rng(0).normal(size=(3, 2, 4)).astype("float32")


class BatchAxisTests(Subject):
    """A model that takes and returns [time, batch, features]; values of the graph are batch first."""

    def test_the_axis_of_the_batch_is_found(self, harness: Harness, time_first_model: Make) -> None:
        """`infer_outputs` reports the batch axis of an output, and its spec without this axis."""
        _, (output,) = prepared(harness, time_first_model)
        assert (output.batch_axis, output.spec) == (1, X)

    def test_inputs_and_outputs_are_turned(self, harness: Harness, time_first_model: Make) -> None:
        """The model receives the batch on its axis, and its outputs are batch first again."""
        (y,), _ = program_of(harness, time_first_model).forward([harness.put(SAMPLES)])
        assert_close(harness.to_numpy(y), np.cumsum(SAMPLES, axis=1))

    def test_cotangents_are_turned_too(self, harness: Harness, time_first_model: Make) -> None:
        """Those of outputs and of inputs are batch first."""
        program = program_of(harness, time_first_model)
        (y,), _, pullback = program.forward_pullback([harness.put(SAMPLES)])
        (pulled,) = pullback([harness.put(SAMPLES)])
        assert_close(harness.to_numpy(y), np.cumsum(SAMPLES, axis=1))
        assert_close(harness.to_numpy(pulled), np.cumsum(SAMPLES[:, ::-1], axis=1)[:, ::-1])


def prepared(harness: Harness, make: Make) -> tuple[Any, tuple[OutputSpec, ...]]:
    """Return the model, placed, and its outputs; a skip without the capability."""
    if not getattr(harness.compute, "moves_batch_axis", False):
        pytest.skip("moves_batch_axis is not declared")
    model = harness.compute.wrap(make())
    outputs = harness.compute.infer_outputs(model, [X], ARGUMENTS, 7)
    return harness.backend.place(model, harness.device), outputs


def program_of(harness: Harness, make: Make) -> Program:
    """Return a program of the model alone."""
    model, outputs = prepared(harness, make)
    settings = {"arguments": ARGUMENTS, "results": outputs, "training_results": outputs}
    operation = harness.operation(NODE, model, ("x",), ("y",), **settings)
    return harness.compute.build(
        Segment(
            label="segment",
            operations=(operation,),
            inputs={"x": (X, harness.device)},
            outputs=("y",),
            needs_pullback=("x",),
        )
    )
