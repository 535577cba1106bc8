"""Wrong backends that run steps of the user's own: rates, figures, buffers and states that go astray."""

from __future__ import annotations

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import bare

from .faults import fault


class Handle:
    """A model in a step: its outputs in training mode, which it remembers the way back of."""

    def __init__(self, program):
        self.program = program

    def __call__(self, x, t):
        outputs, _, self.pullback = ArrayProgram.forward_pullback(self.program, (x, t), self.program.no_loss)
        return outputs[0]


class Updates:
    """An optimizer in a step, for one cotangent of the model's outputs."""

    def __init__(self, program):
        self.program = program

    def step(self, model, cotangent):
        model.pullback([cotangent])
        self.program.update()


def train_step(models, batch, optimizers):
    """The kit's custom_step, for CustomStepProgram."""
    net = models["node"]
    outputs = net(batch["x"], batch["t"])
    difference = outputs - batch["t"]
    optimizers["node"].step(net, difference * (2 / difference.size))
    return {"loss": np.mean(difference * difference)}


class CustomStepProgram(ArrayProgram):
    """Right."""

    @property
    def no_loss(self):
        return {term.label: 0.0 for term in self.segment.losses}

    def custom_step(self, step, batch):
        return step({"node": Handle(self)}, batch, {"node": Updates(self)})

    def update(self):
        self.optimizer_step(self.factors())

    def factors(self):
        limit = self.segment.groups[0].optimizer.clip_norm
        if limit is None:
            return None
        return {name: self.clip_factor(limit, [square]) for name, (square, _) in self.grad_stats().items()}


class CustomStepBackend(NumpyBackend):
    """A right backend with steps of the user's own."""

    custom_steps = True
    program = CustomStepProgram

    def build(self, segment):
        return self.program(segment, NumpyOps())


@fault("compute", "test_a_step_of_the_users_own_trains_as_steps_of_the_program[clipped]")
class CustomStepsAreNotClipped(CustomStepBackend):
    class program(CustomStepProgram):
        def factors(self):
            return None


@fault("compute", "test_a_step_of_the_users_own_trains_as_steps_of_the_program[sgd with a schedule]")
class CustomStepsHaveTheFirstRate(CustomStepBackend):
    class program(CustomStepProgram):
        n_done = 0

        def factors(self):
            schedule = self.segment.groups[0].optimizer.schedule
            self.n_done += 1
            return super().factors() or {"all": 1 / schedule.factor(self.n_done - 1)}


@fault("compute", "test_the_figures_of_a_step_stay_on_the_device")
class FiguresAreOnTheHost(CustomStepBackend):
    class program(CustomStepProgram):
        def custom_step(self, step, batch):
            return {name: np.asarray(bare(value)) for name, value in super().custom_step(step, batch).items()}


@fault("compute", "test_evaluation_and_the_next_program_go_on_from_them")
class EvaluationIsAStepBehind(CustomStepBackend):
    class program(CustomStepProgram):
        before = None

        def custom_step(self, step, batch):
            self.before = self.snapshot()
            return super().custom_step(step, batch)

        def forward(self, inputs):
            if self.before is None:
                return super().forward(inputs)
            now = self.snapshot()
            self.restore(self.before)
            result = super().forward(inputs)
            self.restore(now)
            return result


@fault("compute", "test_buffers_change_in_steps_of_the_users_own")
class CustomStepsKeepBuffers(CustomStepBackend):
    class program(CustomStepProgram):
        def custom_step(self, step, batch):
            buffers = dict(self._buffers)
            given = super().custom_step(step, batch)
            self._buffers = buffers
            return given


@fault("compute", "test_restore_undoes_steps_of_the_users_own[model]")
class SnapshotsWithoutCustomSteps(CustomStepBackend):
    class program(CustomStepProgram):
        def restore(self, snapshot):
            pass


@fault("compute", "test_restore_undoes_steps_of_the_users_own[buffered_model]")
class SnapshotsOfCustomStepsWithoutBuffers(CustomStepBackend):
    class program(CustomStepProgram):
        def restore(self, snapshot):
            buffers = dict(self._buffers)
            super().restore(snapshot)
            self._buffers = buffers
