"""State dict: training continues elsewhere from names and arrays."""

from __future__ import annotations

import io

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    ModelGraph,
    ModelNode,
    Optimizer,
    Schedule,
    SimpleSampler,
    TrainPhase,
)
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, StateError
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Dropout, Sequential

RECIPE = Optimizer("adam", lr=0.01, schedule=Schedule("cosine", steps=40, final=0.1, warmup=3), clip_norm=0.5)


def build(fs, where=(None, None), optimizer=RECIPE, seed=5):
    """Two nodes with everything that a step can change: parameters, running statistics, random streams."""
    body = Sequential(Dense(8, bias=False), BatchNorm(), Activation("tanh"), Dropout(0.4))
    head = Sequential(Dropout(0.2), Dense(1))
    nodes = [ModelNode("body", body, fs.reference(), where[0]), ModelNode("head", head, "body", where[1])]
    return ModelGraph(nodes, optimizer, seed=seed)


def phase(epochs, **settings):
    sampler = SimpleSampler(7, shuffle=True, seed=1)
    losses = [AppliedLoss("mse", on="head")]
    return TrainPhase("train", data="all", losses=losses, sampler=sampler, epochs=epochs, **settings)


def run(graph, epochs, **settings):
    return Experiment("e", graph, progress="none").run_phase(phase(epochs, **settings))


def through_a_file(state):
    """As a user would keep it: plain arrays, no pickle."""
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype and array.tobytes() == other[name].tobytes(), name


# -- what it is --------------------------------------------------------------------------------------------------------


def test_a_state_has_a_name_for_everything(table):
    graph = build(table(), optimizer=Optimizer("adam"))
    run(graph, 2)
    names = set(graph.state())
    parameters = {"body/parameters/0.weight", "body/parameters/1.bias", "body/parameters/1.weight"}
    assert (
        parameters | {"body/buffers/1.running_mean", "body/buffers/1.running_var", "head/parameters/1.weight"} <= names
    )
    assert {"body/optimizer/m/0.weight", "body/optimizer/v/0.weight", "body/optimizer_step"} <= names
    assert {"seed", "progress/train", "head/optimizer_step"} <= names
    state = graph.state()
    assert (int(state["seed"]), int(state["progress/train"]), int(state["body/optimizer_step"])) == (5, 2, 8)
    assert all(type(array) is np.ndarray and array.dtype != object for array in state.values())


def test_a_state_before_any_training_has_the_models_alone(table):
    assert not [name for name in build(table()).state() if "optimizer" in name or "progress" in name]


def test_a_state_is_a_copy(table):
    graph = build(table())
    before = graph.state()
    taken = graph.state()
    for array in taken.values():
        array[...] = 77
    assert_same(graph.state(), before)
    run(graph, 1)
    assert any(array.tobytes() != before[name].tobytes() for name, array in graph.state().items() if name in before)


def test_what_is_loaded_is_a_copy_too(table):
    graph, other = build(table()), build(table(), seed=6)
    run(graph, 1)
    state = graph.state()
    other.load_state(state)
    for array in state.values():
        array[...] = 77
    assert_same(other.state(), graph.state())


def test_loading_returns_the_graph_and_keeps_the_objects(table):
    graph = build(table())
    model = graph["body"].model
    assert graph.load_state(build(table(), seed=9).state()) is graph
    assert graph["body"].model is model and graph.seed == 9


def test_a_graph_that_is_not_built_is_built_to_be_loaded(table):
    graph = build(table())
    run(graph, 1)
    fresh = build(table(), seed=1)
    assert not fresh.is_built
    assert_same(fresh.load_state(graph.state()).state(), graph.state())


@pytest.mark.parametrize(
    "optimizer", ["sgd", "momentum", "adam", "adamw", Optimizer("sgd", momentum=0.9, nesterov=True)]
)
def test_every_optimizer_round_trips(optimizer, table):
    graph = build(table(), optimizer=optimizer)
    run(graph, 1)
    fresh = build(table(), optimizer=optimizer, seed=1).load_state(through_a_file(graph.state()))
    assert_same(fresh.state(), graph.state())
    for one in (graph, fresh):
        run(one, 1)
    assert_same(fresh.state(), graph.state())


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def uninterrupted(table):
    """The state after four epochs in one go, and the losses of each."""
    graph = build(table())
    result = run(graph, 4)
    return graph.state(), result.loss


