"""Replicas on several devices of one process: the losses of one device, what the plan says, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import Backend, Compute, Exchange
from anyaccel.errors import CapabilityError, ConfigError, DeviceUnavailableError, PhaseError
from anyaccel.numpy_backend.backend import NumpyBackend
from anyaccel.numpy_backend.builtin_models import Sequential
from anyaccel.numpy_backend.layers import BatchNorm, Dense, Dropout
from anyaccel.registry import registry

pytest.importorskip("anyaccel_resources", reason="sim:* and lists of devices are requests")

RAGGED = 59  # rows: batches of 16, 16, 16 and 11


@pytest.fixture(autouse=True)
def eight() -> Iterator[None]:
    with aa.simulate(8):
        yield


def data(n: int = RAGGED) -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    y = (2 * x[:, :1] + np.sin(x[:, 1:2])).astype(np.float32)
    return aa.FeatureSet.from_dict("d", {"x": x, "y": y, "w": np.abs(x[:, 2]) + 0.1}, ["x"], ["y", "w"])


def graph_of(rows: aa.FeatureSet, optimizer: Any = None, model: Any = None) -> aa.ModelGraph:
    node = aa.ModelNode("net", model or aa.SequentialMLP((1,)), rows.reference())
    return aa.ModelGraph([node], optimizer or aa.Optimizer("adam", lr=0.01), seed=3)


def phase_of(rows: Any, **settings: Any) -> aa.TrainPhase:
    losses = settings.pop("losses", [aa.AppliedLoss("mse", on="net", inputs=["outputs", "d.y"])])
    drawn = {} if "sampler" in settings else {"batch_size": 16}
    return aa.TrainPhase("train", data=rows, losses=losses, **{"epochs": 3, **drawn, **settings})


def trained(
    optimizer: Any = None, model: Any = None, n: int = RAGGED, **settings: Any
) -> tuple[list[float], Mapping[str, np.ndarray]]:
    rows = data(n)
    graph = graph_of(rows, optimizer, model)
    results = aa.Experiment(graph, progress="none").run_phase(phase_of(rows, **settings))
    return [epoch.loss for epoch in results.epochs], graph.state()


def assert_same(one: tuple[list[float], Mapping[str, np.ndarray]], other: Any) -> None:
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
    for name, value in one[1].items():
        np.testing.assert_allclose(value, other[1][name], rtol=1e-3, atol=1e-5)


# -- the numbers are those of one device -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        {"accelerator": "sim:*"},
        {"accelerator": "sim", "replicas": 3},
        {"accelerator": "sim:2", "replicas": 2},
        {"accelerator": ["sim:5", "sim:1"]},
        {"accelerator": aa.Accelerator(["sim:0", "sim:1"])},
    ],
)
def test_losses_and_values_are_those_of_one_device(where: dict[str, Any]) -> None:
    assert_same(trained(accelerator="sim:0"), trained(**where))


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (aa.Optimizer("adam", lr=0.01, clip_norm=0.05), {}),
        (aa.Optimizer("sgd", lr=0.01, momentum=0.9, clip_value=0.01), {}),
        (aa.Optimizer("adamw", lr=0.01, weight_decay=0.1), {"accumulate": 3}),
        (None, {"losses": [aa.AppliedLoss("mae", "net", ["outputs", "d.y"], weight=0.5)]}),
        (None, {"residency": "streamed"}),
        (None, {"validation": aa.EvalPhase("v", data=data(7))}),
    ],
    ids=["clip_norm", "clip_value", "accumulate", "another loss", "streamed", "validation"],
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_way_to_train_is_shared(optimizer: Any, settings: dict[str, Any], deterministic: bool) -> None:
    alone = trained(optimizer, accelerator="sim:0", **settings)
    assert_same(alone, trained(optimizer, accelerator="sim", replicas=4, deterministic=deterministic, **settings))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_losses_that_weigh_rows_are_divided_by_the_weight_of_the_whole_batch(accumulate: int) -> None:
    loss = aa.AppliedLoss("mse", "net", ["outputs", "d.y"], sample_weight="d.w")
    settings: dict[str, Any] = {"losses": [loss], "accumulate": accumulate}
    assert_same(trained(accelerator="sim:0", **settings), trained(accelerator="sim", replicas=4, **settings))


def test_weights_of_losses_are_as_precise_as_a_model_in_double_precision() -> None:
    """Those of classes, too."""
    x = np.random.default_rng(0).normal(size=(RAGGED, 5))
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": (x[:, :2] > 0).sum(1)}, ["x"], ["y"])
    loss, ends = aa.Loss("cross_entropy", class_weights=[0.1, 0.3, 0.7]), []
    for where in ({"accelerator": "sim:0"}, {"accelerator": "sim", "replicas": 4}):
        graph = graph_of(rows, model=aa.SequentialMLP((3,), dtype="float64"))
        losses = [aa.AppliedLoss(loss, "net")]
        results = aa.Experiment(graph, progress="none").run_phase(phase_of(rows, losses=losses, **where))
        ends.append((results.loss, graph.state()))
    np.testing.assert_allclose(ends[1][0], ends[0][0], rtol=1e-13)
    for name, value in ends[0][1].items():
        np.testing.assert_allclose(ends[1][1][name], value, rtol=1e-12, atol=1e-14)


def test_a_fixed_order_of_summation_gives_the_same_bits_on_any_number_of_devices() -> None:
    def of(n: int) -> tuple[list[float], Mapping[str, np.ndarray]]:
        model = Sequential(Dense(8), Dropout(0.3), Dense(1))
        return trained(model=model, accelerator="sim", replicas=n, deterministic=True)

    first = of(1)
    for losses, values in map(of, (2, 3, 4, 8)):
        assert losses == first[0]
        for name, value in values.items():
            np.testing.assert_array_equal(value, first[1][name])


def test_a_batch_of_fewer_rows_than_shards_has_one_for_each_row() -> None:
    ends = [trained(n=21, batch_size=16, accelerator="sim", replicas=n, deterministic=True) for n in (1, 2, 5)]
    assert ends[0][0] == ends[1][0] == ends[2][0]


def test_the_model_of_the_user_is_on_the_first_device_and_evaluates_there() -> None:
    rows = data()
    graph = graph_of(rows)
    experiment = aa.Experiment(graph, progress="none")
    experiment.run_phase(phase_of(rows, accelerator=["sim:3", "sim:1"]))
    assert str(aa.device_of(graph["net"].model)) == "sim:3"
    judged = aa.EvalPhase(
        "e", data=rows, losses=[aa.AppliedLoss("mse", "net", ["outputs", "d.y"])], accelerator="sim:*"
    )
    assert str(experiment.plan(judged).device("net")) == "sim:0"
    assert experiment.run_phase(judged).losses["net"] > 0


def test_a_later_phase_goes_on_with_the_optimizer_state() -> None:
    rows, ends = data(), []
    for second in ({"accelerator": "sim:0"}, {"accelerator": "sim", "replicas": 2}):
        experiment = aa.Experiment(graph_of(rows), progress="none")
        experiment.run_phase(phase_of(rows, accelerator="sim:0"))
        ends.append([epoch.loss for epoch in experiment.run_phase(phase_of(rows, **second)).epochs])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_checkpoint_within_an_epoch_goes_on_to_the_same_end(tmp_path: Path, deterministic: bool) -> None:
    ends = [True]

    class Ends(aa.Callback):
        def step_end(self, run: Any) -> None:
            if ends and run.epoch == 1 and run.step == 2:
                ends.clear()
                raise RuntimeError("ended here")

    rows = data()
    settings: dict[str, Any] = {"accelerator": "sim", "replicas": 2, "deterministic": deterministic}

    def graph() -> aa.ModelGraph:
        return graph_of(rows, model=Sequential(Dense(8), Dropout(0.3), Dense(1)))

    whole = graph()
    aa.Experiment(whole, progress="none").run_phase(phase_of(rows, **settings))
    kept = aa.Checkpoint(tmp_path, every=1)
    with pytest.raises(RuntimeError, match="ended here"):
        phase = phase_of(rows, **settings, checkpoint=kept, callbacks=[Ends()])
        aa.Experiment(graph(), progress="none").run_phase(phase)
    resumed = graph()
    again = phase_of(rows, **settings, checkpoint=kept, callbacks=[Ends()])
    aa.Experiment(resumed, progress="none").run_phase(again, resume="auto")
    for name, value in whole.state().items():
        np.testing.assert_array_equal(value, resumed.state()[name])


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 1), (1, 4)])
def test_a_checkpoint_of_some_replicas_is_gone_on_from_by_others(tmp_path: Path, before: int, after: int) -> None:
    """Within an epoch and to the bit, with Adam's state and a schedule."""
    rows = data()

    class Ends(aa.Callback):
        def __init__(self, ends: bool) -> None:
            self._ends = ends

        def step_end(self, run: Any) -> None:
            if self._ends and run.epoch == 1 and run.step == 2:
                raise RuntimeError("ended here")

    def run(n: int, folder: Path | None, *, ends: bool = False) -> tuple[aa.ModelGraph, Any]:
        schedule = aa.Schedule("cosine", steps=12)
        graph = graph_of(rows, aa.Optimizer("adam", lr=0.01, schedule=schedule), Sequential(Dense(8), Dense(1)))
        kept = None if folder is None else aa.Checkpoint(folder, every=3)
        settings: dict[str, Any] = {"accelerator": "sim", "replicas": n, "deterministic": True, "checkpoint": kept}
        resume = "never" if folder is None else "auto"
        phase = phase_of(rows, **settings, callbacks=[Ends(ends)])
        return graph, aa.Experiment(graph, progress="none").run_phase(phase, resume=resume)

    whole, _ = run(after, None)
    with pytest.raises(RuntimeError, match="ended here"):
        run(before, tmp_path, ends=True)
    resumed, results = run(after, tmp_path)
    assert results.events[0].message.endswith("epoch-000001-step-000000003")
    for name, value in whole.state().items():
        np.testing.assert_array_equal(value, resumed.state()[name])


