"""Mixed residency: the largest columns that fit are resident, the others are streamed, and the numbers are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel import AppliedLoss, EvalPhase, Experiment, FeatureSet, ModelGraph, ModelNode, TrainPhase
from anyaccel.device import Device
from anyaccel.numpy_backend import Dense, SequentialMLP, simulate
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.loading.residency import ColumnBytes, resident_share

ROWS = 600
PLACE = ("numpy", Device("sim"))


def table(widths, n_rows=ROWS):
    draw = np.random.default_rng(0)
    columns = {name: draw.normal(size=(n_rows, width)).astype("float32") for name, width in widths.items()}
    columns["y"] = columns[next(iter(widths))][:, :1].copy()
    return FeatureSet.from_dict("d", columns, list(widths), ["y"])


def graph(widths, optimizer="adam", n_rows=ROWS):
    """A node for each column, and one that joins them."""
    data = table(widths, n_rows)
    first = [ModelNode(f"n_{name}", SequentialMLP(3, 1, 4), data.reference(name)) for name in widths]
    joined = ModelNode("net", Dense(1), first[0]) if len(first) == 1 else None
    if joined is not None:
        return ModelGraph([*first, joined], optimizer, seed=1)
    from anyaccel import ConcatNode

    both = ConcatNode("both", first)
    return ModelGraph([*first, both, ModelNode("net", Dense(1), both)], optimizer, seed=1)


def phase(**given):
    losses = [AppliedLoss("mse", on="net")]
    drawn = {} if "sampler" in given else {"batch_size": 20}
    defaults = {"data": "all", "losses": losses, "epochs": 2, "accelerator": "sim:0", **drawn}
    return TrainPhase("t", **{**defaults, **given})


class Loaders(Callback):
    """What is resident while a phase runs, as bytes on the device."""

    def __init__(self, device):
        self.device, self.used = device, 0

    def after_loading(self, run):
        self.used = self.device.used


def run(made, of):
    return Experiment("e", made, progress="none").run_phase(of)


WIDE = {"x": 8, "z": 20, "w": 20}
ALL = ROWS * (8 + 20 + 20 + 1) * 4


@pytest.fixture(scope="module")
def expected():
    made = graph(WIDE)
    run(made, phase(accelerator=None))
    return made.state()


@pytest.mark.parametrize("sampler", ["fixed", "shuffled"])
@pytest.mark.parametrize("rows", [20, 32, 50])
def test_some_columns_stay_and_all_numbers_are_the_same(sampler, rows):
    from anyaccel import SimpleSampler

    states = []
    for capacity in (None, ALL + ALL // 8):
        made = graph(WIDE)
        with simulate(1, capacity=capacity) as (device,):
            results = run(made, phase(sampler=SimpleSampler(rows, shuffle=sampler == "shuffled", seed=3)))
            states.append(made.state())
            assert capacity is None or device.peak <= capacity
        if capacity is not None:
            (event,) = [event for event in results.events if event.kind == "residency"]
            assert event.message.startswith("the data of t: d.w (46.9 KiB) streamed, d.")
            assert " (68.0 KiB) resident, because all take 114.8 KiB and training adds" in event.message
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value, err_msg=name)


def test_evaluations_are_the_same_and_a_validation_is_streamed_beside_the_training():
    capacity = ALL + ALL // 8
    values = []
    for limit in (None, capacity):
        with simulate(1, capacity=limit):
            made = graph(WIDE)
            losses = [AppliedLoss("mse", on="net")]
            results = run(made, phase(validation=EvalPhase("v", data="all", batch_size=50)))
            evaluated = run(made, EvalPhase("e", data="all", losses=losses, batch_size=70, accelerator="sim:0"))
            values.append(([epoch.figures for epoch in results.epochs], evaluated.loss, evaluated.prediction("net")))
    assert values[0][:2] == values[1][:2]
    np.testing.assert_array_equal(values[0][2], values[1][2])


def test_a_plan_shows_what_a_run_does_and_its_memory():
    capacity = ALL + ALL // 8
    with simulate(1, capacity=capacity) as (device,):
        experiment = Experiment("e", graph(WIDE), progress="none")
        loaders = Loaders(device)
        of = phase(callbacks=[loaders])
        plan = experiment.plan(of)
        (decision, *_) = plan.decisions
        assert (decision.what, decision.choice) == ("residency of t", "mixed")
        results = experiment.run_phase(of)
        (event,) = [event for event in results.events if event.kind == "residency"]
        assert event.message == f"the data of t: {decision.why}"
        (memory,) = plan.memory
        assert 0 <= memory.total - device.peak + 4 * 31 <= memory.total // 4
        placed = memory.parameters
        assert loaders.used == placed + ROWS * (8 + 20 + 1) * 4


def test_a_resident_column_is_released_when_memory_runs_out_while_training(monkeypatch):
    """What does not fit beside the resident columns is streamed as a whole."""
    monkeypatch.setattr("anyaccel.phases.loading.residency._USABLE_FRACTION", 0.995)
    made, plain = graph(WIDE), graph(WIDE)
    run(plain, phase(accelerator=None, batch_size=300))
    with simulate(1, capacity=ALL - 4000) as (device,):
        results = run(made, phase(batch_size=300))
        assert device.peak <= ALL - 4000
    told = [event.message for event in results.events if event.kind in ("residency", "memory")]
    assert "resident" in told[0] and "rows are streamed from now on" in told[1]
    for name, value in plain.state().items():
        np.testing.assert_allclose(made.state()[name], value, rtol=1e-5, atol=1e-6)


def test_less_is_copied_than_where_all_columns_are_streamed():
    copied = {}
    for name, capacity, residency in (
        ("resident", None, "auto"),
        ("mixed", ALL + ALL // 8, "auto"),
        ("streamed", None, "streamed"),
    ):
        with simulate(1, capacity=capacity) as (device,):
            run(graph(WIDE), phase(residency=residency, epochs=4))
        copied[name] = device.transfers.into.nbytes
    assert copied["streamed"] > 4 * ALL
    streamed_of_mixed = 4 * ROWS * (20 * 4 + 8)  # a column, and the row numbers of the others
    assert copied["mixed"] <= streamed_of_mixed + ALL * 1.1 < 0.8 * copied["streamed"]
    assert copied["resident"] < copied["mixed"]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    widths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    part=st.floats(0.3, 1.4),
    rows=st.sampled_from([7, 25, 60]),
)
def test_columns_of_any_sizes_on_a_device_of_any_size(widths, part, rows):
    named = {f"c{i}": width for i, width in enumerate(widths)}
    nbytes = 200 * (sum(widths) + 1) * 4
    plain, made = graph(named, "sgd", 200), graph(named, "sgd", 200)
    run(plain, phase(accelerator=None, batch_size=rows, epochs=1))
    capacity = int(nbytes * part) + 20_000
    with simulate(1, capacity=capacity) as (device,):
        run(made, phase(batch_size=rows, epochs=1))
        assert device.peak <= capacity
    for name, value in plain.state().items():
        np.testing.assert_allclose(made.state()[name], value, rtol=1e-5, atol=1e-6)


def column(name, nbytes, row_bytes, stream="d", place=PLACE):
    return ColumnBytes(
        names=(name,), shown=name, place=place, stream=(stream, ""), nbytes=nbytes, row_bytes=row_bytes, index_bytes=8
    )


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 5000)), max_size=8),
    st.integers(-(10**5), 3 * 10**6),
    st.integers(0, 10**5),
)
def test_what_is_kept_fits_beside_the_blocks_and_is_worth_it(sizes, room, block):
    columns = [column(f"c{i}", nbytes, row) for i, (nbytes, row) in enumerate(sizes)]
    kept = resident_share(columns, {PLACE: room}, block)
    taken = [each for each in columns if each.names[0] in kept]
    assert sum(each.nbytes for each in taken) + (3 * block if taken else 0) <= max(room, 0)
    assert not taken or sum(each.row_bytes for each in taken) >= 4 * 8
    left = [each for each in columns if each.names[0] not in kept]
    if taken:  # nothing more would have fitted
        rest = room - 3 * block - sum(each.nbytes for each in taken)
        assert all(each.nbytes > rest for each in left)


def test_places_without_a_limit_keep_all_and_streams_are_judged_one_by_one():
    other = ("numpy", Device("sim", 1))
    columns = [
        column("large", 1000, 100),
        column("small", 10, 1, stream="e"),
        column("free", 10**9, 10**6, place=other),
    ]
    assert resident_share(columns, {PLACE: 2000.0}, 10.0) == {"large", "free"}
