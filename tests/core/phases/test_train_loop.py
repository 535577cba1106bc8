"""TrainPhase: the numbers of loops that are written out here; the order of rows; what is copied and waited for."""

from __future__ import annotations

import itertools
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel import AppliedLoss
from anyaccel.adapter import VjpResult
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.experiment import Experiment
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, Module, NumpyBackend, Sequential, SequentialMLP
from anyaccel.phases import EvalPhase, TrainPhase, train_loop
from anyaccel.phases.evaluation import Evaluation
from anyaccel.phases.executor.cross_segment import Losses
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.registry import registry
from anyaccel.specs import Optimizer, Schedule

MSE = AppliedLoss("mse", on="net")


class Recorder(Module):
    """A line through the origin that records which rows it is trained with."""

    def __init__(self):
        super().__init__()
        self.parameters["slope"] = np.zeros(1, "float64")
        self.dtype = "float64"
        self.batches = []

    def apply(self, values, inputs, *, train, key):
        (x,), slope = inputs, values["slope"]
        if train:
            self.batches.append(np.asarray(x)[:, 0].astype(int).tolist())
        return VjpResult((x * slope,), lambda c: ({"slope": np.sum(c[0] * x).reshape(1)}, (c[0] * slope,)))


def numbered(n: int) -> FeatureSet:
    rows = np.arange(n, dtype="float64").reshape(n, 1)
    return FeatureSet.from_dict("rows", {"x": rows, "y": rows * 0.1}, ["x"], ["y"])


def recorded(n: int, sampler=None, epochs=1, runs=1, batch_size=None):
    """The batches of each epoch, as row numbers."""
    rows, model = numbered(n), Recorder()
    graph = ModelGraph([ModelNode("net", model, rows.reference())], Optimizer("sgd", lr=1e-9))
    ours = Experiment("e", graph, progress="none")
    phase = TrainPhase("t", data=rows, losses=[MSE], batch_size=batch_size, sampler=sampler, epochs=epochs)
    steps = [epoch.steps for _ in range(runs) for epoch in ours.run_phase(phase).epochs]
    assert sum(steps) == len(model.batches)
    ends = np.cumsum(steps).tolist()
    return [model.batches[end - step : end] for end, step in zip(ends, steps, strict=True)]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


# -- the order of the rows ---------------------------------------------------------------------------------------------


