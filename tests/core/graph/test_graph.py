"""ModelGraph and its topology: checks, changes, freezing."""

from __future__ import annotations

import difflib
import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import ConcatNode, ModelGraph, ModelNode, Optimizer
from anyaccel.errors import GraphError
from anyaccel.graph import topology


@pytest.fixture
def chain(table, mlp):
    """a -> b -> c, all from one feature set."""
    fs = table()
    nodes = [ModelNode("a", mlp(3), fs.reference()), ModelNode("b", mlp(2), "a"), ModelNode("c", mlp(), "b")]
    return ModelGraph(nodes, "sgd")


# -- what a graph refuses ----------------------------------------------------------------------------------------------


def test_an_unknown_upstream_suggests_the_closest_label(table, mlp):
    with pytest.raises(GraphError) as caught:
        ModelGraph([ModelNode("encoder", mlp(), table().reference()), ModelNode("head", mlp(), "encodr")])
    assert str(caught.value) == (
        "node 'head' takes its input from 'encodr', which is not a node. Available: encoder, head. "
        "Hint: did you mean 'encoder'?"
    )


def test_an_unknown_upstream_like_no_other_gets_the_list(table, mlp):
    with pytest.raises(GraphError, match=r"which is not a node. Available: a, b. Hint: use one of these labels"):
        ModelGraph([ModelNode("a", mlp(), table().reference()), ModelNode("b", mlp(), "zzz.0")])


def test_a_cycle_is_an_error_that_shows_it(table, mlp):
    nodes = [
        ModelNode("in", mlp(), table().reference()),
        ModelNode("a", mlp(), ["in", "c"]),
        ModelNode("b", mlp(), "a"),
        ModelNode("c", mlp(), "b"),
    ]
    with pytest.raises(GraphError) as caught:
        ModelGraph(nodes)
    assert "the graph has a cycle: a -> c -> b -> a" in str(caught.value)
    assert "remove one of these connections" in str(caught.value)


def test_a_node_that_feeds_itself_is_a_cycle(mlp):
    with pytest.raises(GraphError, match=r"the graph has a cycle: a -> a"):
        ModelGraph([ModelNode("a", mlp(), "a")])


def test_two_nodes_of_one_label_are_refused(table, mlp):
    fs = table()
    with pytest.raises(GraphError, match=r"two nodes are called 'a'. Available: a. Hint: give each a unique label"):
        ModelGraph([ModelNode("a", mlp(), fs.reference()), ModelNode("a", mlp(), fs.reference())])


def test_a_node_may_not_be_called_like_a_feature_set(table, mlp):
    with pytest.raises(GraphError, match=r"'fs' names a node and a feature set. Hint: rename one of them"):
        ModelGraph([ModelNode("fs", mlp(), table("fs").reference())])


def test_two_feature_sets_of_one_label_are_refused(table, mlp):
    with pytest.raises(GraphError, match=r"two feature sets are called 'fs'. Hint: give each a unique label"):
        ModelGraph([ModelNode("a", mlp(), table().reference()), ModelNode("b", mlp(), table().reference())])


def test_an_empty_graph_is_refused():
    with pytest.raises(GraphError, match=r"graph 'g' has no node. Hint: pass ModelNode\(\.\.\.\) objects"):
        ModelGraph([], label="g")


@pytest.mark.parametrize("nodes", ["model", "feature set", "text"])
def test_an_object_that_is_not_a_node_is_refused(nodes, table, mlp):
    given = {"model": mlp(), "feature set": table(), "text": "a"}[nodes]
    with pytest.raises(GraphError, match=r"nodes must be ModelNode or ConcatNode, got .*: ModelNode\('LABEL'"):
        ModelGraph([given])


def test_a_single_node_instead_of_a_list_is_refused(table, mlp):
    with pytest.raises(GraphError, match=r"nodes must be a list, got ModelNode"):
        ModelGraph(ModelNode("a", mlp(), table().reference()))


def test_a_label_that_the_state_needs_is_reserved(table, mlp):
    with pytest.raises(GraphError, match=r"the label 'progress' is reserved.*choose another label"):
        ModelGraph([ModelNode("progress", mlp(), table().reference())])


