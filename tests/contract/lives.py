"""Segments in few words, and the life of their programs: all acts one after the other, as arrays by name."""

from __future__ import annotations

import numpy as np
from taped import DonatingBackend, TapedBackend

from anyaccel.device import Device
from anyaccel.numpy_backend import Dense, NumpyBackend, SimArray
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer

CPU = Device("cpu")
ROWS = 6
ADAM = Optimizer("adam", lr=0.05, weight_decay=0.1)
KINDS = {"array": NumpyBackend, "traced": TapedBackend, "donating": DonatingBackend}


def device_of(array):
    """Where it is."""
    return array.device if isinstance(array, SimArray) else CPU


class Case:
    """A segment in the making. Values are float64 [rows, 2] but for what `columns` says."""

    def __init__(self, backend, place=(CPU, CPU)):
        self.backend, self.place = backend, place
        self.columns = dict(zip("xzt", np.random.default_rng(3).normal(size=(3, ROWS, 2)), strict=True))
        self.where = dict.fromkeys("xzt", place[0])
        self.operations, self.losses, self.models = [], [], []

    def built(self, model, width=2, dtype="float64", at=0):
        """A model on one of the two places, with the weights that its number among the models decides."""
        shape = (width,) if dtype == "float64" else ()
        self.backend.infer(model, [TensorSpec(shape, dtype)], len(self.models))
        self.models.append(self.backend.place(model, self.place[at]))
        return model

    def dense(self, width=2, at=0):
        return self.built(Dense(2, dtype="float64"), width, at=at)

    def node(self, label, model, inputs, outputs="", at=0, **settings):
        """An operation; its output goes by its label unless more are named."""
        names = tuple(outputs.split()) or (label,)
        where = self.place[at]
        self.operations.append(Operation(label, model, tuple(inputs.split()), names, where, **settings))
        self.where.update(dict.fromkeys(names, where))

    def loss(self, inputs, loss="mse", weight=1.0):
        names = tuple(inputs.split())
        recipe = loss if isinstance(loss, Loss) else Loss(loss)
        label = f"loss{len(self.losses)}"
        self.losses.append(LossTerm(label, names[0], recipe, names, self.where[names[0]], weight))

    def column(self, name, array, at=0):
        self.columns[name], self.where[name] = array, self.place[at]

    def segment(self, *groups, outputs="", pull=""):
        """All that was said, in one group for what is trainable unless groups are given."""
        nodes = tuple(op.label for op in self.operations if op.trainable and op.model is not None)
        specs = {
            name: (TensorSpec(array.shape[1:], array.dtype.name), self.where[name])
            for name, array in self.columns.items()
        }
        return Segment(
            label="case",
            operations=tuple(self.operations),
            inputs=specs,
            outputs=tuple(outputs.split()),
            losses=tuple(self.losses),
            groups=groups or (ParameterGroup("main", ADAM, nodes),),
            needs_pullback=tuple(pull.split()),
        )