def test_what_each_replica_takes_may_be_said_instead_of_the_whole() -> None:
    whole = trained(accelerator="sim", replicas=2, batch_size=16)
    assert whole[0] == trained(accelerator="sim", replicas=2, batch_size=8, per_replica=True)[0]
    alone = trained(accelerator="sim:0", batch_size=8, per_replica=True)
    assert alone[0] == trained(accelerator="sim:0", batch_size=8)[0]


def test_the_environment_may_ask_for_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYACCEL_DEVICE", "sim:0+1")
    rows = data()
    experiment = aa.Experiment(graph_of(rows), progress="none")
    plan = experiment.plan(phase_of(rows))
    assert [str(device) for device in plan.replicas] == ["sim:0", "sim:1"]
    assert "2 replicas on sim:0, sim:1" in str(plan) and "'ANYACCEL_DEVICE=sim:0+1' is set" in str(plan)
    assert_same(trained(accelerator="sim:0"), trained())
    assert experiment.plan(phase_of(rows, replicas=1)).replicas == ()


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_the_plan_shows_the_devices_who_decided_and_the_rows_of_each() -> None:
    rows = data()
    experiment = aa.Experiment(graph_of(rows), progress="none")
    plan = experiment.plan(phase_of(rows, accelerator="sim:0+1+2"))
    assert "net   sim:0, sim:1, sim:2" in str(plan) and "net on sim:0, sim:1, sim:2" in repr(plan).replace(
        "1 node", "net"
    )
    note = (
        "3 replicas on sim:0, sim:1, sim:2, each with 5 or 6 of the 16 rows of a batch: the phase requests 'sim:0+1+2'"
    )
    assert plan.notes == (note,)
    assert aa.Plan.from_dict(plan.to_dict()) == plan and plan.to_dict()["replicas"] == ["sim:0", "sim:1", "sim:2"]
    assert experiment.run_phase(phase_of(rows, accelerator="sim:0+1+2")).plan.notes == (note,)
    assert "replicas" not in experiment.plan(phase_of(rows, accelerator="sim:0")).to_dict()
    by_number = experiment.plan(phase_of(rows, accelerator="sim", replicas=2))
    assert by_number.notes[0].endswith("each with 8 of the 16 rows of a batch: the phase requests 'sim' and replicas=2")


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(error: type[Exception], match: str, graph: aa.ModelGraph | None = None, **settings: Any) -> None:
    rows = settings.pop("rows", None) or data()
    experiment = aa.Experiment(graph or graph_of(rows), progress="none")
    for call in (experiment.plan, experiment.run_phase):
        with pytest.raises(error, match=match):
            call(phase_of(rows, **settings))


