"""TracedProgram: the kit over it, and the same numbers as ArrayProgram for segments of all kinds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyaccel.device import Device
from anyaccel.errors import SpecError
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Module, Sequential, VjpResult, simulate
from anyaccel.numpy_backend.transfers import moved
from anyaccel.segment import ParameterGroup
from anyaccel.specs import Loss, Optimizer
from anyaccel.testing import suite

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside this one

from lives import CPU, ROWS, Case, agree, device_of
from subjects import Reference, Simulated
from taped import DonatingBackend, TapedBackend

FIRST, SECOND = Device("sim", 0), Device("sim", 1)


class Taped(Reference):
    """On the CPU."""

    cls = TapedBackend


class Donating(Simulated):
    """On simulated devices, where a step destroys the state before and nothing is compiled for two devices."""

    cls = DonatingBackend


globals().update(suite(Taped, "Taped") | suite(Donating, "Donating"))


class Split(Module):
    """Two outputs of one input: times a factor, and minus it; and how often it has trained."""

    def __init__(self, width):
        super().__init__()
        self.parameters["factor"] = np.linspace(1.0, 2.0, width)
        self.buffers["times"] = np.zeros(1)

    def apply(self, values, inputs, *, train, key):
        (x,), factor = inputs, values["factor"]

        def pullback(cotangents):
            p, q = cotangents
            return {"factor": np.sum(p * x, axis=0)}, (p * factor - q,)

        return VjpResult((x * factor, -x), pullback, {"times": values["times"] + 1} if train else None)


class Table(Module):
    """Rows of a table by integers, which have no gradient; gives the integers, too."""

    def __init__(self):
        super().__init__()
        self.parameters["table"] = np.arange(6.0).reshape(3, 2) / 5

    def apply(self, values, inputs, *, train, key):
        (index,), table = inputs, values["table"]

        def pullback(cotangents):
            chosen = np.equal(index[:, None], moved(np.arange(3), device_of(index)))
            return {"table": np.matmul(chosen.astype("float64").T, cotangents[0])}, (None,)

        return VjpResult((table[index], index), pullback)


def one_model(case, _):
    case.node(
        "a", case.built(Sequential(Dense(3, dtype="float64"), Activation("tanh"), Dense(2, dtype="float64"))), "x"
    )
    case.loss("a t")
    return case.segment(outputs="a", pull="x")


def several_losses(case, _):
    case.node("a", case.dense(), "x")
    case.column("k", np.arange(ROWS) % 2)
    for name, weight in (("mse", 0.5), ("mae", 2.0), ("binary_cross_entropy", 1.0)):
        case.loss("a t", name, weight)
    case.loss("a k", "cross_entropy", 3.0)
    return case.segment(pull="x t")


def losses_on_several_nodes(case, _):
    case.node("a", case.dense(), "x")
    case.node("b", case.dense(at=1), "a", at=1)
    case.loss("a t", weight=0.5)
    case.loss("b t", "mae")
    case.loss("b a")
    return case.segment(outputs="a b", pull="x")


def frozen_first(case, _):
    case.node("a", case.built(BatchNorm(dtype="float64")), "x", trainable=False)
    case.node("b", case.dense(at=1), "a", at=1)
    case.loss("b t")
    return case.segment(outputs="a b")


def frozen_last(case, _):
    case.node("a", case.dense(), "x")
    case.node("b", case.built(BatchNorm(dtype="float64"), at=1), "a", at=1, trainable=False)
    case.loss("b t")
    return case.segment(pull="x")


def frozen_alone(case, _):
    case.node("a", case.dense(), "x", trainable=False)
    case.node("b", case.dense(), "z")
    case.loss("a t")
    case.loss("b t")
    return case.segment(outputs="a", pull="x")


def shared(case, _):
    model = case.dense()
    case.node("a", model, "x")
    case.node("b", model, "a")
    case.node("c", case.dense(), "z")
    case.node("j", None, "b c", axis=0)
    case.node("d", case.dense(4), "j")
    case.loss("d t")
    return case.segment(outputs="j", pull="z")


def shared_with_a_frozen_node(case, _):
    model = case.dense()
    case.node("a", model, "x", trainable=False)
    case.node("b", model, "a")
    case.loss("b t")
    return case.segment(outputs="a")


def clipped_groups(case, _):
    case.node("a", case.dense(), "x")
    case.node("b", case.dense(at=1), "a", at=1)
    case.node("c", case.dense(), "z")
    case.loss("b t")
    case.loss("c t")
    clipped = (Optimizer("sgd", lr=0.1, clip_norm=0.05), Optimizer("adamw", lr=0.1, clip_norm=1e3))
    groups = (ParameterGroup(name, one, nodes) for name, one, nodes in zip("pq", clipped, ("ac", "b"), strict=True))
    return case.segment(*(replace(group, nodes=tuple(group.nodes)) for group in groups), outputs="b")


def buffers(case, _):
    case.node("a", case.built(Sequential(Dense(2, dtype="float64"), BatchNorm(dtype="float64"))), "x")
    case.node("b", case.built(Split(2)), "a", "p q")
    case.node("c", case.operations[1].model, "z", "r s")
    case.loss("p t")
    case.loss("r t")
    return case.segment(outputs="q", pull="x z")


def integers(case, _):
    case.column("k", np.arange(ROWS) % 3)
    case.node("a", case.built(Table(), dtype="int64"), "k", "v i")
    case.loss("v t")
    return case.segment(outputs="i v", pull="k")


def nobody_asks(case, _):
    case.node("a", case.dense(), "x")
    case.node("b", case.dense(), "x")
    case.node("c", case.dense(at=1), "z", at=1)
    case.loss("a t")
    return case.segment(outputs="c", pull="z")


def squares(y, t):
    """A loss that gives its own gradients, as the reference backend wants it."""
    return np.sum((y - t) * (y - t)) / 2, len(y), (y - t, None)


def a_loss_of_its_own(case, kind):
    case.node("a", case.dense(), "x")
    case.loss("a t", Loss(squares if kind == "array" else lambda y, t: ((y - t) * (y - t)).mean()), 0.25)
    case.loss("a t", Loss(squares if kind == "array" else lambda y, t: -((t - y) * (y - t)).mean() / 1.0))
    return case.segment(pull="x")


def no_loss(case, _):
    case.node("a", case.dense(), "x")
    return case.segment(outputs="a", pull="x")


CASES = {case.__name__: case for case in (
    one_model, several_losses, losses_on_several_nodes, frozen_first, frozen_last, frozen_alone, shared,
    shared_with_a_frozen_node, clipped_groups, buffers, integers, nobody_asks, a_loss_of_its_own, no_loss,
)}  # fmt: skip


@pytest.mark.parametrize("kind", ["traced", "donating"])
@pytest.mark.parametrize("name", CASES)
def test_a_traced_program_gives_the_numbers_of_an_array_program(name, kind):
    agree(CASES[name], kind, (CPU, CPU))


@pytest.mark.parametrize("kind", ["traced", "donating"])
@pytest.mark.parametrize("name", CASES)
def test_two_devices_change_no_number(name, kind):
    with simulate(2):
        agree(CASES[name], kind, (FIRST, SECOND))


def drawn(numbers):
    """A segment of two to five nodes, any of them frozen, shared, judged, or on the second device."""

    def make(case, _):
        draw = np.random.default_rng(numbers)
        values, dense = ["x", "z"], []
        for i in range(draw.integers(2, 6)):
            name, at = f"n{i}", int(draw.integers(2))
            kind = draw.choice(["dense", "dense", "again", "join", "tanh"])
            if kind == "join":
                case.node(f"j{i}", None, " ".join(draw.choice(values, 2)), at=at)
                case.node(name, case.dense(4, at=at), f"j{i}", at=at)
            elif kind == "again" and dense:
                model, at = dense[draw.integers(len(dense))]
                case.node(name, model, draw.choice(values), at=at, trainable=bool(draw.integers(3)))
            else:
                model = Activation("tanh") if kind == "tanh" else case.dense(at=at)
                case.node(name, model, draw.choice(values), at=at, trainable=bool(draw.integers(3)))
                if kind != "tanh":
                    dense.append((model, at))
            values.append(name)
        for name in draw.choice(values[2:], 2):
            case.loss(f"{name} t", str(draw.choice(["mse", "mae"])), float(draw.uniform(0.5, 2)))
        optimizer = Optimizer("momentum", lr=0.05, clip_norm=float(draw.choice([0.05, 100.0])))
        nodes = tuple(op.label for op in case.operations if op.trainable and op.model is not None)
        return case.segment(ParameterGroup("main", optimizer, nodes), outputs=f"{values[-1]} {values[2]}", pull="x z")

    return make


@settings(deadline=None)
@given(numbers=st.integers(0, 2**32 - 1), kind=st.sampled_from(["traced", "donating"]), apart=st.booleans())
def test_random_graphs_agree(numbers, kind, apart):
    with simulate(2):
        agree(drawn(numbers), kind, (FIRST, SECOND) if apart else (CPU, CPU))


def test_a_loss_that_gives_no_scalar_is_refused():
    case = Case(TapedBackend())
    case.node("a", case.dense(), "x")
    case.loss("a t", Loss(lambda y, t: y - t))
    program = case.backend.build(case.segment())
    with pytest.raises(SpecError) as caught:
        program.forward(tuple(case.columns.values()))
    assert "gives shape [6, 2]; a loss must give a scalar" in str(caught.value)
