"""Builders of segments in few words, and the history of a program: what it returns through its whole life."""

from __future__ import annotations

import numpy as np

from anyaccel.device import Device
from anyaccel.numpy_backend import Dense, NumpyBackend, SimArray
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer

from .taped_ops import DonatingBackend, TapedBackend

CPU = Device("cpu")
ROWS = 6
ADAM = Optimizer("adam", lr=0.05, weight_decay=0.1)
BACKENDS = {"array": NumpyBackend, "traced": TapedBackend, "donating": DonatingBackend}


def device_of(array):
    """The device of an array."""
    return array.device if isinstance(array, SimArray) else CPU


class SegmentBuilder:
    """Collects models, operations and losses. Columns are float64 [rows, 2] unless `column` adds others."""

    def __init__(self, backend, devices=(CPU, CPU)):
        self.backend, self.devices = backend, devices
        self.columns = dict(zip("xzt", np.random.default_rng(3).normal(size=(3, ROWS, 2)), strict=True))
        self.device_of_value = dict.fromkeys("xzt", devices[0])
        self.operations, self.losses, self.models = [], [], []

    def built(self, model, width=2, dtype="float64", at=0):
        """A model built on one of the two devices; the seed is its number among the models."""
        shape = (width,) if dtype == "float64" else ()
        self.backend.infer(model, [TensorSpec(shape, dtype)], len(self.models))
        self.models.append(self.backend.place(model, self.devices[at]))
        return model

    def dense(self, width=2, at=0):
        return self.built(Dense(2, dtype="float64"), width, at=at)

    def node(self, label, model, inputs, outputs="", at=0, **settings):
        """Add an operation; its output is named by its label unless others are named."""
        names = tuple(outputs.split()) or (label,)
        device = self.devices[at]
        self.operations.append(Operation(label, model, tuple(inputs.split()), names, device, **settings))
        self.device_of_value.update(dict.fromkeys(names, device))

    def loss(self, inputs, loss="mse", weight=1.0):
        names = tuple(inputs.split())
        spec = loss if isinstance(loss, Loss) else Loss(loss)
        label = f"loss{len(self.losses)}"
        self.losses.append(LossTerm(label, names[0], spec, names, self.device_of_value[names[0]], weight))

    def column(self, name, array, at=0):
        self.columns[name], self.device_of_value[name] = array, self.devices[at]

    def segment(self, *groups, outputs="", pull=""):
        """The segment; what is trainable forms one parameter group unless groups are given."""
        nodes = tuple(op.label for op in self.operations if op.trainable and op.model is not None)
        specs = {
            name: (TensorSpec(array.shape[1:], array.dtype.name), self.device_of_value[name])
            for name, array in self.columns.items()
        }
        return Segment(
            label="built",
            operations=tuple(self.operations),
            inputs=specs,
            outputs=tuple(outputs.split()),
            losses=tuple(self.losses),
            groups=groups or (ParameterGroup("main", ADAM, nodes),),
            needs_pullback=tuple(pull.split()),
        )