def test_shuffled_epochs_differ_from_each_other():
    epochs = recorded(20, SimpleSampler(5, shuffle=True, seed=3), epochs=4)
    assert all(sorted(flat(epoch)) == list(range(20)) for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == 4


def test_a_batch_size_alone_is_shuffled():
    (epoch,) = recorded(20, batch_size=5)
    assert sorted(flat(epoch)) == list(range(20)) != flat(epoch)


def test_the_order_of_the_rows_is_kept_without_shuffling():
    assert recorded(7, SimpleSampler(3), epochs=2) == [[[0, 1, 2], [3, 4, 5], [6]]] * 2


def test_a_seed_gives_the_same_orders_again_and_another_seed_others():
    sampler = SimpleSampler(4, shuffle=True, seed=11)
    assert recorded(20, sampler, 3) == recorded(20, sampler, 3)
    assert recorded(20, sampler, 3) != recorded(20, SimpleSampler(4, shuffle=True, seed=12), 3)


def test_a_second_run_goes_on_with_the_orders_of_the_first():
    sampler = SimpleSampler(4, shuffle=True)
    assert recorded(20, sampler, epochs=2, runs=3) == recorded(20, sampler, epochs=6)


@settings(max_examples=examples(25))
@given(st.integers(2, 40), st.integers(1, 12), st.booleans(), st.booleans())
def test_every_epoch_has_every_row_but_those_of_a_dropped_batch(n, size, shuffle, drop):
    size = min(size, n)
    for epoch in recorded(n, SimpleSampler(size, shuffle=shuffle, drop_last=drop), epochs=2):
        sizes = [len(batch) for batch in epoch]
        full, last = divmod(n, size)
        assert sizes == [size] * full + ([last] if last and not drop else [])
        rows = flat(epoch)
        assert len(set(rows)) == len(rows) == (full * size if drop else n)


def test_the_rows_of_a_split_are_those_trained_with():
    rows, model = numbered(10), Recorder()
    rows.add_split("odd", [9, 1, 3])
    graph = ModelGraph([ModelNode("net", model, rows.reference())], "sgd")
    phase = TrainPhase("t", data="odd", losses=[MSE], sampler=SimpleSampler(2))
    Experiment("e", graph, progress="none").run_phase(phase)
    assert model.batches == [[9, 1], [3]]


def test_no_epochs_train_nothing(sims, line, experiment, train, values, same, owned):
    graph = line()
    graph.build()
    before = values(graph)
    result = experiment(graph).run_phase(train(epochs=0, accelerator="sim:0"))
    assert result.epochs == () and result.error is None and result.stop_reason == ""
    after = values(graph)
    assert after.pop("net/optimizer_step") == 0
    same(before, {name: after[name] for name in before})
    assert sims[0].used == owned(graph, "sim:0")


# -- what is computed --------------------------------------------------------------------------------------------------


def descend(x, y, w, b, batches, rate, clip=math.inf, weight=1.0):
    """Gradient descent on a linear model, one list of batches for each epoch; losses are means over all elements."""
    losses, step = [], 0
    for epoch in batches:
        total, count = 0.0, 0
        for rows in epoch:
            error = x[rows] @ w.T + b - y[rows]
            total, count = total + float((error**2).sum()), count + error.size
            by_w, by_b = (weight * 2 * part / error.size for part in (error.T @ x[rows], error.sum(0)))
            norm = math.sqrt(float((by_w**2).sum() + (by_b**2).sum()))
            scale = rate(step) * min(1.0, clip / (norm + 1e-6))
            w, b, step = w - scale * by_w, b - scale * by_b, step + 1
        losses.append(weight * total / count)
    return losses, w, b


def batches_of(sampler: SimpleSampler, n: int, epochs: int):
    full, last = sampler.batches(n)
    ends = [sampler.batch_size * (i + 1) for i in range(full)] + ([n] if last else [])
    orders = [sampler.order(n, epoch) for epoch in range(epochs)]
    return [[order[begin:end] for begin, end in zip([0, *ends], ends, strict=False)] for order in orders]


@pytest.fixture
def exact(table):
    return table(23, dtype="float64")


@pytest.mark.parametrize("where", ["cpu", "sim:1"])
@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer("sgd", lr=0.1),
        Optimizer("sgd", lr=0.1, clip_norm=0.5),
        Optimizer("sgd", lr=0.2, schedule=Schedule("cosine", steps=9, final=0.1, warmup=3)),
        Optimizer("sgd", lr=0.2, schedule=Schedule("step", rate=0.5, every=4)),
    ],
    ids=["plain", "clipped", "cosine", "stairs"],
)
@pytest.mark.parametrize("listened", [False, True])
@pytest.mark.usefixtures("sims")
def test_a_linear_model_trains_as_by_hand(listened, optimizer, where, exact, line, experiment, train, at):
    graph = line(Dense(1, dtype="float64"), optimizer, source=exact)
    graph.build()
    w, b = (np.array(graph["net"].model.parameters[name]) for name in ("weight", "bias"))
    sampler = SimpleSampler(5, shuffle=True, seed=4)
    x, y = exact.array("x"), exact.array("y")
    batches = batches_of(sampler, 23, 3)
    losses, w, b = descend(x, y, w, b, batches, optimizer.rate, optimizer.clip_norm or math.inf)
    callbacks = [at("step_end", lambda run: None)] if listened else []
    phase = train(data=exact, sampler=sampler, epochs=3, accelerator=where, callbacks=callbacks)
    result = experiment(graph).run_phase(phase)
    np.testing.assert_allclose(result.loss, losses, rtol=1e-12)
    np.testing.assert_allclose(graph.state()["net/parameters/weight"], w, rtol=1e-11)
    np.testing.assert_allclose(graph.state()["net/parameters/bias"], b, rtol=1e-11)
    assert [epoch.steps for epoch in result.epochs] == [5] * 3