def test_two_and_two_epochs_equal_four(table, uninterrupted):
    graph = build(table())
    losses = np.concatenate([run(graph, 1).loss, run(graph, 3).loss])
    assert_same(graph.state(), uninterrupted[0])
    assert np.array_equal(losses, uninterrupted[1])


def test_a_run_that_goes_on_in_another_process_is_bit_for_bit_the_same(table, uninterrupted):
    graph = build(table())
    first = run(graph, 2).loss
    fresh = build(table(), seed=99).load_state(through_a_file(graph.state()))
    result = run(fresh, 2)
    assert [epoch.number for epoch in result.epochs] == [2, 3]
    assert_same(fresh.state(), uninterrupted[0])
    assert np.array_equal(np.concatenate([first, result.loss]), uninterrupted[1])


@pytest.mark.parametrize("where", [("sim:0", "sim:0"), ("sim:0", "sim:1"), ("cpu", "sim:1"), ("sim:1", None)])
def test_a_run_over_several_devices_goes_on_bit_for_bit_whatever_was_moved_in_between(where, table, sims):
    whole, graph = build(table(), where), build(table(), where)
    run(whole, 4)
    run(graph, 1, final_device="sim:1")
    run(graph, 1, final_device="cpu")
    Experiment("e", graph).run_phase(EvalPhase("eval", data="all", final_device="sim:0"))
    fresh = build(table(), where, seed=99).load_state(through_a_file(graph.state()))
    run(fresh, 2)
    assert_same(fresh.state(), whole.state())


def test_a_run_that_changes_devices_is_equal_up_to_rounding(table, uninterrupted, sims):
    """Not to the bit: NumPy 1.26 rounds by how memory is aligned, and a move allocates anew."""
    graph = build(table())
    for where in ("cpu", "sim:0", "sim:1"):
        run(graph, 1, accelerator=where)
    fresh = build(table()).load_state(through_a_file(graph.state()))
    run(fresh, 1, accelerator="sim:0")
    for name, array in fresh.state().items():
        assert np.allclose(array, uninterrupted[0][name], rtol=1e-4, atol=1e-6), name


def test_the_devices_of_nodes_change_results_by_rounding_at_most(table, uninterrupted, sims):
    graph = build(table(), ("sim:0", "sim:1"))
    run(graph, 4)
    for name, array in graph.state().items():
        assert np.allclose(array, uninterrupted[0][name], rtol=1e-4, atol=1e-6), name


def test_an_evaluation_between_changes_nothing(table, uninterrupted, sims):
    graph = build(table())
    experiment = Experiment("e", graph, progress="none")
    for _ in range(2):
        experiment.run_phase(phase(2))
        experiment.run_phase(EvalPhase("eval", data="all", accelerator="sim:0", outputs=["body"]))
    assert_same(graph.state(), uninterrupted[0])


def test_another_seed_is_another_run(table, uninterrupted):
    graph = build(table(), seed=6)
    run(graph, 4)
    assert graph.state()["head/parameters/1.weight"].tobytes() != uninterrupted[0]["head/parameters/1.weight"].tobytes()


def test_phases_of_other_labels_count_their_own_epochs(table):
    graph = build(table())
    run(graph, 2)
    other = TrainPhase("other", data="all", losses=[AppliedLoss("mse", on="head")])
    assert [epoch.number for epoch in Experiment("e", graph).run_phase(other).epochs] == [0]
    assert graph.progress == {"train": 2, "other": 1}
    assert build(table()).load_state(graph.state()).progress == {"train": 2, "other": 1}


# -- optimizer state follows its node ----------------------------------------------------------------------------------


