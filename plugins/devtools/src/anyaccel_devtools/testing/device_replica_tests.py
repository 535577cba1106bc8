"""Tests of replicas on several devices of one process: the capability `device_replicas`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import mul
from typing import Any, cast

import numpy as np
import pytest

from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.precision import ComputesPrecision, LossScale, LossScaleState, SegmentPrecision
from anyaccel.segment import Segment
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing.harness import NODE, Array, Batch, Harness, assert_close, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
BATCH = Batch.of(11)  # no number of replicas divides it
ADAM = Optimizer("adam", lr=0.05, clip_norm=0.5)
STEPS = 3


class DeviceReplicaTests(Subject):
    """Programs of copies of one model, on two devices or, if there is only one, all on that."""

    def test_copies_of_models_have_values_of_their_own(self, harness: Harness, model: Make) -> None:
        """They begin with equal values, on their device, and do not change while the original is trained."""
        _, other = replica_devices(harness, 2)
        original = harness.prepare_model(model)
        (copied,) = harness.backend.required(feature().DeviceReplicas).copy_models([original], other)
        start = harness.parameter_values(original)
        assert harness.backend.device_of(copied) == other
        assert_equal(harness.on_device(other).parameter_values(copied), start)
        program = harness.build(original, optimizer=Optimizer("sgd", lr=1.0))
        harness.train(program, BATCH, 1)
        program.close()
        assert any(not np.array_equal(value, start[name]) for name, value in harness.parameter_values(original).items())
        assert_equal(harness.parameter_values(copied), start)

    @pytest.mark.parametrize("n", [1, 2, 4])
    def test_replicas_train_like_one_program(self, harness: Harness, model: Make, n: int) -> None:
        """Losses, clipped steps and values equal those of one program, even if parts differ in rows."""
        devices = replica_devices(harness, n)
        start = harness.prepare_model(model)
        losses, values = trained(harness, harness.clone_model(model, start), devices[:1], shared=False)
        actual_losses, own_values = trained(harness, harness.clone_model(model, start), devices)
        np.testing.assert_allclose(actual_losses, losses, rtol=1e-5)
        assert_close(own_values, values, rtol=1e-3, atol=1e-4)

    def test_devices_that_divide_parameters_train_like_one(self, harness: Harness, model: Make) -> None:
        """If parameters can be sharded over devices, losses, clipped steps, values and states equal those of one."""
        devices = replica_devices(harness, 2)
        start = harness.prepare_model(model)
        backend = harness.backend.required(feature().DeviceReplicas)
        if devices[0] == devices[1] or backend.undividable_reason(harness.segment(start)):
            pytest.skip("parameters cannot be sharded here")
        losses, values = trained(harness, harness.clone_model(model, start), devices[:1], shared=False)
        divided = harness.clone_model(model, start)
        actual_losses, own_values = trained(harness, divided, devices, divided=True)
        np.testing.assert_allclose(actual_losses, losses, rtol=1e-5)
        assert_close(own_values, values, rtol=1e-3, atol=1e-4)
        assert harness.backend.device_of(divided) == devices[0]

    def test_nodes_that_stay_whole_train_like_one(self, harness: Harness, model: Make) -> None:
        """If nodes can stay whole next to sharded ones, losses, clipped steps and values equal those of one program."""
        devices = replica_devices(harness, 2)
        start = harness.prepare_model(model)
        backend = harness.backend.required(feature().DeviceReplicas)
        if devices[0] == devices[1] or not backend.divides_nodes:
            pytest.skip("parameters of single nodes cannot be sharded here")
        assert backend.undividable_reason(harness.segment(start), whole=(NODE,)) == ""
        losses, values = trained(harness, harness.clone_model(model, start), devices[:1], shared=False)
        kept = harness.clone_model(model, start)
        actual_losses, own_values = trained(harness, kept, devices, divided=True, whole=(NODE,))
        np.testing.assert_allclose(actual_losses, losses, rtol=1e-5)
        assert_close(own_values, values, rtol=1e-3, atol=1e-4)
        assert harness.backend.device_of(kept) == devices[0]

    def test_replicas_stay_equal(self, harness: Harness, model: Make) -> None:
        """After some steps all have the same values, to the last bit."""
        devices = replica_devices(harness, 2)
        backend = cast("ComputingBackend", harness.backend)
        segment = harness.segment(harness.prepare_model(model), optimizer=ADAM)
        copied = programs_of().copied_segment(backend, segment, devices[1])
        programs = [backend.build(segment), backend.build(copied)]
        program = programs_of().ReplicatedProgram(segment, backend, programs, devices)
        for _ in range(STEPS):
            harness.forward_backward(program, harness.inputs(BATCH))
            program.optimizer_step()
        program.close()
        first, second = (part.operations[0].model for part in (segment, copied))
        assert_equal(harness.parameter_values(second), harness.parameter_values(first))

    def test_a_fixed_order_of_sums_gives_the_same_bits(self, harness: Harness, model: Make) -> None:
        """Losses and values are bitwise equal for any number of replicas."""
        start = harness.prepare_model(model)
        ends = [
            trained(harness, harness.clone_model(model, start), replica_devices(harness, n), deterministic=True)
            for n in (1, 2, 4)
        ]
        for losses, values in ends[1:]:
            assert losses == ends[0][0]
            assert_equal(values, ends[0][1])

    def test_a_step_that_is_not_finite_in_one_replica_is_skipped_by_all(self, harness: Harness, model: Make) -> None:
        """Values, the loss scale and the counted steps of optimizers equal those of one program."""
        devices = replica_devices(harness, 2)
        backend = cast("ComputingBackend", harness.backend)
        computes = backend.capability(ComputesPrecision)
        if computes is None or "fp16-mixed" not in computes.precisions:
            pytest.skip("fp16-mixed, which needs a loss scale, is not declared")
        start = harness.prepare_model(model)
        alone, shared = harness.clone_model(model, start), harness.clone_model(model, start)
        scaled_steps(harness, backend.build(scaled_segment(harness, alone)))
        segment = scaled_segment(harness, shared)
        stands = scaled_steps(harness, programs_of().build_replicated(backend, segment, devices))
        assert stands == (LossScaleState(512.0, 1, 1), 2)
        assert_close(harness.parameter_values(shared), harness.parameter_values(alone), rtol=1e-3, atol=1e-4)


def scaled_segment(harness: Harness, prepared: Any) -> Segment:
    """Return a segment that trains a model with scaled losses."""
    segment = harness.segment(prepared, optimizer=Optimizer("adam", lr=0.05))
    return replace(segment, precision=SegmentPrecision(loss_scale=LossScale(initial=1024.0)))


def scaled_steps(harness: Harness, program: Any) -> tuple[LossScaleState, int]:
    """Run two steps, with a NaN target between them, as a phase does; return the resulting state."""
    spoiled = Batch(BATCH.x, {"mse": BATCH.targets["mse"].copy()})
    spoiled.targets["mse"][-1] = np.nan
    for batch in (BATCH, spoiled, BATCH):
        harness.forward_backward(program, harness.inputs(batch))
        program.map_gradients(partial(mul, 1.0 / program.loss_scale_state().scale))
        finite = all(bool(is_finite) for _, is_finite in program.grad_stats().values())
        if finite:
            program.optimizer_step()
        else:
            program.zero_grad()
        program.update_loss_scale(finite=finite)
    stands = program.loss_scale_state(), program.optimizer_states()[NODE].step
    program.close()
    return stands


def feature() -> Any:
    """Return the distribution of the capability, or skip without it."""
    return pytest.importorskip("anyaccel_distributed", reason="anyaccel-distributed is not installed")


def programs_of() -> Any:
    """Return its programs over several devices."""
    return importlib.import_module(f"{feature().__name__}.replicated_program")


def replica_devices(harness: Harness, n: int) -> list[Device]:
    """Return `n` devices, some of which may be the same; skip without the capability."""
    harness.declared(feature().DeviceReplicas, "device_replicas")
    kind = harness.device.kind
    others = [device for device in harness.backend.devices() if device.kind == kind and device != harness.device]
    every = [harness.device, *others]
    return [every[i % len(every)] for i in range(n)]


def trained(
    harness: Harness,
    prepared: Any,
    devices: list[Device],
    *,
    shared: bool = True,
    deterministic: bool = False,
    divided: bool = False,
    whole: tuple[str, ...] = (),
) -> tuple[list[float], dict[str, Array]]:
    """Return losses of some steps, and the values after them, of replicas or of a plain program."""
    segment = harness.segment(prepared, optimizer=ADAM)
    backend = cast("ComputingBackend", harness.backend)
    program = (
        programs_of().build_replicated(
            backend, segment, devices, deterministic=deterministic, divided=divided, whole=whole
        )
        if shared
        else backend.build(segment)
    )
    losses = []
    for _ in range(STEPS):
        (pair,) = harness.forward_backward(program, harness.inputs(BATCH)).values()
        losses.append(harness.mean_loss(pair))
        (group,) = segment.groups
        squares = program.grad_stats()[group.name][0]
        program.optimizer_step({group.name: program.clip_factor(0.5, [squares])})
    program.close()
    return losses, harness.parameter_values(prepared)