def test_a_loss_with_a_weight_trains_as_by_hand(exact, line, experiment, train):
    graph = line(Dense(1, dtype="float64"), Optimizer("sgd", lr=0.1), source=exact)
    graph.build()
    w, b = (np.array(graph["net"].model.parameters[name]) for name in ("weight", "bias"))
    sampler = SimpleSampler(5)
    batches = batches_of(sampler, 23, 2)
    losses, w, b = descend(exact.array("x"), exact.array("y"), w, b, batches, lambda t: 0.1, weight=0.3)
    result = experiment(graph).run_phase(
        train(data=exact, sampler=sampler, epochs=2, losses=[AppliedLoss("mse", on="net", weight=0.3)])
    )
    np.testing.assert_allclose(result.loss, losses, rtol=1e-12)
    np.testing.assert_allclose(result.losses("net") * 0.3, losses, rtol=1e-12)
    np.testing.assert_allclose(graph.state()["net/parameters/weight"], w, rtol=1e-11)


def test_the_total_is_the_weighted_sum_of_the_losses(data, experiment, train):
    nodes = [
        ModelNode("net", Dense(1), data.reference(["x"], ["y"])),
        ModelNode("sort", Dense(3), data.reference(["x"], ["c"])),
    ]
    losses = [
        AppliedLoss("mse", on="net", weight=2.0),
        AppliedLoss("mae", on="net", weight=0.0, label="aside"),
        AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"], weight=0.5),
    ]
    result = experiment(ModelGraph(nodes, "adam")).run_phase(train(losses=losses, epochs=2, batch_size=5))
    for epoch in result.epochs:
        assert list(epoch.losses) == ["net", "aside", "sort"]
        assert epoch.loss == pytest.approx(2.0 * epoch.losses["net"] + 0.5 * epoch.losses["sort"])
    assert result.figures == ("loss", "loss.net", "loss.aside", "loss.sort")


def test_a_loss_without_weight_trains_nothing_by_itself(data, experiment, train, line):
    graph = line(optimizer=Optimizer("sgd", lr=1.0))
    graph.build()
    before = graph.state()["net/parameters/weight"]
    experiment(graph).run_phase(train(losses=[AppliedLoss("mse", on="net", weight=0.0)]))
    np.testing.assert_array_equal(graph.state()["net/parameters/weight"], before)


def test_each_node_may_have_its_own_optimizer(data, experiment, train, line):
    """Two nodes on the same data, each as if it were alone with its optimizer."""
    slow, fast = Optimizer("sgd", lr=0.01), Optimizer("adam", lr=0.2)
    alone = {}
    for name, optimizer in (("net", slow), ("other", fast)):
        graph = ModelGraph([ModelNode(name, Dense(1), data.reference(["x"], ["y"]))], optimizer)
        experiment(graph).run_phase(train(losses=[AppliedLoss("mse", on=name)], epochs=2))
        alone[name] = graph.state()
    nodes = [
        ModelNode("net", Dense(1), data.reference(["x"], ["y"])),
        ModelNode("other", Dense(1), data.reference(["x"], ["y"]), optimizer=fast),
    ]
    both = ModelGraph(nodes, slow)
    losses = [AppliedLoss("mse", on="net"), AppliedLoss("mse", on="other")]
    experiment(both).run_phase(train(losses=losses, epochs=2))
    for name, state in alone.items():
        for key in (key for key in state if key.startswith(name)):
            np.testing.assert_array_equal(both.state()[key], state[key], err_msg=key)


def wide(data, devices, clip=None):
    """Two branches, joined, with a loss on the head and one on a branch; each node where `devices` says."""
    one, two, head = devices
    nodes = [
        ModelNode("left", SequentialMLP((3,), 2, 4), data.reference(["x"], ["y"]), one),
        ModelNode("right", Dense(2), data.reference(["x"], ["y"]), two),
        ConcatNode("both", ["left", "right"]),
        ModelNode("net", Dense(1), "both", head),
        ModelNode("sort", Dense(3), "left", one),
    ]
    return ModelGraph(nodes, Optimizer("adam", lr=0.05, clip_norm=clip))


