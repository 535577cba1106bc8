"""What a notebook shows of a graph, a drawing above the table, and of a plan."""

from __future__ import annotations

import re
from dataclasses import replace

from anyaccel import AppliedLoss, ConcatNode, Experiment, ModelGraph, ModelNode, SequentialMLP, TrainPhase
from anyaccel.graph.plan_entries import Section


def test_a_notebook_shows_the_drawing_of_a_graph(table, mlp):
    graph = ModelGraph([ModelNode("net", mlp(), table().reference())])
    html = graph._repr_html_()
    assert graph.visualize("svg") in html and "data-anyaccel-device" not in html
    graph.build()
    html = graph._repr_html_()
    assert (
        "float32[4] → float32[1]" in html and html.count('data-anyaccel-device="cpu:0"') == 3
    )  # the card, the row and the badge in it
    assert graph.visualize("svg") in html and html.index("<svg") < html.index("<table") and "not drawn" not in html


def rows_of(graph):
    """The page without its drawing: the text, and the devices that it is marked with."""
    html = re.sub(r"<svg.*?</svg>", "", graph._repr_html_(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", html).split()), re.findall(r'data-anyaccel-device="([^"]*)"', html)


def test_a_graph_shows_the_device_of_each_node_and_stays_as_it_is(table, mlp):
    graph = ModelGraph(
        [ModelNode("encoder", mlp(4), table().reference(), "gpu:3"), ModelNode("net", mlp(), "encoder")], "adam"
    )
    text, devices = rows_of(graph)
    assert devices == ["gpu:3"] * 2  # the row and the badge in it; the other node has none yet
    assert "not built yet" in text and "as set by the phase" in text
    assert not graph.is_built
    text, devices = rows_of(graph.build())
    assert devices == ["cpu:0"] * 4 and "asks for gpu:3" in text
    assert " 1 node " in rows_of(ModelGraph([ModelNode("a", mlp(), table().reference())]).build())[0]


def test_a_graph_too_large_to_be_drawn_is_a_table(table):
    data = table()
    nodes = [ModelNode(f"n{i}", object(), data.reference(), framework="numpy") for i in range(200)]
    text, _ = rows_of(ModelGraph(nodes))
    assert "and 180 more" in text and "n199" not in text and "<svg" not in ModelGraph(nodes)._repr_html_()


def test_a_graph_of_very_many_lines_is_a_table(table):
    """Forty blocks that each take all before them: to lay 800 lines out takes seconds."""
    nodes = [ModelNode("n0", SequentialMLP((4,)), table().reference())]
    for i in range(1, 40):
        nodes += [ConcatNode(f"c{i}", [f"n{k}" for k in range(i)] if i > 1 else ["n0", "n0"])]
        nodes += [ModelNode(f"n{i}", SequentialMLP((4,)), f"c{i}")]
    graph = ModelGraph(nodes, "adam")
    html = graph._repr_html_()
    assert "<svg" not in html and "too large to draw here" in html and "and 59 more" in rows_of(graph)[0]
    assert "too large" not in ModelGraph(nodes[:9], "adam")._repr_html_()


def test_a_broken_graph_shows_something(table, mlp):
    graph = ModelGraph([ModelNode("a", mlp(), table().reference()), ModelNode("net", mlp(), "a")])
    graph["net"].upstreams = ("gone",)
    assert "It cannot be shown: GraphError: node &#39;net&#39; takes its input from &#39;gone&#39;" in rows_of(graph)[0]


def test_a_model_that_was_changed_by_hand_is_shown_without_its_parameters(table, mlp):
    graph = ModelGraph([ModelNode("net", mlp(), table().reference())]).build()
    graph["net"].model = object()
    text, _ = rows_of(graph)
    assert "net object numpy" in text and "It cannot be shown" not in text


def test_a_graph_of_a_framework_without_a_plugin_is_shown(table):
    text, devices = rows_of(ModelGraph([ModelNode("a", object(), table().reference(), "gpu:0", framework="elsewhere")]))
    assert "elsewhere" in text and devices == ["gpu:0"] * 2
    assert "as set by the phase" in rows_of(ModelGraph([ModelNode("a", object(), table().reference())]))[0]


def test_a_concat_that_nobody_takes_goes_with_its_source(table, mlp):
    nodes = [ModelNode("a", mlp(), table().reference(), "gpu:1"), ConcatNode("c", ["a", "a"])]
    assert "no device yet" not in rows_of(ModelGraph(nodes))[0]


def test_a_plan_shows_where_and_why_what_is_loaded_and_what_crosses(sims, table, mlp):
    graph = ModelGraph(
        [ModelNode("encoder", mlp(4), table().reference()), ModelNode("net", mlp(), "encoder", "sim:1")], "adam"
    )
    phase = TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="net")])
    text, devices = rows_of(Experiment("e", graph).plan(phase))
    assert {"sim:1", "cpu:0"} == set(devices)
    for told in (
        "of train on graph",
        "native name",
        "its own accelerator is &#39;sim:1&#39;",
        "fs: x",
        "gradient of encoder",
        "move",
        "16 B",
    ):
        assert told in text


def test_a_plan_shows_the_sections_of_a_node(table, mlp):
    class Halves:
        device_bytes = {"cpu:0": 4}

        def section(self, node):
            rows, notes = (("first", "here"), ("second", "elsewhere")), ("a guess",)
            title, head = f"halves of {node}", ("half", "where")
            return Section(title=title, summary="two <halves>", head=head, rows=rows, notes=notes, lines=())

    graph = ModelGraph([ModelNode("net", mlp(), table().reference())], "adam")
    plan = TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="net")]).plan(graph)
    (assignment,) = plan.assignments
    page = replace(plan, assignments=(replace(assignment, offload=Halves()),))._repr_html_()
    assert "halves of net" in page and "two &lt;halves&gt;" in page and "elsewhere" in page and "a guess" in page