def test_more_replicas_than_devices() -> None:
    message = r"replicas=9, but this process has fewer devices for them\. Available: sim:0.*anyaccel run --replicas 9"
    refused(PhaseError, message, accelerator="sim", replicas=9)
    refused(PhaseError, r"replicas=2, .* Available: sim:7\.", accelerator="sim:7", replicas=2)
    refused(PhaseError, r"fewer devices for them\. Hint: start as many processes", accelerator="gpu", replicas=2)
    refused(DeviceUnavailableError, "it does not have the index 9", accelerator=["sim:0", "sim:9"])


def test_a_request_for_another_number_than_there_are_replicas() -> None:
    refused(
        ConfigError, r"replicas=3, and the request 'sim:0\+1' is for 2.*replicas=2", accelerator="sim:0+1", replicas=3
    )


def test_a_batch_of_fewer_rows_than_replicas() -> None:
    refused(
        PhaseError, r"a batch of 3 rows for 4 replicas.*drop_last=True", accelerator="sim", replicas=4, batch_size=28
    )
    refused(PhaseError, r"a batch of 3 rows for 8 replicas", accelerator="sim:*", batch_size=28, accumulate=3)


def test_batches_of_several_sizes_in_one_step_are_multiples_of_the_replicas() -> None:
    rows = data()
    other = aa.FeatureSet.from_dict("f", {"x": np.ones((30, 5), np.float32), "y": np.ones((30, 1))}, ["x"], ["y"])
    nodes = [aa.ModelNode("net", aa.SequentialMLP((1,)), rows.reference())]
    nodes.append(aa.ModelNode("e", aa.SequentialMLP((1,)), other.reference()))
    graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", "net", ["outputs", "d.y"]), aa.AppliedLoss("mse", on="e")]
    settings: dict[str, Any] = {"rows": {"d": rows, "f": other}, "losses": losses, "accelerator": "sim", "replicas": 2}
    message = r"takes batches of 5 and 10 rows in one step, for 2 replicas.*multiples of 2"
    sampler = {"d": aa.SimpleSampler(10, drop_last=True), "f": aa.SimpleSampler(5)}
    refused(PhaseError, message, graph, sampler=sampler, schedule="zip_cycle", **settings)