WIDE_LOSSES = [MSE, AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"], weight=0.4)]


@pytest.mark.parametrize("clip", [None, 0.01, 0.7])
def test_a_graph_on_several_devices_trains_as_on_one(clip, sims, data, experiment, train, values, same):
    """Clipping too goes over all parameters of an optimizer, wherever they are."""
    states, losses = [], []
    for devices in (
        ("cpu", "cpu", "cpu"),
        ("sim:0", "sim:1", "sim:0"),
        ("sim:0", "sim:1", "sim:2"),
        ("sim:1", "cpu", None),
    ):
        graph = wide(data, devices, clip)
        result = experiment(graph).run_phase(train(epochs=2, losses=WIDE_LOSSES, accelerator="sim:2"))
        states.append(values(graph))
        losses.append(result.loss)
        assert [str(result.plan.device(name)) for name in ("left", "right", "net")] == [
            {None: "sim:2", "cpu": "cpu:0"}.get(item, item) for item in devices
        ]
    for state, loss in zip(states[1:], losses[1:], strict=True):
        same(states[0], state, within=1e-6)
        np.testing.assert_allclose(loss, losses[0], rtol=1e-6)


def test_optimizer_state_is_on_the_device_of_its_node(sims, data, experiment, train):
    graph = wide(data, ("cpu", "sim:1", None))
    ours = experiment(graph)
    for accelerator, head in (("sim:0", "sim:0"), ("sim:2", "sim:2"), (None, "cpu:0")):
        ours.run_phase(train(losses=WIDE_LOSSES, accelerator=accelerator))
        wanted = {"left": "cpu:0", "right": "sim:1", "net": head, "sort": "cpu:0"}
        for label, device in wanted.items():
            backend = registry().computing("numpy")
            arrays = [*graph[label].model.parameters.values()]
            arrays += [a for slots in graph.optimizer_states[label].slots.values() for a in slots.values()]
            assert {str(backend.device_of(a)) for a in arrays} == {device}


def test_step_counts_of_optimizers_are_plain_numbers(sims, line, experiment, train):
    graph = line()
    experiment(graph).run_phase(train(accelerator="sim:0"))
    assert type(graph.optimizer_states["net"].step) is int


def test_a_node_with_only_dropout_is_random_in_training(data, experiment, train):
    nodes = [
        ModelNode("a", Dense(4), data.reference(["x"], ["y"])),
        ModelNode("drop", Dropout(0.9), "a"),
        ModelNode("net", Dense(1), "drop"),
    ]
    graph = ModelGraph(nodes, Optimizer("sgd", lr=1e-12))
    losses = experiment(graph).run_phase(train(epochs=3, batch_size=16)).loss
    assert np.ptp(losses) > 1e-3


def test_a_node_that_only_the_validation_needs_is_not_trained(data, experiment, train):
    nodes = [
        ModelNode("net", Dense(1), data.reference(["x"], ["y"]), optimizer="adam"),
        ModelNode("other", Sequential(Dense(1), BatchNorm()), data.reference(["x"], ["y"])),
    ]
    graph = ModelGraph(nodes).build()
    before = graph["other"].model.buffers["1.running_mean"].copy()
    validation = EvalPhase("check", data="val", metrics=[Metric("mse", on="other", targets="data.y")])
    experiment(graph).run_phase(train(validation=validation))
    np.testing.assert_array_equal(graph["other"].model.buffers["1.running_mean"], before)
    assert list(graph.optimizer_states) == ["net"]


# -- listening to steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [lambda: SequentialMLP((1,), 3, 5, "tanh", 0.3), lambda: Sequential(Dense(4), BatchNorm(), Dropout(0.2), Dense(1))],
    ids=["mlp", "norm"],
)
def test_a_step_end_hook_changes_no_number(model, line, experiment, train, at, values, same):
    graphs, losses = [line(model()), line(model())], []
    for graph, callbacks in zip(graphs, ([], [at("step_end", lambda run: run.step_losses())]), strict=True):
        losses.append(experiment(graph).run_phase(train(batch_size=3, epochs=4, callbacks=callbacks)).loss)
    same(values(graphs[0]), values(graphs[1]))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_how_many_steps_a_call_takes_changes_no_number(line, experiment, train, values, same, monkeypatch):
    graphs = []
    for fixed in (1, 2, 3, 100):
        pacing = SimpleNamespace(n_steps=fixed, record=lambda n_steps, seconds: None)
        monkeypatch.setattr(train_loop, "StepPacing", lambda pacing=pacing: pacing)
        graphs.append(line(SequentialMLP((1,), 2, 5, "tanh", 0.3)))
        experiment(graphs[-1]).run_phase(train(batch_size=2, epochs=3))
    for graph in graphs[1:]:
        same(values(graphs[0]), values(graph))


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_an_epoch_takes_the_seconds_that_its_steps_take(line, experiment, train, at):
    began = time.perf_counter()
    results = experiment(line()).run_phase(train(epochs=2, callbacks=[at("step_end", lambda run: time.sleep(0.005))]))
    most = time.perf_counter() - began
    assert all(epoch.seconds >= 0.005 * epoch.steps > 0 for epoch in results.epochs)
    assert sum(epoch.seconds for epoch in results.epochs) <= most