@pytest.mark.parametrize("label", ["", "a.b", None])
def test_a_graph_has_a_label_like_a_node(label, table, mlp):
    with pytest.raises(GraphError, match=r"is not a valid label of a graph"):
        ModelGraph([ModelNode("a", mlp(), table().reference())], label=label)


@pytest.mark.parametrize("seed", [1.5, "0", None, 2**63, -(2**63) - 1])
def test_a_seed_is_an_int_of_64_bits(seed, table, mlp):
    with pytest.raises(GraphError, match=r"is not an int of 64 bits"):
        ModelGraph([ModelNode("a", mlp(), table().reference())], seed=seed)


def test_an_object_that_is_not_an_optimizer_is_refused(table, mlp):
    with pytest.raises(GraphError, match=r"the optimizer of graph 'g' is an object of float"):
        ModelGraph([ModelNode("a", mlp(), table().reference())], 0.1, "g")


# -- looking -----------------------------------------------------------------------------------------------------------


def test_nodes_are_found_by_label_in_the_order_given(chain):
    assert list(chain.nodes) == ["a", "b", "c"]
    assert chain["b"] is chain.nodes["b"]
    assert (chain.input_nodes, chain.output_nodes, chain.frozen) == (("a",), ("c",), ())
    assert repr(chain) == "ModelGraph(a, b, c; 'graph')"


def test_an_unknown_label_suggests_the_closest_one(table, mlp):
    graph = ModelGraph([ModelNode("encoder", mlp(), table().reference())], label="g")
    with pytest.raises(
        GraphError, match=r"graph 'g' has no node 'encodre'. Available: encoder. Hint: did you mean 'encoder'\?"
    ):
        graph["encodre"]


def test_the_order_of_nodes_does_not_matter(table, mlp):
    fs = table()
    nodes = [ModelNode("c", mlp(), ["a", "b"]), ModelNode("b", mlp(), "a"), ModelNode("a", mlp(3), fs.reference())]
    graph = ModelGraph(nodes).build()
    assert graph.shapes.order == ("a", "b", "c")
    assert list(graph.nodes) == ["c", "b", "a"]


# -- changing ----------------------------------------------------------------------------------------------------------


def test_every_change_returns_the_graph(chain, mlp):
    assert chain.build() is chain and chain.is_built
    assert chain.add_node(ModelNode("d", mlp(), "c")) is chain
    assert chain.replace_node("d", ModelNode("e", mlp(), "c")) is chain
    assert chain.remove_node("e") is chain
    assert chain.freeze() is chain and chain.unfreeze() is chain


def test_a_change_makes_the_shapes_unknown_again(chain, mlp):
    chain.build().add_node(ModelNode("d", mlp(7), "c"))
    assert not chain.is_built
    assert chain.shapes.specs["d"].shape == (7,)


def test_a_node_that_cannot_be_added_leaves_the_graph_as_it_was(chain, mlp):
    chain.build()
    for bad in (ModelNode("d", mlp(), "zzz"), ModelNode("a", mlp(), "b"), ModelNode("fs", mlp(), "c"), mlp()):
        with pytest.raises(GraphError):
            chain.add_node(bad)
    assert list(chain.nodes) == ["a", "b", "c"] and chain.is_built


def test_replacing_rewires_what_the_old_one_fed_outputs_too(table, mlp, parts):
    fs = table()
    graph = ModelGraph(
        [
            ModelNode("a", parts(2, 2), fs.reference()),
            ModelNode("b", mlp(), "a.1"),
            ConcatNode("c", ["a.0", "b", fs.reference()]),
        ]
    )
    graph.replace_node("a", ModelNode("new", parts(1, 3), fs.reference()))
    assert list(graph.nodes) == ["new", "b", "c"]
    assert graph["b"].upstreams == ("new.1",)
    assert graph["c"].upstreams == ("new.0", "b", fs.reference())
    assert graph.shapes.specs["c"].shape == (1 + 1 + 4,)


def test_replacing_by_a_node_of_the_same_label_keeps_the_wires(chain, mlp):
    model = mlp(2)
    assert chain.replace_node("b", ModelNode("b", model, "a"))["b"].model is model
    assert chain["c"].upstreams == ("b",)


