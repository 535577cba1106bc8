"""Several segments: a graph that two backends compute trains as if one did."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.device import Device
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.hookspecs import hookimpl
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, NumpyBackend, Sequential, SequentialMLP
from anyaccel.phases import EarlyStopping, EvalPhase, TrainPhase
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")
SORT = AppliedLoss("cross_entropy", on="sort", inputs=["outputs", "data.c"], weight=0.4)


METHODS = ("forward", "forward_pullback", "optimizer_step", "grad_stats", "train_steps", "snapshot", "restore", "close")


class Watched(NumpyBackend):
    """NumPy under another name, on the CPU; records the calls of its programs, by segment."""

    kinds = ("cpu",)
    import_roots = ("elsewhere",)

    def __init__(self, framework, calls):
        self.framework = framework
        self.calls = calls
        self.inside = False

    def devices(self):
        return [Device("cpu")]

    def build(self, segment):
        program = super().build(segment)
        for name in (
            "forward",
            "forward_pullback",
            "optimizer_step",
            "grad_stats",
            "train_steps",
            "snapshot",
            "restore",
            "close",
        ):
            setattr(program, name, self.told(segment, name, getattr(program, name)))
        return program

    def told(self, segment, name, method):
        """The method, recorded unless another method of its program calls it."""

        def telling(*args):
            if self.inside:
                return method(*args)
            self.inside = True
            try:
                result = method(*args)
            finally:
                self.inside = False
            self.calls.append((segment.label, name))
            if name != "forward_pullback":
                return result
            outputs, losses, pullback = result
            return outputs, losses, self.told(segment, "pullback", pullback)

        return telling


@pytest.fixture
def calls(numpy_only):
    """Two more frameworks, `one` and `two`; the list of calls of their programs."""
    result = []

    class Plugin:
        contract = 2

        @hookimpl
        def backends(self):
            return [Watched("one", result), Watched("two", result)]

    numpy_only.register(Plugin(), "elsewhere")
    return result


@pytest.fixture
def graph_of(data):
    """`graph_of(shape, frameworks, ...)`: a graph of a known shape, its nodes in turn of these frameworks."""

    def chain(ref, who):
        return [
            ModelNode("a", SequentialMLP((4,), 2, 5, "tanh"), ref, framework=who()),
            ModelNode("b", SequentialMLP((3,), 2, 4, "tanh"), "a", framework=who()),
            ModelNode("net", Dense(1), "b", framework=who()),
        ]

    def skip(ref, who):
        """a -> b -> net, and a -> net: a and net are of one framework and not of one segment."""
        return [
            ModelNode("a", Dense(4), ref, framework=who()),
            ModelNode("b", SequentialMLP((2,), 2, 4, "tanh"), "a", framework=who()),
            ConcatNode("both", ["a", "b"]),
            ModelNode("net", SequentialMLP((1,), 2, 4, "tanh"), "both", framework=who()),
        ]

    def branches(ref, who):
        return [
            ModelNode("a", Dense(4), ref, framework=who()),
            ModelNode("left", SequentialMLP((2,), 2, 4, "tanh"), "a", framework=who()),
            ModelNode("right", SequentialMLP((2,), 2, 4, "tanh"), "a", framework=who()),
            ConcatNode("both", ["left", "right"]),
            ModelNode("net", Dense(1), "both", framework=who()),
            ModelNode("sort", Dense(3), "left", framework=who()),
        ]

    def make(shape, frameworks, optimizer=None):
        turn = iter(frameworks * 9)
        nodes = {"chain": chain, "skip": skip, "branches": branches}[shape](
            data.reference(["x"], ["y"]), lambda: next(turn)
        )
        return ModelGraph(nodes, optimizer or Optimizer("adam", lr=0.03))

    return make


def losses_of(graph):
    return [MSE, *([SORT] if "sort" in graph.nodes else []), AppliedLoss("mae", on="net", label="aside", weight=0.1)]


MIXED = [
    ("chain", ["one", "two"], 3),
    ("chain", ["one", "one", "two"], 2),
    ("chain", ["one", "numpy", "two"], 3),
    ("skip", ["one", "two"], 3),
    ("skip", ["two", "one", "one"], 2),
    ("branches", ["one", "two"], 3),
    ("branches", ["one", "two", "two"], None),
    ("branches", ["one", "two", "numpy"], None),
]


# -- the same numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "frameworks", "segments"), MIXED)
@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer("adam", lr=0.03),
        Optimizer("momentum", lr=0.05, clip_norm=0.3),
        Optimizer("sgd", lr=0.1, clip_norm=100.0),
        Optimizer("momentum", lr=0.05, clip_value=0.01),
    ],
    ids=["adam", "clipped", "hardly clipped", "clipped by value"],
)
@pytest.mark.usefixtures("calls")
def test_several_frameworks_train_to_the_numbers_of_one(
    shape, frameworks, segments, optimizer, graph_of, experiment, same
):
    collected = []
    for names in (["numpy"], frameworks):
        graph = graph_of(shape, names, optimizer)
        ours = experiment(graph)
        phase = TrainPhase("t", data="train", losses=losses_of(graph), batch_size=5, epochs=3, validation="val")
        result = ours.run_phase(phase)
        evaluation = EvalPhase(
            "e", data="val", losses=losses_of(graph), metrics=[Metric("mse", on="net")], outputs=["a", "net"]
        )
        collected.append((graph.state(), result, ours.run_phase(evaluation)))
    (one, trained, seen), (several, trained_too, seen_too) = collected
    assert len(trained.plan.parts) == 1
    if segments is not None:
        assert len(trained_too.plan.parts) == segments
    assert len(trained_too.plan.parts) > 1
    same(one, several, within=1e-6)
    assert trained.figures == trained_too.figures
    for name in trained.figures:
        np.testing.assert_allclose(trained_too.figure(name), trained.figure(name), rtol=1e-6, err_msg=name)
    assert list(seen.losses) == list(seen_too.losses) == [loss.label for loss in losses_of(graph)]
    assert seen_too.losses == pytest.approx(seen.losses) and seen_too.loss == pytest.approx(seen.loss)
    for name in ("a", "net"):
        np.testing.assert_allclose(seen_too.prediction(name), seen.prediction(name), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("calls")
def test_randomness_and_buffers_are_the_same_in_several_frameworks(data, experiment, same):
    states = []
    for names in (["numpy"] * 3, ["one", "two", "one"]):
        nodes = [
            ModelNode(
                "a", Sequential(Dense(4), BatchNorm(), Dropout(0.3)), data.reference(["x"], ["y"]), framework=names[0]
            ),
            ModelNode("b", Sequential(Dense(4), Dropout(0.5), BatchNorm()), "a", framework=names[1]),
            ModelNode("net", Dense(1), "b", framework=names[2]),
        ]
        graph = ModelGraph(nodes, "adam")
        experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=3))
        states.append(graph.state())
    same(*states, within=1e-6)


@pytest.mark.usefixtures("calls")
def test_each_node_may_have_its_own_optimizer_in_its_own_framework(data, experiment, same):
    states = []
    for names in (["numpy"] * 2, ["one", "two"]):
        nodes = [
            ModelNode(
                "a",
                Dense(4),
                data.reference(["x"], ["y"]),
                framework=names[0],
                optimizer=Optimizer("sgd", lr=0.1, clip_norm=0.1),
            ),
            ModelNode("net", Dense(1), "a", framework=names[1]),
        ]
        graph = ModelGraph(nodes, Optimizer("adam", lr=0.05, clip_norm=0.2))
        experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=3))
        states.append(graph.state())
    same(*states, within=1e-6)


@pytest.mark.usefixtures("calls")
def test_frameworks_on_different_devices_train_to_the_numbers_of_one(sims, data, experiment, same, owned):
    """NumPy on a simulated device and another framework on the CPU: values cross through the host."""
    states = []
    for name, devices in (("numpy", (None, None, None)), ("one", ("sim:0", "cpu", "sim:1"))):
        nodes = [
            ModelNode("a", Dense(4), data.reference(["x"], ["y"]), devices[0]),
            ModelNode("b", Dense(4), "a", devices[1], framework=name),
            ModelNode("net", Dense(1), "b", devices[2]),
        ]
        graph = ModelGraph(nodes, Optimizer("adam", lr=0.05, clip_norm=0.2))
        result = experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=2))
        states.append(graph.state())
    same(*states, within=1e-6)
    forward = [assignment for assignment in result.plan.crossings if not assignment.gradient]
    assert [(item.value, item.route) for item in forward] == [("a", "host"), ("b", "host")]
    assert [
        (element.value, element.source, element.target) for element in result.plan.crossings if element.gradient
    ] == [
        ("a", "b", "a"),
        ("b", "net", "b"),
    ]
    assert sims[0].transfers.out.number > 8 and sims[1].transfers.into.number > 8
    assert [sim.used for sim in sims] == [owned(graph, "sim:0"), owned(graph, "sim:1"), 0]


# -- only what must ----------------------------------------------------------------------------------------------------


def count(calls, label):
    names = [name for segment, name in calls if segment == label]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def test_every_segment_is_called_once_per_step(calls, graph_of, experiment):
    graph = graph_of("chain", ["one", "two"])
    experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    for label in ("one:0", "two:1", "one:2"):
        taken = count(calls, label)
        assert taken.pop("snapshot") >= 1  # at the start, and now and then, in case memory runs out
        assert taken == {"forward_pullback": 4, "pullback": 4, "optimizer_step": 4, "close": 1}
    step = [(label, name) for label, name in calls if name not in ("close", "snapshot")][: 3 * 3]
    assert step == [
        ("one:0", "forward_pullback"),
        ("two:1", "forward_pullback"),
        ("one:2", "forward_pullback"),
        ("one:2", "pullback"),
        ("two:1", "pullback"),
        ("one:0", "pullback"),
        ("one:0", "optimizer_step"),
        ("two:1", "optimizer_step"),
        ("one:2", "optimizer_step"),
    ]


def test_a_frozen_first_segment_gets_no_pullback(calls, graph_of, experiment):
    graph = graph_of("chain", ["one", "two"], Optimizer("adam", lr=0.1, clip_norm=1.0)).freeze("a")
    graph.build()
    before = graph.state()
    experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=2))
    done = [count([call for call in calls if call[1] != "snapshot"], label) for label in ("one:0", "two:1")]
    assert done[0] == {"forward": 8, "close": 1}
    assert done[1] == {"forward_pullback": 8, "pullback": 8, "grad_stats": 8, "optimizer_step": 8, "close": 1}
    after = graph.state()
    changed = {name.partition("/")[0] for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"b", "net"} == set(graph.optimizer_states)


def test_a_frozen_segment_between_trained_ones_passes_cotangents_on(calls, graph_of, experiment, same):
    states = []
    for names in (["numpy"], ["one", "two"]):
        graph = graph_of("chain", names).freeze("b")
        experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=2))
        states.append(graph.state())
    same(*states, within=1e-6)
    assert sorted(graph.optimizer_states) == ["a", "net"]
    assert count(calls, "two:1")["pullback"] == 8


def test_a_frozen_last_segment_only_passes_cotangents(calls, graph_of, experiment, same):
    states = []
    for names in (["numpy"], ["one", "two"]):
        graph = graph_of("chain", names).freeze("net", "b")
        experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=2))
        states.append(graph.state())
    same(*states, within=1e-6)
    assert list(graph.optimizer_states) == ["a"]


def test_losses_may_be_in_either_segment(calls, graph_of, experiment):
    graph = graph_of("branches", ["one", "two"])
    losses = [SORT, AppliedLoss("mse", on="a", inputs=["outputs", "outputs"], label="zero"), MSE]
    result = experiment(graph).run_phase(TrainPhase("t", data="train", losses=losses, batch_size=4, epochs=2))
    homes = {graph.shapes.frameworks[loss.on] for loss in losses}
    assert homes == {"one", "two"}
    assert sorted(result.epochs[0].losses) == ["net", "sort", "zero"]
    assert result.losses("zero").tolist() == [0.0, 0.0]
    epoch = result.epochs[0]
    assert epoch.loss == pytest.approx(0.4 * epoch.losses["sort"] + epoch.losses["zero"] + epoch.losses["net"])


def test_a_loss_may_compare_values_of_two_segments(calls, graph_of, experiment, same):
    states = []
    for names in (["numpy"], ["one", "two"]):
        graph = graph_of("branches", names)
        losses = [MSE, AppliedLoss("mse", on="left", inputs=["outputs", "right"], label="apart")]
        result = experiment(graph).run_phase(TrainPhase("t", data="train", losses=losses, batch_size=4, epochs=2))
        states.append({**graph.state(), "losses": result.loss})
    same(*states, within=1e-6)


def test_evaluations_ask_for_no_pullback(calls, graph_of, experiment):
    experiment(graph_of("chain", ["one", "two"])).run_phase(EvalPhase("e", data="val", losses=[MSE], batch_size=4))
    assert {name for _, name in calls} == {"forward", "close"}


def test_a_graph_of_one_segment_takes_whole_steps(calls, graph_of, experiment):
    experiment(graph_of("chain", ["one"])).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    assert set(count(calls, "one:0")) == {"snapshot", "train_steps", "close"}


# -- lifecycle of several segments -------------------------------------------------------------------------------------


def test_every_segment_is_closed_even_if_one_fails(calls, graph_of, experiment, monkeypatch):
    graph = graph_of("chain", ["one", "two"])
    ours = experiment(graph)
    ours.run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    before = graph.state()
    told = Watched.told

    def fail(self, segment, name, method):
        def failing():
            method()
            raise RuntimeError(f"stuck: {segment.label}")

        return failing if name == "close" and segment.label == "two:1" else told(self, segment, name, method)

    monkeypatch.setattr(Watched, "told", fail)
    with pytest.raises(RuntimeError, match="stuck: two:1"):
        ours.run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    after = graph.state()
    changed = {name.partition("/")[0] for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"a", "b", "net", "progress"}
    assert {label: state.step for label, state in graph.optimizer_states.items()} == {"a": 8, "b": 4, "net": 8}


def test_segments_are_closed_if_a_later_one_cannot_be_built(calls, graph_of, experiment, monkeypatch):
    build = Watched.build

    def fail(self, segment):
        if segment.label == "one:2":
            raise RuntimeError("no compiler")
        return build(self, segment)

    monkeypatch.setattr(Watched, "build", fail)
    graph = graph_of("chain", ["one", "two"])
    with pytest.raises(RuntimeError, match="no compiler"):
        experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    assert calls == [("one:0", "close"), ("two:1", "close")]
    assert graph.optimizer_states == {}


@pytest.mark.usefixtures("calls")
def test_an_interrupt_in_a_step_gives_state_back_to_all_segments(graph_of, experiment, monkeypatch):
    graph = graph_of("chain", ["one", "two"])
    apply, left = Dense.apply, [7]  # the first of them when its outputs in training are found

    def fail(self, values, inputs, **settings):
        left[0] -= settings["train"]
        if left[0] == 0:
            raise KeyboardInterrupt
        return apply(self, values, inputs, **settings)

    graph.build()
    before = graph.state()
    net = graph["net"].model
    monkeypatch.setattr(net, "apply", lambda *args, **settings: fail(net, *args, **settings))
    with pytest.raises(KeyboardInterrupt):
        experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=3))
    after = graph.state()
    assert all(np.isfinite(array).all() for array in after.values())
    assert not any(np.array_equal(before[name], after[name]) for name in before if "weight" in name)
    assert {state.step for state in graph.optimizer_states.values()} == {5}
    assert graph.progress == {"t": 1}


@pytest.mark.usefixtures("calls")
def test_early_stopping_restores_all_segments(graph_of, experiment, same):
    states = []
    for epochs, callbacks in ((1, []), (4, [EarlyStopping("loss", patience=2, min_delta=99, restore_best=True)])):
        graph = graph_of("skip", ["one", "two"])
        experiment(graph).run_phase(
            TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=epochs, callbacks=callbacks)
        )
        states.append({name: array for name, array in graph.state().items() if "progress" not in name})
    same(*states)


@pytest.mark.usefixtures("calls")
def test_a_step_end_hook_changes_no_number(graph_of, experiment, at, same):
    states, heard = [], []
    for callbacks in ([], [at("step_end", lambda run: heard.append(run.step_losses()))]):
        graph = graph_of("branches", ["one", "two"])
        phase = TrainPhase("t", data="train", losses=losses_of(graph), batch_size=5, epochs=2, callbacks=callbacks)
        experiment(graph).run_phase(phase)
        states.append(graph.state())
    same(*states)
    assert len(heard) == 8 and sorted(heard[0]) == ["aside", "net", "sort"]


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_done_has_the_losses_of_each_step(graph_of, experiment, at, accumulate):
    single, batches = [], []
    each = at("step_end", lambda run: single.append(run.step_losses()))
    some = at("steps_done", lambda steps: batches.append(steps.losses()))
    for callback in (each, some):
        graph = graph_of("branches", ["one", "two"])
        settings = {"batch_size": 2, "epochs": 2, "accumulate": accumulate, "callbacks": [callback]}
        experiment(graph).run_phase(TrainPhase("t", data="train", losses=losses_of(graph), **settings))
    assert len(batches) < len(single)
    for label in ("aside", "net", "sort"):
        heard = np.concatenate([batch[label] for batch in batches])
        np.testing.assert_allclose(heard, [losses[label] for losses in single], rtol=1e-6)


@pytest.mark.usefixtures("calls")
def test_training_continues_with_the_same_state_in_other_segments(graph_of, experiment, same):
    """State belongs to nodes; which segments compute them may change from phase to phase."""
    whole = graph_of("chain", ["numpy"])
    experiment(whole).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=4))
    moving = graph_of("chain", ["numpy"])
    for frameworks in (["one", "two", "one"], ["one", "one", "two"]):
        for node, framework in zip(moving.nodes.values(), frameworks, strict=True):
            node.framework = framework
        moving.build(force=True)
        experiment(moving).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4, epochs=2))
    same(whole.state(), moving.state(), within=1e-6)


def test_losses_of_an_epoch_are_copied_once_per_backend(calls, graph_of, experiment, monkeypatch):
    asked = []
    scalars = NumpyBackend.scalars

    def counted(self, values):
        asked.append((self.framework, len(values)))
        return scalars(self, values)

    monkeypatch.setattr(NumpyBackend, "scalars", counted)
    graph = graph_of("branches", ["one", "two"])
    experiment(graph).run_phase(TrainPhase("t", data="train", losses=losses_of(graph), batch_size=4, epochs=2))
    homes = [graph.shapes.frameworks[loss.on] for loss in losses_of(graph)]
    epoch = [(name, 4 * homes.count(name)) for name in dict.fromkeys(homes) for _ in ("sums", "weights")]
    assert sorted(asked) == sorted(epoch * 2)