def test_a_run_stopped_in_an_epoch_ends_after_it(line, experiment, train, at):
    stop = at("epoch_end", lambda run: run.stop("enough") if run.epoch == 1 else None)
    result = experiment(line()).run_phase(train(epochs=9, callbacks=[stop]))
    assert len(result.epochs) == 2
    assert result.stop_reason == "enough" and result.error is None


def test_a_run_stopped_in_a_step_ends_after_it_and_the_epoch_counts(line, experiment, train, at):
    seen = []

    def stop(run):
        seen.append((run.epoch, run.step))
        if (run.epoch, run.step) == (1, 1):
            run.stop("enough")

    graph = line()
    ends = at("epoch_end", lambda run: seen.append("end"))
    result = experiment(graph).run_phase(train(epochs=9, callbacks=[at("step_end", stop), ends]))
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3), "end", (1, 0), (1, 1), "end"]
    assert [epoch.steps for epoch in result.epochs] == [4, 2]
    assert graph.progress == {"train": 2}
    assert graph.optimizer_states["net"].step == 6


def test_the_loss_of_an_epoch_cut_short_is_that_of_its_steps(line, experiment, train, at):
    losses = []

    def stop(run):
        losses.append(run.step_losses()["net"])
        if run.step == 2:
            run.stop("enough")

    result = experiment(line()).run_phase(train(callbacks=[at("step_end", stop)]))
    assert result.loss == pytest.approx([sum(losses) / 3])


def test_a_run_stopped_before_an_epoch_does_not_begin_it(line, experiment, train, at):
    seen = []
    stop = at("epoch_start", lambda run: run.stop("enough") if run.epoch == 1 else None)
    graph = line()
    listen = [at("epoch_start", lambda run: seen.append("start")), at("epoch_end", lambda run: seen.append("end"))]
    result = experiment(graph).run_phase(train(epochs=9, validation="val", callbacks=[stop, *listen]))
    assert seen == ["start", "end", "start"]
    assert [epoch.number for epoch in result.epochs] == [0] and result.stop_reason == "enough"
    assert graph.progress == {"train": 1}


def test_the_first_reason_to_stop_counts_and_none_is_a_reason_too(line, experiment, train, at):
    both = [at("epoch_end", lambda run: run.stop("")), at("epoch_end", lambda run: run.stop("second"))]
    assert experiment(line()).run_phase(train(epochs=3, callbacks=both)).stop_reason == "asked to stop"


def test_a_last_partial_batch_is_left_out_where_a_step_stopped_the_run(line, experiment, train, at):
    stop = at("step_end", lambda run: run.stop("enough") if run.step == 2 else None)
    result = experiment(line()).run_phase(train(batch_size=5, callbacks=[stop]))
    assert [epoch.steps for epoch in result.epochs] == [3]


# -- validation --------------------------------------------------------------------------------------------------------