@pytest.mark.parametrize(
    "bad", ["unknown upstream", "label taken", "cycle", "old label", "no node", "feature set label"]
)
def test_a_replacement_that_fails_changes_nothing(bad, chain, table, mlp):
    node = {
        "unknown upstream": lambda: ModelNode("new", mlp(), "zzz"),
        "label taken": lambda: ModelNode("c", mlp(), "a"),
        "cycle": lambda: ModelNode("new", mlp(), "c"),
        "old label": lambda: ModelNode("new", mlp(), "b"),
        "no node": table,
        "feature set label": lambda: ModelNode("fs", mlp(), "a"),
    }[bad]()
    chain.build()
    before, states = dict(chain.nodes), chain.optimizer_states
    states["b"] = "state"
    with pytest.raises(GraphError):
        chain.replace_node("b", node)
    assert dict(chain.nodes) == before and chain.is_built
    assert [one.upstreams for one in chain.nodes.values()][1:] == [("a",), ("b",)]
    assert states == {"b": "state"}


def test_replacing_an_unknown_node_suggests_the_closest_label(chain, mlp):
    with pytest.raises(GraphError, match=r"graph 'graph' has no node 'bb'"):
        chain.replace_node("bb", ModelNode("d", mlp(), "a"))


def test_a_node_that_feeds_others_is_not_removed(chain):
    with pytest.raises(
        GraphError, match=r"node 'a' feeds 'b'. Hint: remove or rewire these first, or use replace_node"
    ):
        chain.remove_node("a")
    assert list(chain.nodes) == ["a", "b", "c"]


def test_the_last_node_is_not_removed(table, mlp):
    graph = ModelGraph([ModelNode("a", mlp(), table().reference())])
    with pytest.raises(GraphError, match=r"has no node"):
        graph.remove_node("a")
    assert list(graph.nodes) == ["a"]


def test_removing_and_replacing_forget_the_optimizer_state_of_that_node_alone(chain, mlp):
    chain.optimizer_states.update(a="a", b="b", c="c")
    chain.remove_node("c").replace_node("a", ModelNode("a2", mlp(3), chain["a"].upstreams[0]))
    assert chain.optimizer_states == {"b": "b"}


def test_freezing_names_nodes_or_takes_all(chain):
    assert chain.freeze("a", "c").frozen == ("a", "c")
    assert chain.unfreeze("a").frozen == ("c",)
    assert chain.freeze().frozen == ("a", "b", "c")
    assert chain.unfreeze().frozen == ()


def test_freezing_takes_lists_too(chain):
    labels = list(chain.nodes)
    assert chain.freeze(labels[:1]).frozen == tuple(labels[:1])
    assert chain.freeze(tuple(labels[1:]), labels[0]).frozen == tuple(labels)
    assert chain.unfreeze(labels).frozen == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [],
            r"^\[\] is not the label of a node\. Available: .* Hint: pass labels, freeze\('NODE', 'NODE'\), or nothing",
        ),
        (3, r"^3 is not the label of a node\. Available: "),
        (None, r"^None is not the label of a node"),
        ([["a"]], r"is not the label of a node"),
    ],
)
def test_an_object_that_is_not_a_label_freezes_nothing(given, message, chain):
    with pytest.raises(GraphError, match=message):
        chain.freeze(given)
    assert chain.frozen == ()


def test_freezing_an_unknown_node_freezes_none(chain):
    with pytest.raises(GraphError, match=r"has no node 'z'"):
        chain.freeze("a", "z")
    assert chain.frozen == ()


def test_freezing_a_concat_node_has_no_effect(table, mlp):
    fs = table()
    graph = ModelGraph([ModelNode("a", mlp(), fs.reference()), ConcatNode("c", ["a", fs.reference()])])
    assert graph.freeze().frozen == ("a",)


def test_an_optimizer_is_made_of_a_name_or_a_class(table, mlp):
    node = ModelNode("a", mlp(), table().reference())
    assert ModelGraph([node], "adamw").optimizer == Optimizer("adamw")
    assert ModelGraph([node], dict).optimizer.own is dict