class ProgramHistory:
    """Runs a program through all of its methods and records what it returns, as arrays by name."""

    def __init__(self, builder, segment):
        self.builder, self.segment, self.recorded = builder, segment, {}
        self.to_host = builder.backend.to_host
        self.program = builder.backend.build(segment)
        self.inputs = [
            builder.backend.from_host(array, builder.device_of_value[name]) for name, array in builder.columns.items()
        ]

    def record(self, name, values):
        for i, value in enumerate(values):
            array = None if value is None else np.array(self.to_host(value))
            self.recorded[f"{len(self.recorded)}: {name} {i}"] = array

    def model_values(self):
        return [value for model in self.builder.models for value in self.builder.backend.state(model).values()]

    def run(self):
        """All calls, one after the other; returns what was recorded."""
        self._single_steps()
        self._steps_with_missing_inputs()
        if self.segment.losses:
            self._train_steps()
        self.record("snapshot", self._restored_outputs())
        self._sync_models()
        self.record("slots", [slot for state in self.program.close().values() for slot in _slots(state)])
        self.record("closed", self.model_values())
        return self.recorded

    def _steps_with_missing_inputs(self):
        for i, name in enumerate(self.builder.columns):
            partial = [None if k == i else value for k, value in enumerate(self.inputs)]
            outputs, losses = self.program.forward(partial)
            self.record(f"without {name}", outputs)
            self.record("its losses", [part for pair in losses.values() for part in pair])
            for with_cotangents in (True, False):
                self._forward_backward(with_cotangents, inputs=partial)
                self._gradients()
                self.program.optimizer_step()
            self._record_step_counts()

    def _forward_backward(self, with_cotangents, scale=None, inputs=None):
        outputs, losses, pullback = self.program.forward_pullback(inputs or self.inputs, scale)
        random = np.random.default_rng(5)
        cotangents = [
            self.builder.backend.from_host(random.normal(size=value.shape), device_of(value))
            if with_cotangents and value is not None and value.dtype.kind == "f"
            else None
            for value in outputs
        ]
        self.record("outputs", outputs)
        self.record("losses", [part for pair in losses.values() for part in pair])
        self.record("cotangents", pullback(cotangents))

    def _gradients(self):
        gradients = []
        self.program.map_gradients(lambda gradient: (gradients.append(gradient), gradient)[1])
        self.record("gradients", gradients)
        self.record("stats", [part for pair in self.program.grad_stats().values() for part in pair])

    def _record_step_counts(self):
        steps = [state.step for state in self.program.optimizer_states().values()]
        self.record("steps", [np.array(steps)])

    def _single_steps(self):
        scale = {term.label: 0.1 * (i + 1) for i, term in enumerate(self.segment.losses)}
        for with_cotangents, scales in ((True, None), (False, None), (True, scale)):
            self.record("forward", self.program.forward(self.inputs)[0])
            self._forward_backward(with_cotangents, scales)
            self._forward_backward(not with_cotangents, scales)
            self._gradients()
            halves = {group.name: 0.5 for group in self.segment.groups}
            self.program.optimizer_step(halves if with_cotangents else None)
        self._forward_backward(True)
        self.program.zero_grad()

    def _train_steps(self):
        order = np.random.default_rng(6).permutation(ROWS)
        columns = self.builder.columns
        orders = [self.builder.backend.from_host(order, self.builder.device_of_value[name]) for name in columns]
        for start, n_steps, batch_size in ((0, 3, 2), (1, 1, 4), (2, 2, 2)):
            self.record("means", [self.program.train_steps(self.inputs, orders, start, n_steps, batch_size)])
        self._record_step_counts()

    def _train(self):
        self._forward_backward(True)
        self.program.optimizer_step()
        if self.segment.losses:
            self._train_steps()

    def _restored_outputs(self):
        """The outputs after some training, which must be the same twice from one snapshot."""
        snapshot, runs = self.program.snapshot(), []
        for _ in range(2):
            self._train()
            runs.append(self.program.forward(self.inputs)[0])
            self.program.restore(snapshot)
        for first, second in zip(*runs, strict=True):
            np.testing.assert_array_equal(self.to_host(first), self.to_host(second))
        return runs[0]

    def _sync_models(self):
        """What `sync_models` and `optimizer_states` gave stays as it was while training continues."""
        self.program.sync_models()
        states = self.program.optimizer_states()
        synced = self.model_values(), [self.to_host(s).copy() for state in states.values() for s in _slots(state)]
        self.record("synced", synced[0])
        self._train()
        later = self.model_values(), [self.to_host(s) for state in states.values() for s in _slots(state)]
        for before, after in zip(synced, later, strict=True):
            for was, now in zip(before, after, strict=True):
                np.testing.assert_array_equal(now, was)


def _slots(state):
    return [slots[name] for _, slots in sorted(state.slots.items()) for name in sorted(slots)]


def assert_same_history(make, kind, devices):
    """Assert that a segment has the same history as a traced program and as an array program."""
    histories = []
    for name in ("array", kind):
        builder = SegmentBuilder(BACKENDS[name](), devices)
        histories.append(ProgramHistory(builder, make(builder, name)).run())
    expected, actual = histories
    assert list(actual) == list(expected)
    for name, array in expected.items():
        if array is None or actual[name] is None:
            assert array is None or not array.any(), name
            assert actual[name] is None or not actual[name].any(), name
        else:
            assert actual[name].dtype == array.dtype, name
            np.testing.assert_allclose(actual[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