def test_a_validation_equals_an_evaluation(line, experiment, train, evaluate):
    graph = line()
    ours = experiment(graph)
    validation = evaluate("check", metrics=["mse", "mae"], losses=[])
    for _ in range(3):
        (epoch,) = ours.run_phase(train(validation=validation)).epochs
        after = ours.run_phase(evaluate(metrics=["mse", "mae"]))
        assert epoch.validation == {"loss": after.loss, "loss.net": after.loss, **after.metrics}
        assert epoch.validated
        assert after.loss == pytest.approx(after.metrics["mse"], rel=1e-5)
    assert ours.history[0].figures == ("loss", "loss.net", "val_loss", "val_loss.net", "val_mse", "val_mae")


def test_validation_changes_nothing(data, experiment, train, values, same):
    def model():
        return Sequential(Dense(4), BatchNorm(), Dropout(0.5), Dense(1))

    graphs, losses = [], []
    for validation in (None, "val", EvalPhase("check", data="all", metrics=["mse"], batch_size=3)):
        graph = ModelGraph([ModelNode("net", model(), data.reference(["x"], ["y"]))], Optimizer("adam", lr=0.05))
        losses.append(experiment(graph).run_phase(train(epochs=3, validation=validation)).loss)
        graphs.append(graph)
    for graph, loss in zip(graphs[1:], losses[1:], strict=True):
        same(values(graphs[0]), values(graph))
        np.testing.assert_array_equal(loss, losses[0])


@pytest.mark.parametrize(
    ("every", "epochs", "validated"),
    [(1, 3, [0, 1, 2]), (2, 5, [1, 3, 4]), (3, 6, [2, 5]), (7, 3, [2])],
)
def test_validation_comes_when_it_is_due_and_after_the_last_epoch(every, epochs, validated, line, experiment, train):
    result = experiment(line()).run_phase(train(epochs=epochs, validation="val", validate_every=every))
    assert [epoch.number for epoch in result.epochs if epoch.validated] == validated
    figure = result.figure("val_loss")
    assert np.flatnonzero(np.isfinite(figure)).tolist() == validated


def test_a_validation_of_the_same_label_has_its_own_data(data, line, experiment, train, evaluate):
    """Splits are often called as phases are: `validation="val"` in a phase "val" once trained on the wrong rows."""
    graph, other = line(), line()
    ours = experiment(graph)
    (epoch,) = ours.run_phase(train("val", validation="val")).epochs
    assert epoch.steps == 4
    experiment(other).run_phase(train(losses=[MSE]))
    assert epoch.validation["loss"] == ours.run_phase(evaluate()).loss


def test_a_validation_may_judge_another_feature_set(data, table, line, experiment, train):
    far = table(24, "far", seed=5)
    graph = line()
    graph.add_node(ModelNode("idle", Dense(1), far.reference(["x"], ["y"])))
    validation = EvalPhase(
        "check", data={"data": "all", "far": "all"}, metrics=[Metric("mse", on="net", targets="far.y")]
    )
    result = experiment(graph).run_phase(train(data={"data": "train"}, validation=validation))
    assert result.epochs[0].validation["mse"] > 0


def test_targets_may_come_from_a_feature_set_that_feeds_no_trained_node(data, table, line, experiment, train):
    far = table(24, "far", seed=5)
    graph = line()
    graph.add_node(ModelNode("idle", Dense(1), far.reference(["x"], ["y"])))
    loss = AppliedLoss("mse", on="net", inputs=["outputs", "far.y"])
    assert experiment(graph).run_phase(train(data={"data": "all", "far": "all"}, losses=[loss])).loss[0] > 0