class History:
    """What a program answers through a life of all acts, as arrays by name."""

    def __init__(self, case, segment):
        self.case, self.segment, self.found = case, segment, {}
        self.read = case.backend.to_host
        self.program = case.backend.build(segment)
        self.inputs = [case.backend.from_host(array, case.where[name]) for name, array in case.columns.items()]

    def note(self, what, values):
        for i, value in enumerate(values):
            self.found[f"{len(self.found)}: {what} {i}"] = None if value is None else np.array(self.read(value))

    def models(self):
        return [value for model in self.case.models for value in self.case.backend.state(model).values()]

    def lived(self):
        """All acts, one after the other."""
        self._steps_one_by_one()
        self._partly()
        if self.segment.losses:
            self._steps_at_once()
        self.note("snapshot", self._snapshot())
        self._published()
        self.note("slots", [s for state in self.program.close().values() for s in _slots(state)])
        self.note("released", self.models())
        return self.found

    def _partly(self):
        """Acts of steps that lack an input."""
        for i, name in enumerate(self.case.columns):
            lacking = [None if k == i else one for k, one in enumerate(self.inputs)]
            outputs, losses = self.program.forward(lacking)
            self.note(f"without {name}", outputs)
            self.note("its losses", [part for pair in losses.values() for part in pair])
            for given in (True, False):
                self._pulled(given, inputs=lacking)
                self._gradients()
                self.program.optimizer_step()
            self.note("steps", [np.array([state.step for state in self.program.optimizer_states().values()])])

    def _pulled(self, given, scale=None, inputs=None):
        outputs, losses, pullback = self.program.forward_pullback(inputs or self.inputs, scale)
        numbers = np.random.default_rng(5)
        cotangents = [
            self.case.backend.from_host(numbers.normal(size=value.shape), device_of(value))
            if given and value is not None and value.dtype.kind == "f"
            else None
            for value in outputs
        ]
        self.note("outputs", outputs)
        self.note("losses", [part for pair in losses.values() for part in pair])
        self.note("cotangents", pullback(cotangents))

    def _gradients(self):
        found = []
        self.program.map_gradients(lambda gradient: (found.append(gradient), gradient)[1])
        self.note("gradients", found)
        self.note("stats", [part for pair in self.program.grad_stats().values() for part in pair])

    def _steps_one_by_one(self):
        scale = {term.label: 0.1 * (i + 1) for i, term in enumerate(self.segment.losses)}
        for given, scales in ((True, None), (False, None), (True, scale)):
            self.note("forward", self.program.forward(self.inputs)[0])
            self._pulled(given, scales)
            self._pulled(not given, scales)
            self._gradients()
            self.program.optimizer_step({group.name: 0.5 for group in self.segment.groups} if given else None)
        self._pulled(True)
        self.program.zero_grad()

    def _steps_at_once(self):
        order = np.random.default_rng(6).permutation(ROWS)
        orders = [self.case.backend.from_host(order, self.case.where[name]) for name in self.case.columns]
        for start, count, batch in ((0, 3, 2), (1, 1, 4), (2, 2, 2)):
            self.note("means", [self.program.train_steps(self.inputs, orders, start, count, batch)])
        self.note("steps", [np.array([state.step for state in self.program.optimizer_states().values()])])

    def _act(self):
        self._pulled(True)
        self.program.optimizer_step()
        if self.segment.losses:
            self._steps_at_once()

    def _snapshot(self):
        """The outputs after some acts, twice from one snapshot."""
        snapshot, ends = self.program.snapshot(), []
        for _ in range(2):
            self._act()
            ends.append(self.program.forward(self.inputs)[0])
            self.program.restore(snapshot)
        for one, other in zip(*ends, strict=True):
            np.testing.assert_array_equal(self.read(one), self.read(other))
        return ends[0]

    def _published(self):
        """What was handed out stays as it was."""
        self.program.sync_models()
        states = self.program.optimizer_states()
        before = self.models(), [self.read(s).copy() for state in states.values() for s in _slots(state)]
        self.note("published", before[0])
        self._act()
        after = self.models(), [self.read(s) for state in states.values() for s in _slots(state)]
        for one, other in zip(before, after, strict=True):
            for was, now in zip(one, other, strict=True):
                np.testing.assert_array_equal(now, was)


def _slots(state):
    return [slots[name] for _, slots in sorted(state.slots.items()) for name in sorted(slots)]


def agree(make, kind, place):
    """The life of a segment as a traced program, and as an array program."""
    lives = []
    for each in ("array", kind):
        case = Case(KINDS[each](), place)
        lives.append(History(case, make(case, each)).lived())
    expected, found = lives
    assert list(found) == list(expected)
    for what, array in expected.items():
        if array is None or found[what] is None:
            assert array is None or not array.any(), what
            assert found[what] is None or not found[what].any(), what
        else:
            assert found[what].dtype == array.dtype, what
            np.testing.assert_allclose(found[what], array, rtol=1e-9, atol=1e-12, err_msg=what)
