"""Named optimizers against scalar formulas, with schedules, over several phases, and in both dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anyaccel.errors import SpecError
from anyaccel.numpy_backend import Module, VjpResult
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer, Schedule


class Constant(Module):
    """Gives its parameter for every sample, so that the parameter's gradient is the loss's."""

    def __init__(self, start=1.0, dtype="float64"):
        super().__init__()
        self.parameters["w"] = np.array([start], dtype)

    def apply(self, values, inputs, *, train, key):
        (x,), w = inputs, values["w"]
        return VjpResult((w + 0 * x,), lambda c: ({"w": np.sum(c[0], axis=0)}, (0 * c[0],)))


def by_hand(optimizer, w, gradients):
    """The parameter after each step, with Python's own numbers only."""
    velocity = m = v = 0.0
    s, wd, values = optimizer.settings, optimizer.settings["weight_decay"], []
    for t, gradient in enumerate(gradients, start=1):
        lr, g = optimizer.lr * optimizer.schedule.factor(t - 1), gradient
        if optimizer.name in ("sgd", "momentum"):
            g += wd * w
            velocity = s["momentum"] * velocity + g
            w -= lr * (g + s["momentum"] * velocity if s["nesterov"] else velocity)
        else:
            b1, b2 = s["betas"]
            if optimizer.name == "adamw":
                w *= 1 - lr * wd
            else:
                g += wd * w
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            w -= lr / (1 - b1**t) * m / (math.sqrt(v) / math.sqrt(1 - b2**t) + s["eps"])
        values.append(w)
    return values


OPTIMIZERS = {
    "sgd": Optimizer("sgd", lr=0.1),
    "sgd with decay": Optimizer("sgd", lr=0.1, weight_decay=0.3),
    "sgd with momentum": Optimizer("sgd", lr=0.1, momentum=0.5, weight_decay=0.1),
    "momentum": Optimizer("momentum", lr=0.05),
    "nesterov": Optimizer("momentum", lr=0.05, nesterov=True, weight_decay=0.1),
    "adam": Optimizer("adam", lr=0.1),
    "adam with decay": Optimizer("adam", lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2),
    "adamw": Optimizer("adamw", lr=0.1, weight_decay=0.3),
    "cosine with warmup": Optimizer("adam", lr=0.1, schedule=Schedule("cosine", steps=4, warmup=2)),
    "steps down": Optimizer("adamw", lr=0.1, schedule=Schedule("step", rate=0.5, every=2)),
}
GRADIENTS = [0.5, -1.25, 2.0, 0.1, -0.3, 0.0]


@pytest.fixture
def program(backend, segment, node, loss):
    """A program whose only parameter is `w`; the first gradients come by cotangents of its output."""

    def make(optimizer, model=None, states=None):
        model = model or Constant()
        columns = {"x": np.zeros((1, 1), model.parameters["w"].dtype)}
        return backend.build(
            segment(columns, [node("n", model, "x")], (), optimizer, outputs=("n",), states=states or {})
        )

    return make


def pull(program, gradient, dtype="float64"):
    _, _, pullback = program.forward_pullback([np.zeros((1, 1), dtype)])
    pullback([np.full((1, 1), gradient, dtype)])


def value(program, dtype="float64"):
    return float(program.forward([np.zeros((1, 1), dtype)])[0][0][0, 0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_follow_the_formulas(name, program):
    running = program(OPTIMIZERS[name])
    values = []
    for gradient in GRADIENTS:
        pull(running, gradient)
        running.optimizer_step()
        values.append(value(running))
    assert values == pytest.approx(by_hand(OPTIMIZERS[name], 1.0, GRADIENTS), rel=1e-12)
    assert running.optimizer_states()["n"].step == len(GRADIENTS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_single_precision_stays_single(name, program):
    running = program(OPTIMIZERS[name], Constant(dtype="float32"))
    for gradient in GRADIENTS:
        pull(running, gradient, "float32")
        running.optimizer_step({"main": np.float64(1.0)})
    states = running.close()
    assert running.segment.operations[0].model.parameters["w"].dtype == np.float32
    assert all(slot.dtype == np.float32 for slot in states["n"].slots["w"].values())
    assert value(running, "float32") == pytest.approx(by_hand(OPTIMIZERS[name], 1.0, GRADIENTS)[-1], rel=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_later_phase_resumes_the_optimizer_state(name, program):
    model = Constant()
    first = program(OPTIMIZERS[name], model)
    for gradient in GRADIENTS[:3]:
        pull(first, gradient)
        first.optimizer_step()
    second = program(OPTIMIZERS[name], model, first.close())
    for gradient in GRADIENTS[3:]:
        pull(second, gradient)
        second.optimizer_step()
    assert value(second) == pytest.approx(by_hand(OPTIMIZERS[name], 1.0, GRADIENTS)[-1], rel=1e-12)


def test_the_slots_have_the_names_of_the_formulas(program):
    for name, slots in {"sgd": set(), "momentum": {"velocity"}, "adam": {"m", "v"}, "adamw": {"m", "v"}}.items():
        running = program(Optimizer(name))
        pull(running, 1.0)
        running.optimizer_step()
        assert set(running.optimizer_states()["n"].slots["w"]) == slots


@pytest.mark.parametrize(
    "state",
    [
        NodeState(7, {"w": {"velocity": np.ones(1)}}),
        NodeState(7, {"w": {"m": np.ones(3), "v": np.ones(3)}}),
        NodeState(7, {"other": {"m": np.ones(1), "v": np.ones(1)}}),
    ],
    ids=["of another optimizer", "of other shapes", "of other parameters"],
)
def test_a_state_that_does_not_fit_is_replaced_by_a_fresh_one(state, program):
    running = program(Optimizer("adam"), states={"n": state})
    assert running.optimizer_states()["n"] == NodeState()


def test_numbers_and_arrays_scale_the_gradients(program):
    for scale in (0.5, np.float32(0.5), np.array(0.5), np.array(0.5, "float32")):
        running = program(Optimizer("sgd", lr=1.0))
        pull(running, 0.5)
        running.optimizer_step({"main": scale, "another": 3.0})
        assert value(running) == 0.75


def test_a_class_as_optimizer_is_refused(program):
    class Own:
        pass

    with pytest.raises(SpecError) as caught:
        program(Optimizer(Own))
    assert str(caught.value) == (
        "optimizer 'Own' belongs to a framework, but this framework accepts named optimizers only. "
        "Available: sgd, momentum, adam, adamw. Hint: use one of these names."
    )
