"""Tests of calls by keyword: inputs reach the arguments of their names, outputs are found by their paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.segment import Operation, OutputSpec, Segment, TensorSpec
from anyaccel_devtools.testing.harness import Array, Harness
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
X = TensorSpec((4,), "float32")
ORDERS = [("minuend", "subtrahend"), ("subtrahend", "minuend")]
OUTPUTS = {("difference",): OutputSpec(("difference",), X), ("parts", "first"): OutputSpec(("parts", "first"), X)}


class KeywordTests(Subject):
    """A model with named inputs and outputs in a dict."""

    def test_outputs_are_found_by_their_paths(self, harness: Harness, keyword_model: Make) -> None:
        """`infer_outputs` returns the path to each tensor of the model's result, at any depth, in both modes."""
        model, outputs = prepared(harness, keyword_model, ORDERS[0])
        assert {output.path: output for output in outputs} == OUTPUTS
        training = harness.compute.infer_training(model, [X, X], paths(ORDERS[0]))
        assert {output.path: output for output in training or outputs} == OUTPUTS

    def test_a_signature_names_the_inputs(self, harness: Harness, keyword_model: Make) -> None:
        """`signature` has the inputs of a model, if known, and no arguments that the backend passes itself."""
        model, _ = prepared(harness, keyword_model, ORDERS[0])
        signature = harness.compute.signature(model)
        assert signature is None or tuple(signature.parameters) == ORDERS[0]

    @pytest.mark.parametrize("order", ORDERS, ids=",".join)
    def test_inputs_reach_the_arguments_of_their_names(
        self, harness: Harness, keyword_model: Make, order: tuple[str, str]
    ) -> None:
        """Each input is passed as the argument with its name, in any order of the inputs."""
        values, program = inputs(order), program_of(harness, keyword_model, order)
        outputs = [harness.to_numpy(output) for output in program.forward(list(map(harness.put, values.values())))[0]]
        np.testing.assert_array_equal(outputs[0], values["minuend"] - values["subtrahend"])
        np.testing.assert_array_equal(outputs[1], values["minuend"])

    @pytest.mark.parametrize("order", ORDERS, ids=",".join)
    def test_cotangents_return_to_the_inputs_of_their_names(
        self, harness: Harness, keyword_model: Make, order: tuple[str, str]
    ) -> None:
        """The pullback gives each input the cotangent of the argument of its name."""
        values, program = inputs(order), program_of(harness, keyword_model, order)
        outputs, _, pullback = program.forward_pullback(list(map(harness.put, values.values())))
        ones = [harness.put(np.full((3, 4), factor, "float32")) for factor in (1, 10)][: len(outputs)]
        pulled = dict(zip(order, map(harness.to_numpy, pullback(ones)), strict=True))
        assert {name: set(value.ravel()) for name, value in pulled.items()} == {"minuend": {11.0}, "subtrahend": {-1.0}}


def inputs(order: tuple[str, str]) -> dict[str, Array]:
    """Return three samples of each input, in this order."""
    first = np.arange(12, dtype="float32").reshape(3, 4)
    values = {"minuend": first + 100, "subtrahend": first * 3}
    return {name: values[name] for name in order}


def paths(order: tuple[str, str]) -> tuple[tuple[str], ...]:
    """Return `Operation.arguments` of inputs in this order."""
    return tuple((name,) for name in order)


def prepared(harness: Harness, make: Make, order: tuple[str, str]) -> tuple[Any, tuple[OutputSpec, ...]]:
    """Return the model, built for inputs in this order and placed, and its outputs; a skip without the capability."""
    if not harness.compute.calls_by_keyword:
        pytest.skip("calls_by_keyword is not declared")
    model = harness.compute.wrap(make())
    outputs = harness.compute.infer_outputs(model, [X, X], paths(order), 7)
    return harness.backend.place(model, harness.device), outputs


def program_of(harness: Harness, make: Make, order: tuple[str, str]) -> Any:
    """Return a program of the model alone, with inputs in this order and the outputs in that of OUTPUTS."""
    model, _ = prepared(harness, make, order)
    specs = tuple(OUTPUTS.values())
    operation = Operation(
        label="node",
        model=model,
        inputs=order,
        outputs=("difference", "first"),
        device=harness.device,
        arguments=paths(order),
        results=specs,
        training_results=specs,
    )
    return harness.compute.build(
        Segment(
            label="segment",
            operations=(operation,),
            inputs=dict.fromkeys(order, (X, harness.device)),
            outputs=operation.outputs,
            needs_pullback=order,
        )
    )
