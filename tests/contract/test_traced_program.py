"""TracedProgram: the kit over it, and the same values as ArrayProgram for segments of all kinds."""

from __future__ import annotations

from dataclasses import replace

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
from anyaccel_devtools.testing import suite

from .program_history import CPU, ROWS, SegmentBuilder, assert_same_history, device_of
from .subjects import CpuSubject, SimulatedSubject
from .taped_ops import DonatingBackend, TapedBackend

FIRST, SECOND = Device("sim", 0), Device("sim", 1)


class TapedSubject(CpuSubject):
    """Traced programs on the CPU."""

    cls = TapedBackend

    @pytest.fixture
    def custom_loss(self):
        pytest.skip("the tape has no losses of users")


class DonatingSubject(SimulatedSubject):
    """On simulated devices, where a step consumes the previous state and nothing is compiled for two devices."""

    cls = DonatingBackend

    custom_loss = TapedSubject.custom_loss


globals().update(suite(TapedSubject, "Taped") | suite(DonatingSubject, "Donating"))


class Split(Module):
    """Two outputs for one input, its product with a factor and its negative; a buffer counts training calls."""

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
    """An embedding table: rows by integers, which have no gradient; returns the integers as well."""

    def __init__(self):
        super().__init__()
        self.parameters["table"] = np.arange(6.0).reshape(3, 2) / 5

    def apply(self, values, inputs, *, train, key):
        (index,), table = inputs, values["table"]

        def pullback(cotangents):
            one_hot = np.equal(index[:, None], moved(np.arange(3), device_of(index)))
            return {"table": np.matmul(one_hot.astype("float64").T, cotangents[0])}, (None,)

        return VjpResult((table[index], index), pullback)


def one_model(builder, _):
    builder.node(
        "a", builder.built(Sequential(Dense(3, dtype="float64"), Activation("tanh"), Dense(2, dtype="float64"))), "x"
    )
    builder.loss("a t")
    return builder.segment(outputs="a", pull="x")


def several_losses(builder, _):
    builder.node("a", builder.dense(), "x")
    builder.column("k", np.arange(ROWS) % 2)
    for name, weight in (("mse", 0.5), ("mae", 2.0), ("binary_cross_entropy", 1.0)):
        builder.loss("a t", name, weight)
    builder.loss("a k", "cross_entropy", 3.0)
    return builder.segment(pull="x t")


def losses_on_several_nodes(builder, _):
    builder.node("a", builder.dense(), "x")
    builder.node("b", builder.dense(at=1), "a", at=1)
    builder.loss("a t", weight=0.5)
    builder.loss("b t", "mae")
    builder.loss("b a")
    return builder.segment(outputs="a b", pull="x")


def frozen_first(builder, _):
    builder.node("a", builder.built(BatchNorm(dtype="float64")), "x", trainable=False)
    builder.node("b", builder.dense(at=1), "a", at=1)
    builder.loss("b t")
    return builder.segment(outputs="a b")


def frozen_last(builder, _):
    builder.node("a", builder.dense(), "x")
    builder.node("b", builder.built(BatchNorm(dtype="float64"), at=1), "a", at=1, trainable=False)
    builder.loss("b t")
    return builder.segment(pull="x")


def frozen_alone(builder, _):
    builder.node("a", builder.dense(), "x", trainable=False)
    builder.node("b", builder.dense(), "z")
    builder.loss("a t")
    builder.loss("b t")
    return builder.segment(outputs="a", pull="x")


def shared(builder, _):
    model = builder.dense()
    builder.node("a", model, "x")
    builder.node("b", model, "a")
    builder.node("c", builder.dense(), "z")
    builder.node("j", None, "b c", axis=0)
    builder.node("d", builder.dense(4), "j")
    builder.loss("d t")
    return builder.segment(outputs="j", pull="z")


def shared_with_a_frozen_node(builder, _):
    model = builder.dense()
    builder.node("a", model, "x", trainable=False)
    builder.node("b", model, "a")
    builder.loss("b t")
    return builder.segment(outputs="a")


def clipped_groups(builder, _):
    builder.node("a", builder.dense(), "x")
    builder.node("b", builder.dense(at=1), "a", at=1)
    builder.node("c", builder.dense(), "z")
    builder.loss("b t")
    builder.loss("c t")
    clipped = (Optimizer("sgd", lr=0.1, clip_norm=0.05), Optimizer("adamw", lr=0.1, clip_norm=1e3))
    groups = (
        ParameterGroup(name, optimizer, nodes)
        for name, optimizer, nodes in zip("pq", clipped, ("ac", "b"), strict=True)
    )
    return builder.segment(*(replace(group, nodes=tuple(group.nodes)) for group in groups), outputs="b")