# -- any graph ---------------------------------------------------------------------------------------------------------


@st.composite
def wires(draw):
    """Parents by label of an acyclic graph, in any order."""
    labels = [f"n{i}" for i in range(draw(st.integers(1, 8)))]
    parents = {
        label: draw(st.lists(st.sampled_from(labels[:i]), max_size=3)) if i else [] for i, label in enumerate(labels)
    }
    return {label: parents[label] for label in draw(st.permutations(labels))}


def nodes_of(parents):
    nodes = {label: ModelNode(label, object(), "x") for label in parents}
    for label, ups in parents.items():
        nodes[label].upstreams = tuple(ups)
    return nodes


@given(wires())
def test_every_order_is_topological_and_complete(parents):
    nodes = nodes_of(parents)
    order = topology.topological(nodes)
    assert sorted(order) == sorted(nodes)
    assert all(order.index(up) < order.index(label) for label, ups in parents.items() for up in ups)


@given(wires(), st.data())
def test_a_back_edge_is_a_cycle(parents, data):
    nodes = nodes_of(parents)
    start = data.draw(st.sampled_from(sorted(nodes)))
    end = data.draw(st.sampled_from(sorted(topology.ancestors([start], nodes))))
    nodes[end].upstreams = (*nodes[end].upstreams, start)
    with pytest.raises(GraphError) as caught:
        topology.topological(nodes)
    walk = caught.value.problem.removeprefix("the graph has a cycle: ").split(" -> ")
    assert walk[0] == walk[-1] and len(set(walk)) == len(walk) - 1
    assert all(after in nodes[label].upstreams for label, after in itertools.pairwise(walk))


@given(st.text(alphabet="abc", min_size=1, max_size=4), st.lists(st.text(alphabet="abc", min_size=1), max_size=5))
def test_the_closest_label_is_the_one_that_difflib_finds(label, labels):
    error = topology.unknown_node("asked", label, labels)
    close = difflib.get_close_matches(label, labels, n=1)
    assert (repr(close[0]) in error.hint) if close else error.hint == "use one of these labels"


def test_a_graph_may_be_deep(table):
    nodes = [ModelNode("n0", object(), table().reference())]
    nodes += [ModelNode(f"n{i}", object(), f"n{i - 1}") for i in range(1, 3000)]
    graph = ModelGraph(nodes[::-1])
    assert topology.topological(graph.nodes) == [f"n{i}" for i in range(3000)]
    assert graph.output_nodes == ("n2999",)


def test_an_unreferenced_graph_is_freed_at_once_with_its_models(table, mlp):
    """No circle of references: the memory of a device must not wait for the garbage collector."""
    fs = table()
    graph = ModelGraph([ModelNode("a", mlp(3), fs.reference()), ModelNode("b", mlp(), "a")], "sgd").build()
    models = [weakref.ref(node.model) for node in graph.nodes.values()]
    gc.collect()
    gc.disable()
    try:
        graph.replace_node("b", ModelNode("b", mlp(2), "a"))
        assert [model() is None for model in models] == [False, True]
        del graph
        assert models[0]() is None
    finally:
        gc.enable()


def test_a_label_that_is_not_text_is_an_unknown_label(table, mlp):
    with pytest.raises(GraphError, match=r"graph 'graph' has no node 3. Available: a. Hint: use one of these labels"):
        ModelGraph([ModelNode("a", mlp(), table().reference())])[3]


@pytest.mark.parametrize("label", ["targets", "outputs"])
def test_a_node_is_not_called_what_means_something_else_in_the_inputs_of_a_loss(label, table, mlp):
    with pytest.raises(GraphError, match=rf"^the label '{label}' is reserved: in the inputs of a loss .* Hint: choose"):
        ModelGraph([ModelNode(label, mlp(), table().reference())])


def test_a_feature_set_is_not_called_outputs(table, mlp):
    with pytest.raises(GraphError, match=r"^'outputs' is the label of a feature set, .* Hint: give the feature set"):
        ModelGraph([ModelNode("a", mlp(), table("outputs").reference())])