def places(graph, label):
    return {
        slot.device if hasattr(slot, "on") else Device("cpu")
        for slots in graph.optimizer_states[label].slots.values()
        for slot in slots.values()
    }


def test_optimizer_state_is_where_its_node_is_not_where_the_phase_is(table, sims):
    graph = build(table(), (None, "cpu"))
    run(graph, 1, accelerator="sim:0")
    assert places(graph, "body") == {Device("sim", 0)}
    assert places(graph, "head") == {Device("cpu")}
    run(graph, 1, accelerator="sim:1")
    assert places(graph, "body") == {Device("sim", 1)}
    assert places(graph, "head") == {Device("cpu")}


def test_loaded_optimizer_state_is_placed_with_the_node(table, sims):
    graph = build(table(), ("sim:0", "cpu"))
    run(graph, 1)
    state = through_a_file(graph.state())
    graph.load_state(state)
    assert places(graph, "body") == {Device("sim", 0)}
    assert places(graph, "head") == {Device("cpu")}
    fresh = build(table(), ("sim:1", "sim:0")).load_state(state)
    run(fresh, 1)
    assert (places(fresh, "body"), places(fresh, "head")) == ({Device("sim", 1)}, {Device("sim", 0)})


def test_replacing_a_node_forgets_its_optimizer_state_and_no_other(table):
    graph = build(table())
    run(graph, 1)
    graph.replace_node("head", ModelNode("head", Sequential(Dropout(0.2), Dense(1)), "body"))
    names = set(graph.state())
    assert "body/optimizer_step" in names and "head/optimizer_step" not in names
    run(graph, 1)
    state = graph.state()
    assert (int(state["body/optimizer_step"]), int(state["head/optimizer_step"])) == (8, 4)


def test_frozen_nodes_keep_their_optimizer_state_for_later(table):
    graph = build(table())
    run(graph, 1)
    before = graph.state()
    run(graph.freeze("body"), 1)
    after = graph.state()
    assert_same(
        {k: v for k, v in before.items() if k.startswith("body/")},
        {k: v for k, v in after.items() if k.startswith("body/")},
    )
    run(graph.unfreeze(), 1)
    assert int(graph.state()["body/optimizer_step"]) == 8


# -- shared models -----------------------------------------------------------------------------------------------------


def sharing(fs, optimizer="adam"):
    """x -> a, and x -> b, with one model between them; both guess the features."""
    model = Dense(4)
    return ModelGraph([ModelNode(label, model, fs.reference()) for label in "ab"], optimizer)


def teach(graph, *labels):
    losses = [AppliedLoss("mse", on=label, inputs=["outputs", "fs.x"]) for label in labels]
    Experiment("e", graph, progress="none").run_phase(TrainPhase("t", data="all", losses=losses))


@pytest.mark.parametrize("labels", ["a", "b", "ab"])
def test_a_shared_models_state_stands_once_whoever_trained_it(labels, table):
    graph = sharing(table())
    teach(graph, *labels)
    state = graph.state()
    assert {name.partition("/")[0] for name in state} == {"seed", "progress", "a"}
    assert int(state["a/optimizer_step"]) == 1
    fresh = sharing(table()).load_state(through_a_file(state))
    assert_same(fresh.state(), state)
    for one in (graph, fresh):
        teach(one, "b")
    assert_same(fresh.state(), graph.state())
    assert int(graph.state()["a/optimizer_step"]) == 2


