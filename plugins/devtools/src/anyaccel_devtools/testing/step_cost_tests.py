"""Tests of the capability `StepCosts`: the reported work of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.errors import CapabilityError
from anyaccel.segment import Segment
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing.harness import NODE, Harness, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]


class StepCostTests(Subject):
    """Operations and activations of a step, if the backend reports them."""

    def test_costs_grow_with_the_rows(self, harness: Harness, model: Make) -> None:
        """A node keeps its outputs at least, and twice the rows are twice the work."""
        prepared = harness.prepare_model(model)
        segment = harness.segment(prepared, optimizer=Optimizer("sgd", lr=0.1))
        one, two = (_step_cost(harness, segment, n_rows) for n_rows in (64, 128))
        width = 64 * np.dtype(harness.input_dtype(prepared)).itemsize
        assert one.activations[NODE] >= width
        assert 1.5 * one.activations[NODE] <= two.activations[NODE] <= 2 * one.activations[NODE] + width
        if one.flops is not None and two.flops is not None:
            assert 0 < 1.5 * one.flops <= two.flops <= 2 * one.flops

    def test_telling_costs_changes_nothing(self, harness: Harness, model: Make) -> None:
        """Neither a value of the model nor its device changes."""
        prepared = harness.prepare_model(model)
        before = {name: np.array(array) for name, array in harness.compute.state(prepared).items()}
        _step_cost(harness, harness.segment(prepared, optimizer=Optimizer("sgd", lr=0.1)), 8)
        assert_equal(harness.compute.state(prepared), before)
        assert harness.backend.device_of(prepared) == harness.device


def _step_cost(harness: Harness, segment: Segment, n_rows: int) -> StepCost:
    costs = harness.declared(StepCosts, "step_cost")
    try:
        return costs.step_cost(segment, n_rows)
    except CapabilityError as error:  # of such models
        pytest.skip(error.problem)
