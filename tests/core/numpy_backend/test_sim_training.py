"""Training on simulated devices: the results of the CPU, counted transfers, no synchronization."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, OutOfMemoryError
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Dropout, Sequential, SequentialMLP, SimArray, simulate
from anyaccel.specs import Optimizer

CPU, SIM0, SIM1 = Device("cpu"), Device("sim", 0), Device("sim", 1)
ROWS, BATCH = 16, 4


@pytest.fixture
def data(draw):
    return {"x": draw(ROWS, 3).astype("float32"), "y": draw(ROWS, 2).astype("float32")}


@pytest.fixture
def two_halves(backend, segment, node, loss, built, data):
    """A program of an encoder and a head, and a second head on the encoder; `first` and `second` say where."""

    def make(first, second, optimizer="adam"):
        encoder = built(SequentialMLP((5,), dropout=0.2), data["x"], seed=1, device=first)
        hidden = np.zeros((1, 5), "float32")
        heads = [built(Dense(2), hidden, seed=seed, device=second) for seed in (2, 3)]
        columns = {"x": backend.move(data["x"], first), "y": backend.move(data["y"], second)}
        chain = [node("e", encoder, "x", first), *(node(f"h{i}", head, "e", second) for i, head in enumerate(heads))]
        terms = [loss("mse", "h0 y", second), loss("mae", "h1 y", second, weight=0.5)]
        program = backend.build(segment(columns, chain, terms, optimizer))
        program.seed(4)
        return program, tuple(columns.values())

    return make


def orders(columns, backend):
    numbers = np.random.default_rng(1).permutation(ROWS)
    return [backend.from_host(numbers, backend.device_of(column)) for column in columns]


@pytest.mark.parametrize("clip", [None, 0.1])
def test_training_on_two_devices_equals_training_on_one(clip, two_halves, backend):
    spec = Optimizer("adam", lr=0.05, clip_norm=clip)
    runs = []
    with simulate(2):
        for places in ((CPU, CPU), (SIM0, SIM0), (SIM0, SIM1), (CPU, SIM1)):
            program, columns = two_halves(*places, spec)
            means = program.train_steps(columns, orders(columns, backend), 0, 4, BATCH)
            program.close()
            models = [op.model for op in program.segment.operations]
            assert backend.device_of(means) == places[1]
            assert [backend.device_of(model) for model in models] == [places[0], places[1], places[1]]
            runs.append(
                [backend.to_host(means), *(value for model in models for value in backend.state(model).values())]
            )
    for other in runs[1:]:
        for expected, actual in zip(runs[0], other, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_step_makes_one_transfer_each_way_and_no_synchronization(two_halves, backend):
    with simulate(2) as sims:
        program, columns = two_halves(SIM0, SIM1)
        mine = orders(columns, backend)
        for sim in sims:
            sim.clear()
        program.train_steps(columns, mine, 0, 4, BATCH)
        for sim in sims:
            assert (sim.transfers.between.number, sim.transfers.between.nbytes) == (8, 8 * BATCH * 5 * 4)
            assert (sim.transfers.into.number, sim.transfers.out.number, sim.syncs) == (0, 0, 0)


def test_training_on_one_device_makes_no_transfer(two_halves, backend):
    with simulate(1) as sims:
        program, columns = two_halves(SIM0, SIM0)
        mine = orders(columns, backend)
        sims[0].clear()
        program.train_steps(columns, mine, 0, 4, BATCH)
        kept = program.snapshot()
        program.forward(columns)
        program.restore(kept)
        program.close()
        nothing = sims[0].transfers
        assert (nothing.into.number, nothing.out.number, nothing.between.number, sims[0].syncs) == (0, 0, 0, 0)


def test_clipping_over_two_devices_transfers_scalars_only(two_halves, backend):
    with simulate(2) as sims:
        program, columns = two_halves(SIM0, SIM1, Optimizer("sgd", clip_norm=0.1))
        mine = orders(columns, backend)
        for sim in sims:
            sim.clear()
        program.train_steps(columns, mine, 0, 1, BATCH)
        crossed = sims[0].transfers.between
        assert crossed.nbytes - 2 * BATCH * 5 * 4 <= 32
        assert sims[0].syncs == sims[1].syncs == 0


@pytest.mark.parametrize("name", ["mse", "mae", "cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_training_in_float32_uses_no_float64(name, optimizer, backend, segment, node, loss, built, draw):
    classes = name == "cross_entropy"
    y = np.arange(8) % 2 if classes else np.abs(np.tanh(draw(8, 2))).astype("float32")
    model = Sequential(SequentialMLP((4,), dropout=0.2), BatchNorm(), Activation("sigmoid"), Dropout(0.1), Dense(2))
    with simulate(1, float64=False):
        x = draw(8, 3).astype("float32")
        built(model, x, device=SIM0)
        columns = {name: backend.move(array, SIM0) for name, array in {"x": x, "y": y}.items()}
        spec = Optimizer(optimizer, lr=0.1, weight_decay=0.1, clip_norm=0.1)
        program = backend.build(segment(columns, [node("n", model, "x", SIM0)], [loss(name, "n y", SIM0)], spec))
        means = program.train_steps(tuple(columns.values()), [None, None], 0, 2, 4)
        program.optimizer_step({"main": 0.5})
        assert np.isfinite(backend.to_host(means)).all()
        assert all(array.dtype == np.float32 for array in program.close()["n"].slots["4.weight"].values())


def test_optimizer_state_stays_with_the_parameters_and_comes_back(two_halves, backend):
    with simulate(2):
        program, columns = two_halves(SIM0, SIM1)
        program.train_steps(columns, orders(columns, backend), 0, 2, BATCH)
        states = program.close()
        assert {backend.device_of(slot) for slots in states["e"].slots.values() for slot in slots.values()} == {SIM0}
        assert {backend.device_of(slot) for slots in states["h1"].slots.values() for slot in slots.values()} == {SIM1}
        assert backend.place(states["e"].slots, CPU)["layers.0.bias"]["m"].shape == (16,)


def test_a_model_on_another_device_is_named(backend, segment, node, built, data):
    with simulate(1):
        model = built(Dense(2), data["x"], device=SIM0)
        program = backend.build(segment({"x": data["x"]}, [node("n", model, "x", CPU)], outputs=("n",)))
        with pytest.raises(DeviceMismatchError, match="operands are on sim:0 and cpu:0"):
            program.forward((data["x"],))


def test_running_out_of_memory_in_a_step_leaves_a_snapshot_usable(backend, segment, node, loss, built):
    x = np.ones((256, 8), "float32")
    with simulate(1, capacity=48_000) as sims:
        model = built(SequentialMLP((8,), hidden_dim=64), x, device=SIM0)
        columns = {"x": backend.move(x, SIM0)}
        program = backend.build(segment(columns, [node("n", model, "x", SIM0)], [loss("mse", "n x", SIM0)]))
        kept, before = program.snapshot(), backend.state(model)
        with pytest.raises(OutOfMemoryError, match=r"not enough memory for \d+ bytes on sim:0"):
            program.train_steps(tuple(columns.values()), [None], 0, 1, 256)
        program.restore(kept)
        gc.collect()
        program.train_steps(tuple(columns.values()), [None], 0, 4, 4)
        program.close()
        assert not np.array_equal(backend.state(model)["parameters/layers.0.bias"], before["parameters/layers.0.bias"])
        assert sims[0].peak <= 48_000


def test_results_stay_on_their_devices(two_halves, backend):
    with simulate(2):
        program, columns = two_halves(SIM0, SIM1)
        program.train_steps(columns, orders(columns, backend), 0, 1, BATCH)
        program.close()
        head = program.segment.operations[1].model
        assert all(isinstance(value, SimArray) and value.device == SIM1 for value in head.parameters.values())