def test_a_node_on_a_device_of_its_own() -> None:
    rows = data()
    node = aa.ModelNode("net", aa.SequentialMLP((1,)), rows.reference(), accelerator="sim:1")
    graph = aa.ModelGraph([node], aa.Optimizer("sgd", lr=0.1))
    message = (
        r"cannot train replicas on sim:0, sim:1: node 'net' requests a separate device, sim:1.*accelerator='sim:0'"
    )
    refused(PhaseError, message, graph, accelerator="sim", replicas=2)


def test_what_mixes_the_rows_of_a_batch() -> None:
    rows = data()
    graph = graph_of(rows, model=Sequential(Dense(4), BatchNorm(), Dense(1)))
    message = r"BatchNorm in node 'net' mixes the rows of a batch.*graph\.freeze\('net'\)"
    refused(PhaseError, message, graph, accelerator="sim", replicas=2)
    refused(PhaseError, r"cannot be deterministic=True: BatchNorm.*leave deterministic out", graph, deterministic=True)


def test_a_step_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyBackend, "custom_steps", True)
    refused(
        PhaseError, "it has a custom step", losses=[], step=lambda m, b, o: 0.0, accelerator="cpu", deterministic=True
    )


def test_a_loss_that_is_no_mean_over_rows() -> None:
    class Total:
        reduction = "sum"

        def __call__(self, output: Any, target: Any) -> Any:
            return ((output - target) ** 2).sum(), 1.0, (2 * (output - target), None)

    loss = aa.AppliedLoss(Total(), "net", ["outputs", "d.y"], label="total")
    refused(PhaseError, r"the loss 'total' is a sum over rows", losses=[loss], accelerator="sim", replicas=2)


def test_deterministic_sums_are_over_at_most_eight_replicas() -> None:
    with aa.simulate(9):
        refused(PhaseError, "at most 8 replicas", accelerator="sim:*", deterministic=True)