def buffers(builder, _):
    builder.node("a", builder.built(Sequential(Dense(2, dtype="float64"), BatchNorm(dtype="float64"))), "x")
    builder.node("b", builder.built(Split(2)), "a", "p q")
    builder.node("c", builder.operations[1].model, "z", "r s")
    builder.loss("p t")
    builder.loss("r t")
    return builder.segment(outputs="q", pull="x z")


def integers(builder, _):
    builder.column("k", np.arange(ROWS) % 3)
    builder.node("a", builder.built(Table(), dtype="int64"), "k", "v i")
    builder.loss("v t")
    return builder.segment(outputs="i v", pull="k")


def an_unused_node(builder, _):
    builder.node("a", builder.dense(), "x")
    builder.node("b", builder.dense(), "x")
    builder.node("c", builder.dense(at=1), "z", at=1)
    builder.loss("a t")
    return builder.segment(outputs="c", pull="z")


def squares(y, t):
    """A loss with its own gradients, as the NumPy backend takes it."""
    return np.sum((y - t) * (y - t)) / 2, len(y), (y - t, None)


def a_custom_loss(builder, kind):
    builder.node("a", builder.dense(), "x")
    builder.loss("a t", Loss(squares if kind == "array" else lambda y, t: ((y - t) * (y - t)).mean()), 0.25)
    builder.loss("a t", Loss(squares if kind == "array" else lambda y, t: -((t - y) * (y - t)).mean() / 1.0))
    return builder.segment(pull="x")


def no_loss(builder, _):
    builder.node("a", builder.dense(), "x")
    return builder.segment(outputs="a", pull="x")


SEGMENTS = {make.__name__: make for make in (
    one_model, several_losses, losses_on_several_nodes, frozen_first, frozen_last, frozen_alone, shared,
    shared_with_a_frozen_node, clipped_groups, buffers, integers, an_unused_node, a_custom_loss, no_loss,
)}  # fmt: skip


@pytest.mark.parametrize("kind", ["traced", "donating"])
@pytest.mark.parametrize("name", SEGMENTS)
def test_a_traced_program_equals_an_array_program(name, kind):
    assert_same_history(SEGMENTS[name], kind, (CPU, CPU))


@pytest.mark.parametrize("kind", ["traced", "donating"])
@pytest.mark.parametrize("name", SEGMENTS)
def test_a_traced_program_on_two_devices_equals_an_array_program(name, kind):
    with simulate(2):
        assert_same_history(SEGMENTS[name], kind, (FIRST, SECOND))


def random_segment(seed):
    """A segment of two to five nodes, any of them frozen, shared, with a loss, or on the second device."""

    def make(builder, _):
        random = np.random.default_rng(seed)
        values, dense = ["x", "z"], []
        for i in range(random.integers(2, 6)):
            name, at = f"n{i}", int(random.integers(2))
            kind = random.choice(["dense", "dense", "again", "join", "tanh"])
            if kind == "join":
                builder.node(f"j{i}", None, " ".join(random.choice(values, 2)), at=at)
                builder.node(name, builder.dense(4, at=at), f"j{i}", at=at)
            elif kind == "again" and dense:
                model, at = dense[random.integers(len(dense))]
                builder.node(name, model, random.choice(values), at=at, trainable=bool(random.integers(3)))
            else:
                model = Activation("tanh") if kind == "tanh" else builder.dense(at=at)
                builder.node(name, model, random.choice(values), at=at, trainable=bool(random.integers(3)))
                if kind != "tanh":
                    dense.append((model, at))
            values.append(name)
        for name in random.choice(values[2:], 2):
            builder.loss(f"{name} t", str(random.choice(["mse", "mae"])), float(random.uniform(0.5, 2)))
        optimizer = Optimizer("momentum", lr=0.05, clip_norm=float(random.choice([0.05, 100.0])))
        nodes = tuple(op.label for op in builder.operations if op.trainable and op.model is not None)
        return builder.segment(
            ParameterGroup("main", optimizer, nodes), outputs=f"{values[-1]} {values[2]}", pull="x z"
        )

    return make


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["traced", "donating"]), apart=st.booleans())
def test_random_segments_agree(seed, kind, apart):
    with simulate(2):
        assert_same_history(random_segment(seed), kind, (FIRST, SECOND) if apart else (CPU, CPU))


def test_a_loss_that_returns_no_scalar_is_refused():
    builder = SegmentBuilder(TapedBackend())
    builder.node("a", builder.dense(), "x")
    builder.loss("a t", Loss(lambda y, t: y - t))
    program = builder.backend.build(builder.segment())
    with pytest.raises(SpecError) as caught:
        program.forward(tuple(builder.columns.values()))
    assert "returns shape [6, 2]; a loss must return a scalar" in str(caught.value)