def test_classes_are_counted_for_the_output_that_a_loss_names(data, experiment, train):
    class Two(Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Dense(1), Dense(3)
            self.dtype = "float32"

        @property
        def is_built(self):
            return self.first.is_built

        def build(self, inputs, seed):
            for name, part in (("a", self.first), ("b", self.second)):
                part.build(inputs, seed)
                self.parameters.update({f"{name}.{key}": value for key, value in part.parameters.items()})

        def apply(self, values, inputs, *, train, key):
            parts = [
                part.apply({k[2:]: v for k, v in values.items() if k[0] == name}, inputs, train=train, key=key)
                for name, part in (("a", self.first), ("b", self.second))
            ]

            def pullback(cotangents):
                collected = [part.pullback((c,)) for part, c in zip(parts, cotangents, strict=True)]
                gradients = {f"{n}.{k}": g for n, (of, _) in zip("ab", collected, strict=True) for k, g in of.items()}
                return gradients, (collected[0][1][0] + collected[1][1][0],)

            return VjpResult(tuple(part.outputs[0] for part in parts), pullback)

    graph = ModelGraph([ModelNode("net", Two(), data.reference(["x"], ["y", "c"]), outputs=["value", "class"])], "adam")
    losses = [
        AppliedLoss("mse", on="net", inputs=["outputs.value", "data.y"], label="value"),
        AppliedLoss("cross_entropy", on="net", inputs=["outputs.class", "data.c"], label="class"),
    ]
    result = experiment(graph).run_phase(train(losses=losses, epochs=2))
    assert result.losses("class")[0] > 0 and list(result.epochs[0].losses) == ["value", "class"]


# -- what moves, and what is waited for --------------------------------------------------------------------------------


@pytest.fixture
def watch(sims, monkeypatch):
    """Counts of the simulated devices when a loop begins, when its losses are fetched, and around validations."""
    marks = []

    def note(name):
        counts = [(s.transfers.into.number, s.transfers.out.number, s.transfers.between.number, s.syncs) for s in sims]
        marks.append((name, np.array(counts)))

    means, evaluation = LossAccumulator.means, Evaluation.run

    def noted_means(self):
        note("before losses")
        result = means(self)
        note("after losses")
        return result

    def noted_evaluation(self):
        note("before validation")
        result = evaluation(self)
        note("after validation")
        return result

    monkeypatch.setattr(LossAccumulator, "means", noted_means)
    monkeypatch.setattr(Evaluation, "run", noted_evaluation)
    return marks, note


def between(marks, first, second):
    """The difference from each mark of one name to the next of the other."""
    result = []
    for name, counts in marks:
        if name == first:
            start = counts
        elif name == second:
            result.append(counts - start)
    return result


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("listened", [False, True])
def test_an_epoch_moves_its_order_to_each_device_and_waits_for_nothing(
    listened, clip, watch, sims, data, experiment, train, at
):
    marks, note = watch
    graph = wide(data, ("sim:0", "sim:1", "sim:0"), clip)
    callbacks = [
        at("epoch_start", lambda run: note("epoch")),
        *([at("step_end", lambda run: None)] if listened else []),
    ]
    phase = train(losses=WIDE_LOSSES, epochs=3, callbacks=callbacks)
    result = experiment(graph).run_phase(phase)
    crossings = [
        (assignment.value, assignment.gradient)
        for assignment in result.plan.crossings
        if assignment.origin != assignment.destination
    ]
    assert crossings == [("right", False), ("right", True)], "the right branch's output, and its gradient back"
    for counts in between(marks, "epoch", "before losses"):
        into, out, across, syncs = counts.T.tolist()
        assert into == [1, 1, 0], "one order for each device with columns"
        assert out == [0, 0, 0] and syncs == [0, 0, 0]
        assert across[2] == 0 and across[0] == across[1] > 0


def test_a_fixed_order_is_moved_once_for_all_epochs(watch, sims, line, experiment, train, at):
    marks, note = watch
    callbacks = [at("epoch_start", lambda run: note("epoch"))]
    phase = train(sampler=SimpleSampler(4), epochs=4, accelerator="sim:0", callbacks=callbacks)
    experiment(line()).run_phase(phase)
    into = [counts[0, 0] for counts in between(marks, "epoch", "before losses")]
    assert into == [1, 0, 0, 0]


def test_losses_come_to_the_host_together_at_the_end_of_the_epoch(watch, line, experiment, train, monkeypatch):
    # a clock that stands still: calls grow as if steps took no time
    monkeypatch.setattr(train_loop, "time", SimpleNamespace(perf_counter=lambda: 100.0))
    marks, _ = watch
    experiment(line()).run_phase(train(epochs=2, batch_size=1, accelerator="sim:0"))
    for counts in between(marks, "before losses", "after losses"):
        into, out, across, syncs = counts[0]
        assert into == across == 0
        assert 1 <= out == syncs <= math.ceil(math.log2(16)) + 1, "one for each call, and calls grow"


def test_loading_moves_every_column_once_and_placing_every_parameter(sims, line, experiment, train, at):
    counts = []
    callbacks = [
        at("before_placement", lambda **_: counts.append(sims[1].transfers.into.number)),
        at("after_placement", lambda **_: counts.append(sims[1].transfers.into.number)),
        at("after_loading", lambda **_: counts.append(sims[1].transfers.into.number)),
    ]
    ours = experiment(line())
    ours.run_phase(train(accelerator="sim:1", validation="val", callbacks=callbacks))
    assert counts == [0, 2, 2 + 2 * 2]
    counts.clear()
    for sim in sims:
        sim.clear()
    ours.run_phase(train(accelerator="sim:1", callbacks=callbacks))
    assert counts == [0, 0, 2], "models that are there already do not move"


def test_validation_moves_nothing_but_its_losses(watch, sims, line, experiment, train, evaluate):
    marks, _ = watch
    graph = line()
    validation = evaluate("check", losses=[], batch_size=3)
    experiment(graph).run_phase(train(epochs=3, accelerator="sim:0", validation=validation))
    result = between(marks, "before validation", "after validation")
    assert len(result) == 3
    for counts in result:
        into, out, across, syncs = counts[0]
        assert into == across == 0
        assert out == syncs == 2 * 3, "sum and weight of three batches"
        assert not counts[1:].any()


def test_predictions_for_metrics_are_all_that_a_validation_adds(watch, sims, line, experiment, train, evaluate):
    marks, _ = watch
    validation = evaluate("check", losses=[], metrics=["mse"], batch_size=4)
    experiment(line()).run_phase(train(accelerator="sim:0", validation=validation))
    ((into, out, across, _),) = (counts[0] for counts in between(marks, "before validation", "after validation"))
    assert (into, across) == (0, 0)
    assert out == 2 * 2 + 2


@pytest.mark.parametrize("kept", [[], ["step_end"]])
def test_nothing_of_a_phase_stays_on_its_device(kept, sims, line, experiment, train, evaluate, at, owned):
    graph = line(SequentialMLP((1,), 3, 8))
    ours = experiment(graph)
    listening = [at(moment, lambda run: None) for moment in kept]
    ours.run_phase(train(accelerator="sim:0", validation="val", epochs=2, callbacks=listening))
    assert sims[0].used == owned(graph, "sim:0") == 3 * 4 * (4 * 8 + 9 * 8 + 9)
    ours.run_phase(evaluate(accelerator="sim:0", metrics=["mse"]))
    assert sims[0].used == owned(graph, "sim:0")
    ours.run_phase(evaluate())
    assert sims[0].used == 0


def test_a_thousand_steps_need_no_more_memory_than_ten(table, line, experiment, train, sims):
    peaks = []
    for n in (10, 1000):
        many, sims[0].peak = table(n), 0
        graph = line(source=many)
        experiment(graph).run_phase(train(data=many, batch_size=1, accelerator="sim:0"))
        peaks.append(sims[0].peak - n * (3 + 1) * 4 - n * 8)
        experiment(graph).run_phase(train(data=many, batch_size=1))
    assert peaks[1] - peaks[0] <= 1000 * 2 * 4, "a step leaves its loss behind, which is stacked, and nothing else"


def test_rows_beyond_the_steps_of_a_call_do_not_count() -> None:
    accumulator = LossAccumulator()
    means = np.array([[1.0, 10.0], [3.0, 20.0], [100.0, 100.0]])
    accumulator.add(
        [Losses(NumpyBackend(), 4, ("a", "b"), means, 2), Losses(NumpyBackend(), 8, ("a", "b"), means[1:], 1)]
    )
    assert accumulator.means() == {"a": (4 * (1 + 3) + 8 * 3) / 16, "b": (4 * (10 + 20) + 8 * 20) / 16}
