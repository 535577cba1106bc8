"""Tests of the capability `offload`: models with blocks on several devices, or with weights stored elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.errors import CapabilityError, ConfigError
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing.harness import Batch, Harness, assert_close, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(6)


class OffloadTests(Subject):
    """A model whose weights are stored in host memory while it computes on the device; on the CPU that is where they
    are.
    """

    def test_an_offload_plan_places_every_parameter(self, harness: Harness, model: Make) -> None:
        """Blocks have the bytes of all parameters, on devices that there are; and a plan goes through plain data."""
        prepared = harness.prepare_model(model)
        plan = planned(harness, prepared)
        assert sum(block.nbytes for block in plan.blocks) == nbytes(harness, prepared)
        assert {block.device for block in plan.blocks} <= {*harness.backend.devices(), Device("cpu")}
        assert all(block.step_bytes >= block.nbytes for block in plan.blocks if block.tier)
        assert type(plan).from_dict(plan.to_dict()) == plan

    def test_planning_an_offload_moves_nothing(self, harness: Harness, model: Make) -> None:
        """The model stays on its device, with its values."""
        prepared = harness.prepare_model(model)
        before = harness.parameter_values(prepared)
        planned(harness, prepared)
        assert harness.backend.device_of(prepared) == harness.device
        assert_equal(harness.parameter_values(prepared), before)

    def test_a_map_that_names_no_part_of_the_model_is_refused(self, harness: Harness, model: Make) -> None:
        """It raises a ConfigError that names it."""
        backend, prepared = offloading(harness), harness.prepare_model(model)
        planned(harness, prepared)
        with pytest.raises(ConfigError, match="no_such_part"):
            backend.plan_offload(prepared, harness.device, feature().OffloadRequest(device_map={"no_such_part": "cpu"}))

    def test_an_offloaded_model_keeps_its_values(self, harness: Harness, model: Make) -> None:
        """It keeps them by name; a second call returns the same object."""
        backend, prepared = offloading(harness), harness.prepare_model(model)
        before = harness.parameter_values(prepared)
        plan = planned(harness, prepared)
        put = backend.offload(prepared, harness.device, plan)
        assert_equal(harness.parameter_values(put), before)
        assert backend.offload(put, harness.device, plan) is put

    def test_an_offloaded_model_trains_like_a_resident_one(self, harness: Harness, model: Make) -> None:
        """Losses and values are equal after some clipped steps of Adam."""
        start = harness.prepare_model(model)
        resident, other = harness.clone_model(model, start), harness.clone_model(model, start)
        put = offloading(harness).offload(other, harness.device, planned(harness, other))
        losses, values = trained(harness, resident)
        actual_losses, own_values = trained(harness, put)
        np.testing.assert_allclose(actual_losses, losses, rtol=1e-5, atol=1e-6)
        assert_close(own_values, values, rtol=1e-4, atol=1e-5)

    def test_a_model_is_ordinary_again_where_its_offload_ends(self, harness: Harness, model: Make) -> None:
        """It has the trained values; and it can be placed."""
        backend, prepared = offloading(harness), harness.prepare_model(model)
        put = backend.offload(prepared, harness.device, planned(harness, prepared))
        _, values = trained(harness, put)
        back = harness.backend.place(backend.end_offload(put), harness.device)
        assert harness.backend.device_of(back) == harness.device
        assert_equal(harness.parameter_values(back), values)
        assert backend.end_offload(back) is back


def feature() -> Any:
    """Return the distribution of the capability, or skip without it."""
    return pytest.importorskip("anyaccel_offload", reason="anyaccel-offload is not installed")


def offloading(harness: Harness) -> Any:
    """Return the capability, or skip without it."""
    return harness.declared(feature().OffloadModels, "offload")


def planned(harness: Harness, model: Any) -> Any:
    """Return the plan that stores all weights of a model in host memory; skip if the backend refuses the model."""
    host = feature().OffloadRequest(device_map={"": "cpu"}, offload="cpu", training=True)
    try:
        return offloading(harness).plan_offload(model, harness.device, host)
    except CapabilityError as refused:
        pytest.skip(str(refused))


def nbytes(harness: Harness, model: Any) -> int:
    """Return bytes of all parameters of a model."""
    return sum(spec.nbytes for spec in harness.compute.parameters(model).values())


def trained(harness: Harness, model: Any) -> tuple[list[float], dict[str, Any]]:
    """Return the losses of some steps, and the values after them."""
    program = harness.build(model, optimizer=Optimizer("adam", lr=0.05, clip_norm=0.5), compile="off")
    inputs, losses = harness.inputs(BATCH), []
    for _ in range(3):
        losses += [harness.mean_loss(loss) for loss in harness.forward_backward(program, inputs).values()]
        program.optimizer_step(factors(harness, program))
    program.close()
    return losses, cast("dict[str, Any]", harness.parameter_values(model))


def factors(harness: Harness, program: Any) -> dict[str, Any]:
    """Return the factors of gradients for a norm of at most 0.5."""
    return {name: program.clip_factor(0.5, [square]) for name, (square, _) in program.grad_stats().items()}
