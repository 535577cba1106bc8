"""Tests of an optimizer's settings by parameter: `Optimizer.groups`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Program
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer, Schedule
from anyaccel_devtools.testing import reference_formulas
from anyaccel_devtools.testing.harness import NODE, Array, Batch, Harness, assert_close
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)
OPTIMIZERS = {
    "sgd": {"name": "sgd", "lr": 0.1, "weight_decay": 0.1},
    "momentum": {"name": "momentum", "lr": 0.05, "schedule": Schedule("exponential", rate=0.7)},
    "adamw": {"name": "adamw", "lr": 0.05, "weight_decay": 0.3},
    "clipped by value": {"name": "sgd", "lr": 0.1, "clip_value": 1e-3},
}
FIRST = {"lr": 0.02, "weight_decay": 0.5}
SECOND = {"lr": 0.3}


class ParameterGroupTests(Subject):
    """Parameters with their own settings."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_each_parameter_is_updated_with_the_settings_of_its_group(
        self, harness: Harness, model: Make, name: str
    ) -> None:
        """One is in a group by its name, one by a predicate, and the others have the usual settings."""
        prepared = harness.prepare_model(model)
        optimizer = grouped(harness, prepared, **OPTIMIZERS[name])
        start = harness.parameter_values(prepared)
        program = harness.build(prepared, optimizer=optimizer)
        gradients = harness.train(program, BATCH, 3)
        program.close()
        assert_close(harness.parameter_values(prepared), expected(optimizer, start, gradients), rtol=2e-5, atol=2e-6)

    def test_the_first_group_of_a_parameter_counts(self, harness: Harness, model: Make) -> None:
        """A name that matches several patterns has the settings of the first."""
        prepared = harness.prepare_model(model)
        first = next(iter(declared_parameters(harness, prepared)))
        groups = {first: {"lr": 0.01}, "*": {"lr": 0.2}}
        optimizer = Optimizer("sgd", lr=0.1, groups=groups)
        start = harness.parameter_values(prepared)
        program = harness.build(prepared, optimizer=optimizer)
        (gradients,) = harness.train(program, BATCH, 1)
        program.close()
        rates = {name: 0.01 if name == first else 0.2 for name in start}
        after = {name: w - rates[name] * g for (name, w), g in zip(start.items(), gradients, strict=True)}
        assert_close(harness.parameter_values(prepared), after)

    def test_groups_keep_their_state_from_program_to_program(self, harness: Harness, model: Make) -> None:
        """The slots of all groups are among the states of the node, and the next program continues from them."""
        prepared = harness.prepare_model(model)
        optimizer = grouped(harness, prepared, **OPTIMIZERS["adamw"])
        start = harness.parameter_values(prepared)
        states: dict[str, NodeState] = {}
        gradients: list[list[Array]] = []
        for steps in (2, 1):
            program: Program = harness.build(prepared, optimizer=optimizer, states=states)
            gradients += harness.train(program, BATCH, steps)
            states = program.close()
        assert states[NODE].step == 3
        assert set(states[NODE].slots) == set(start)
        assert_close(harness.parameter_values(prepared), expected(optimizer, start, gradients), rtol=2e-5, atol=2e-6)


def declared_parameters(harness: Harness, model: Any) -> list[str]:
    """Return the names of a model's parameters; a skip without the capability."""
    if not harness.compute.parameter_groups:
        pytest.skip("parameter_groups is not declared")
    return list(harness.compute.parameters(model))


def grouped(harness: Harness, model: Any, **settings: Any) -> Optimizer:
    """Return an optimizer whose first parameter is in one group, by name, and the last in another, by a predicate."""
    names = declared_parameters(harness, model)
    return Optimizer(**settings, groups={names[0]: FIRST, lambda name, parameter: name == names[-1]: SECOND})


def expected(optimizer: Optimizer, start: dict[str, Array], gradients: list[list[Array]]) -> dict[str, Array]:
    """Return the parameters after steps with these gradients, each by the formula with the settings of its group.

    `clip_value` applies to the whole optimizer.
    """
    names, limit = list(start), optimizer.clip_value or np.inf
    gradients = [[np.clip(gradient, -limit, limit) for gradient in step] for step in gradients]
    (_, first), (_, second) = optimizer.groups
    settings = {**dict.fromkeys(names, optimizer), names[-1]: second, names[0]: first}
    return {
        name: reference_formulas.train(settings[name], {name: start[name]}, [[step[i]] for step in gradients])[name]
        for i, name in enumerate(names)
    }