def test_sharding_where_nothing_divides_among_devices_of_a_process() -> None:
    message = r"sharding over sim:0, sim:1, but its plugin can shard .* only over processes. Hint: leave sharding out"
    refused(PhaseError, message, accelerator="sim", replicas=2, sharding="full")
    message = r"offload needs the processes of a launcher.*leave sharding out"
    refused(PhaseError, message, accelerator="sim", replicas=2, sharding="full offload")
    settings = {"replicas": 2, "sharding": "full", "deterministic": True}
    message = "deterministic=True sums whole gradients. Hint: leave deterministic or sharding out"
    refused(PhaseError, message, accelerator="sim", **settings)


def test_an_older_plugin_without_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(Backend, Exchange, Compute):
        framework, kinds, import_roots = NumpyBackend.framework, NumpyBackend.kinds, NumpyBackend.import_roots
        parameter_groups, weighs_losses = True, True

    for name in Backend.__abstractmethods__ | Exchange.__abstractmethods__ | Compute.__abstractmethods__:
        setattr(Older, name, vars(NumpyBackend)[name])
    for name in ("owns", "batch_coupling", "mutates_inputs", "unavailable_reason", "models", "unsupported_reason"):
        setattr(Older, name, vars(NumpyBackend)[name])
    Older.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    known = registry()
    old = Older()
    monkeypatch.setattr(known, "computing", lambda framework, kind="cpu": old)
    message = r"the plugin of numpy has no replicas in one process.*'device_replicas'.*update the plugin"
    rows = data()
    with pytest.raises(CapabilityError, match=message):
        aa.Experiment(graph_of(rows), progress="none").plan(phase_of(rows, accelerator="sim", replicas=2))


def scaled(**settings: Any) -> tuple[list[float], tuple[Any, ...], Mapping[str, np.ndarray]]:
    """Losses of steps, where the loss scale and the optimizer stand, and the values; one row is more than float16."""
    x = np.random.default_rng(0).normal(size=(RAGGED, 5)).astype(np.float32)
    x[20] = 1e6
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    graph, heard = graph_of(rows, aa.Optimizer("adam", lr=0.01, clip_norm=0.5)), []

    class Heard(aa.Callback):
        def step_end(self, run: Any) -> None:
            heard.append((*run.step_losses().values(), run.loss_scale.scale, run.loss_scale.skipped))

    scale = aa.LossScale(initial=1024.0, growth_interval=3)
    given = {"precision": "fp16-mixed", "loss_scale": scale, "on_nan": "ignore", "callbacks": [Heard()]}
    phase = phase_of(rows, losses=[aa.AppliedLoss("mse", on="net")], **given, **settings)
    aa.Experiment(graph, progress="none").run_phase(phase)
    losses, *stands = zip(*heard, strict=True)
    return list(losses), (*stands, graph.optimizer_states["net"].step), graph.state()


def test_a_step_that_is_not_finite_in_one_replica_is_skipped_by_all() -> None:
    """The row that is too large is in the share of one of them; all follow one scale, which recovers."""
    losses, stands, values = scaled(accelerator="sim:0")
    assert stands[1][-1] == 3 and stands[2] == 9, "one step of four in each epoch, and the others counted"
    assert 1024.0 in stands[0][stands[0].index(512.0) :]
    for n in (2, 3):
        shared = scaled(accelerator="sim", replicas=n)
        assert shared[1] == stands
        np.testing.assert_allclose(shared[0], losses, rtol=5e-3)
        for name, value in values.items():
            assert np.isfinite(value).all()
            np.testing.assert_allclose(shared[2][name], value, rtol=1e-2, atol=5e-3)


def test_scaled_losses_are_the_same_to_the_last_bit_in_a_fixed_order() -> None:
    one, *others = (scaled(accelerator="sim", replicas=n, deterministic=True) for n in (1, 2, 4))
    for other in others:
        np.testing.assert_array_equal(other[0], one[0])
        assert other[1] == one[1]
        assert all(np.array_equal(other[2][name], value) for name, value in one[2].items())


def test_a_precision_is_that_of_all_replicas() -> None:
    alone = trained(accelerator="sim:0", precision="bf16-mixed")
    np.testing.assert_allclose(trained(accelerator="sim", replicas=2, precision="bf16-mixed")[0], alone[0], rtol=1e-2)