@pytest.mark.parametrize("order", [["a", "b", "a"], ["ab", "b", "a"], ["b", "ab", "b"]])
def test_a_shared_models_optimizer_goes_on_whoever_trains_it(order, table):
    """Both nodes are the same function of the same data, so that who trains it makes no difference but in scale."""
    graph, alone = sharing(table(), "momentum"), sharing(table(), "momentum")
    for i, labels in enumerate(order):
        teach(graph, *labels)
        teach(alone, *("ab" if len(labels) > 1 else "a"))
        assert int(graph.state()["a/optimizer_step"]) == i + 1
    for name in ("parameters/weight", "optimizer/velocity/weight"):
        assert np.allclose(graph.state()[f"a/{name}"], alone.state()[f"a/{name}"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("gone", ["a", "b"])
@pytest.mark.parametrize("how", ["replace", "remove"])
def test_a_shared_models_optimizer_state_stays_with_those_that_share_it(gone, how, table):
    graph = sharing(table())
    teach(graph, "a", "b")
    if how == "replace":
        graph.replace_node(gone, ModelNode(gone, Dense(4), graph[gone].upstreams))
    else:
        graph.remove_node(gone)
    (left,) = {"a", "b"} - {gone}
    assert list(graph.optimizer_states) == [left] and left in graph.optimizer_states
    assert int(graph.state()[f"{left}/optimizer_step"]) == 1
    assert f"{gone}/optimizer_step" not in graph.state()


def test_a_shared_models_optimizer_state_is_found_under_each_of_its_nodes(table):
    graph = sharing(table())
    teach(graph, "b")
    assert graph.optimizer_states["a"] is graph.optimizer_states["b"]
    assert len(graph.optimizer_states) == 1
    assert repr(graph.optimizer_states).startswith("{'a': NodeState(step=1")
    assert "c" not in graph.optimizer_states


# -- what is refused ---------------------------------------------------------------------------------------------------


def put(name, value):
    return lambda state: {**state, name: value}


def drop(*names):
    return lambda state: {name: array for name, array in state.items() if name not in names}


ONE = np.zeros(1, "float32")
BIAS = "head/parameters/1.bias"
MISTAKES = {
    "unknown node": (
        put("tail/parameters/w", ONE),
        r"has 'tail/parameters/w', but graph 'graph' has no node 'tail'. Available: body",
    ),
    "no node at all": (put("weights", ONE), r"the state has 'weights', but graph 'graph' has no node 'weights'"),
    "missing parameter": (drop(BIAS), r"state of node 'head' does not fit: it lacks parameters/1.bias"),
    "missing buffer": (drop("body/buffers/1.running_var"), r"'body' does not fit: it lacks buffers/1.running_var"),
    "strange parameter": (
        put("head/parameters/9.bias", ONE),
        r"'head' does not fit: the node has no parameters/9.bias",
    ),
    "strange kind": (
        put("head/extras/w", ONE),
        r"the node has no extras/w. Hint: load it into the graph that it belongs to",
    ),
    "shape": (
        put(BIAS, np.zeros(2, "float32")),
        r"bias is float32\[2\] in the state and float32\[1\] in the graph",
    ),
    "dtype": (put(BIAS, np.zeros(1)), r"bias is float64\[1\] in the state and float32\[1\] in the graph"),
    "objects": (put(BIAS, np.array([None])), r"is object\[1\] in the state"),
    "text": (put(BIAS, "text"), r"is <U4\[\] in the state"),
    "strange slot": (put("head/optimizer/m/nope", ONE), r"node 'head' does not fit: it has optimizer/m/nope"),
    "slot of nothing": (put("head/optimizer/m", ONE), r"it has optimizer/m. Available: parameters/"),
    "shape of a slot": (
        put("head/optimizer/m/1.bias", np.zeros(3)),
        r"head/optimizer/m/1.bias is float64\[3\] in the state",
    ),
    "slots without a step": (drop("head/optimizer_step"), r"node 'head' has optimizer/.* but no optimizer_step"),
    "step": (
        put("head/optimizer_step", np.array(1.5)),
        r"optimizer_step in the state must be one integer, got float64\[\]",
    ),
    "seed": (put("seed", np.array([1, 2])), r"seed in the state must be one integer, got int64\[2\]"),
    "progress": (put("progress/train", "two"), r"progress/train in the state must be one integer, got <U3\[\]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_state_that_does_not_fit_is_refused_before_anything_is_changed(mistake, table):
    change, message = MISTAKES[mistake]
    graph, source = build(table()), build(table(), seed=8)
    for one in (graph, source):
        run(one, 1)
    before = graph.state()
    with pytest.raises(StateError, match=message):
        graph.load_state(change(source.state()))
    assert_same(graph.state(), before)


def changed(fs):
    """A graph, and what became of it: a wider layer, a node that is gone, and one that is new."""
    before = ModelGraph(
        [
            ModelNode("body", Sequential(Dense(4), Activation("tanh"), Dense(4)), fs.reference()),
            ModelNode("old", Dense(2), "body"),
            ModelNode("head", Dense(1), "body"),
        ],
        "adam",
        seed=1,
    )
    after = ModelGraph(
        [
            ModelNode("body", Sequential(Dense(4), Activation("tanh"), Dense(5)), fs.reference()),
            ModelNode("new", Dense(2), "body"),
            ModelNode("head", Dense(1), "new"),
        ],
        "adam",
        seed=2,
    )
    return before, after


def test_all_differences_of_a_graph_that_changed_are_in_one_error(table):
    before, after = changed(table())
    kept = after.state()
    with pytest.raises(StateError) as caught:
        after.load_state(before.state())
    assert str(caught.value) == (
        "the state does not fit graph 'graph': the state has 'old/parameters/bias', 'old/parameters/weight', but graph "
        "'graph' has no node 'old'; body/parameters/2.weight is float32[4, 4] in the state and float32[5, 4] in the "
        "graph; body/parameters/2.bias is float32[4] in the state and float32[5] in the graph; the state of node 'new' "
        "does not fit: it lacks parameters/bias, parameters/weight; head/parameters/weight is float32[1, 4] in the "
        "state and float32[1, 2] in the graph. Available: body, new, head. Hint: load it into the graph that it "
        "belongs to, or load the matching parts with strict=False."
    )
    assert_same(after.state(), kept)


def test_what_fits_of_a_state_is_loaded_without_strict_and_the_rest_is_warned_of(table):
    before, after = changed(table())
    kept, state = after.state(), before.state()
    with pytest.warns(
        UserWarning, match=r"^left out of graph 'graph': the state has 'old/.*\[1, 2\] in the graph\.$"
    ) as told:
        assert after.load_state(state, strict=False) is after
    assert told[0].filename == __file__
    now = after.state()
    for name in ("body/parameters/0.weight", "body/parameters/0.bias", "head/parameters/bias", "seed"):
        assert np.array_equal(now[name], state[name]), name
    for name in ("body/parameters/2.weight", "head/parameters/weight", "new/parameters/weight"):
        assert np.array_equal(now[name], kept[name]), name


def test_a_folder_is_loaded_in_part_into_models_that_changed(table, tmp_path):
    before = one_node(table(y=((1,), "float32")))
    before.save(tmp_path)
    with pytest.raises(StateError, match=r"the node has no parameters/bias\. Hint: .* strict=False"):
        ModelGraph.load(tmp_path, models={"head": Dense(1, bias=False)})
    with pytest.warns(UserWarning, match="left out of graph 'graph': ") as told:
        graph = ModelGraph.load(tmp_path, models={"head": Dense(1, bias=False)}, strict=False)
    assert told[0].filename == __file__
    assert np.array_equal(graph.state()["head/parameters/weight"], before.state()["head/parameters/weight"])


def test_nothing_that_fits_of_a_state_is_an_error_without_strict_too(table):
    graph = build(table())
    before = graph.state()
    with pytest.raises(
        StateError, match=r"^nothing of the state fits graph 'graph': the state has 'x/parameters/w', but"
    ):
        graph.load_state({"x/parameters/w": ONE}, strict=False)
    assert_same(graph.state(), before)
    with pytest.raises(StateError, match=r"load_state: strict=1 is not True or False"):
        graph.load_state({}, strict=1)


def test_an_optimizer_state_is_loaded_only_with_all_of_its_node(table):
    fs = table(y=((1,), "float32"))
    source, graph = one_node(fs), one_node(fs)
    run(source, 1)
    state = source.state()
    graph.load_state(state, strict=False)
    assert_same(graph.state(), state)
    state["head/parameters/bias"] = np.zeros(5, "float32")
    told = (
        r"head/parameters/bias is float32\[5\] .*; the optimizer state of node 'head' is left out, so it starts "
        r"from scratch\.$"
    )
    with pytest.warns(UserWarning, match=told):
        graph.load_state(state, strict=False)
    assert not graph.optimizer_states


@pytest.mark.parametrize("given", [None, [], "state.npz", 3])
def test_an_object_that_is_not_a_state_is_refused(given, table):
    with pytest.raises(
        StateError, match=r"the state of a graph must be a mapping, got .*\. Hint: pass the result of state"
    ):
        build(table()).load_state(given)


def test_the_state_of_a_smaller_model_is_refused(table):
    one = ModelGraph([ModelNode("a", Dense(3), table().reference())])
    other = ModelGraph([ModelNode("a", Dense(4), table().reference())])
    with pytest.raises(
        StateError, match=r"a/parameters/weight is float32\[3, 4\] in the state and float32\[4, 4\] in the graph"
    ):
        other.load_state(one.state())


def test_lists_are_taken_as_arrays_of_their_dtype_or_refused(table):
    graph = build(table())
    state = {name: array.tolist() for name, array in graph.state().items()}
    with pytest.raises(StateError, match=r"is float64"):
        graph.load_state(state)


def test_a_state_without_progress_starts_anew(table):
    graph = build(table())
    run(graph, 2)
    bare = {name: array for name, array in graph.state().items() if "optimizer" not in name and "progress" not in name}
    graph.load_state(bare)
    assert graph.progress == {} and graph.optimizer_states == {}
    assert_same(graph.state(), bare)


def test_a_failed_phase_leaves_a_state_that_loads(table):
    graph = build(table())
    run(graph, 1)
    with pytest.raises(AnyaccelError):
        run(graph, 1, accelerator="sim:3")
    assert_same(build(table(), seed=3).load_state(graph.state()).state(), graph.state())


# -- estimators --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fs(table):
    return table(y=((1,), "float32"))


def one_node(fs, optimizer="adam"):
    return ModelGraph([ModelNode("head", Dense(1), fs.reference())], optimizer, seed=1)


def test_a_model_that_replaces_another_starts_without_its_optimizer_state(fs):
    graph, fresh = one_node(fs), one_node(fs)
    run(graph, 2)
    for each in (graph, fresh):
        each["head"].model = Dense(1)
        each.progress.clear()
    assert "head" not in graph.optimizer_states and not graph.optimizer_states
    run(graph, 1)
    run(fresh, 1)
    assert_same(graph.state(), fresh.state())


def test_nodes_that_share_a_model_keep_its_optimizer_state_when_one_of_them_gets_another(fs):
    shared = Dense(1)
    graph = ModelGraph([ModelNode(label, shared, fs.reference()) for label in ("head", "twin")], "adam")
    run(graph, 1)
    state = graph.optimizer_states["twin"]
    graph["head"].model = Dense(1)
    assert graph.optimizer_states["twin"] is state and "head" not in graph.optimizer_states


def test_the_optimizer_state_follows_a_model_that_is_placed_anew(fs, sims):
    there, stays = one_node(fs), one_node(fs)
    for graph, where in ((there, "sim:0"), (stays, None)):
        run(graph, 1, accelerator=where)
        run(graph, 1)
    assert_same(there.state(), stays.state())


@pytest.mark.parametrize("slot", ["m", "v"])
def test_a_state_that_lacks_a_slot_of_a_parameter_is_refused(slot, fs):
    graph = one_node(fs)
    run(graph, 1)
    state = graph.state()
    del state[f"head/optimizer/{slot}/weight"]
    with pytest.raises(StateError, match=rf"^the state of node 'head' lacks optimizer/{slot}/weight\. Hint: load it"):
        one_node(fs).load_state(state)


def test_complex_optimizer_state_is_loaded(fs):
    graph = one_node(fs, "momentum")
    run(graph, 1)
    state = graph.state()
    name = "head/optimizer/velocity/weight"
    state[name] = state[name].astype(np.complex64)
    assert one_node(fs, "momentum").load_state(state).state()[name].dtype == np.complex64
