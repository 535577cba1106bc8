"""Drawing: Mermaid text in which no label can be more than a label."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import ConcatNode, EvalPhase, Experiment, FeatureSet, ModelGraph, ModelNode
from anyaccel.errors import GraphError
from anyaccel.html import colours, text
from anyaccel_devtools.drawing.diagram import Arrow, Box, Diagram
from anyaccel_devtools.drawing.mermaid import mermaid


@pytest.fixture
def graph(table, mlp):
    fs = table()
    nodes = [
        ModelNode("a", mlp(3), fs.reference(), "cuda:1"),
        ConcatNode("c", ["a", fs.reference()]),
        ModelNode("d", mlp(2), "c"),
    ]
    return ModelGraph(nodes, label="g").freeze("a")


def shown(label: str) -> str:
    """What Mermaid makes of a quoted label: its codes are put back."""
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label)


def test_an_unbuilt_graph_is_drawn_unbuilt_with_the_devices_that_nodes_ask_for(graph):
    assert graph.visualize().splitlines() == [
        "flowchart LR",
        '  d0[("fs<br/>x float32#91;4#93;")]',
        '  n0["a<br/>SequentialMLP · numpy<br/>gpu:1<br/>frozen"]',
        '  n1["c<br/>concat along axis -1 · numpy<br/>as set by the phase"]',
        '  n2["d<br/>SequentialMLP · numpy<br/>as set by the phase"]',
        "  d0 --> n0",
        "  n0 --> n1",
        "  d0 --> n1",
        "  n1 --> n2",
        '  subgraph legend["devices"]',
        '    k0["gpu:1"]',
        "  end",
        f"  classDef on_gpu_1 fill:{colours('gpu:1').fill},color:#FFFFFF,stroke:#8B95A3",
        "  class k0,n0 on_gpu_1",
        "  classDef nowhere fill:#D5DAE1,color:#29323F,stroke:#8B95A3",
        "  class n1,n2 nowhere",
        "  classDef frozen stroke-dasharray:5 3,stroke-width:2px",
        "  class n0 frozen",
    ]
    assert not graph.is_built


def test_a_built_graph_shows_its_shapes_and_where_its_models_are_now(graph):
    lines = graph.build().visualize("mermaid").splitlines()
    flow = "float32#91;4#93; → float32#91;3#93;"
    assert f'  n0["a<br/>SequentialMLP · numpy<br/>{flow}<br/>cpu:0<br/>asks for gpu:1<br/>frozen"]' in lines
    assert "  class k0,n0,n1,n2 on_cpu_0" in lines


def test_a_plan_says_where_nodes_are_and_how_values_cross(sims, table, mlp):
    fs = table()
    graph = ModelGraph([ModelNode("a", mlp(3), fs.reference(), "sim:1"), ModelNode("b", mlp(), "a")])
    plan = Experiment("e", graph, progress="none").plan(EvalPhase("eval", data="all"))
    lines = graph.visualize(plan=plan).splitlines()
    assert '  n0 -.->|"move"| n1' in lines
    assert "  class k1,n0 on_sim_1" in lines
    assert "  n0 -.-> n1" not in lines and "  d0 --> n0" in lines


def test_nodes_that_take_no_part_in_a_plan_are_shown_as_such(table, mlp):
    fs = table()
    graph = ModelGraph([ModelNode("a", mlp(3), fs.reference()), ModelNode("b", mlp(), "a")])
    plan = Experiment("e", graph, progress="none").plan(EvalPhase("eval", data="all", outputs="a"))
    assert "not in this plan" in graph.visualize(plan=plan)


def test_several_outputs_are_named_at_their_arrows(table, mlp, parts):
    fs = table()
    nodes = [
        ModelNode("cut", parts(2, 2), fs.reference(), outputs=["left", "right"]),
        ModelNode("one", mlp(), "cut.left"),
        ConcatNode("both", ["cut.left", "cut.right"]),
    ]
    lines = ModelGraph(nodes).build().visualize().splitlines()
    assert '  n0 -->|"left"| n1' in lines and '  n0 -->|"left, right"| n2' in lines


def test_a_shared_model_and_many_columns_are_told(table, mlp):
    columns = {f"c{i}": table().array("x") for i in range(9)}
    fs, model = FeatureSet.from_dict("fs", columns, list(columns)), mlp()
    ups = [fs.reference(["c0", "c1"]), fs.reference(["c2", "c3"])]
    graph = ModelGraph(
        [ModelNode("a", model, ups[0]), ModelNode("b", model, ups[1]), ModelNode("c", mlp(), fs.reference())]
    )
    text = graph.visualize()
    assert "shares its model with b" in text and "shares its model with a" in text
    assert "c3 float32#91;4#93;<br/>and 5 more" in text


def test_other_formats_are_refused(graph):
    with pytest.raises(GraphError) as caught:
        graph.visualize("png")
    assert str(caught.value) == (
        "graph 'g' cannot be drawn as 'png'. Available: mermaid, svg. Hint: graph.visualize('svg')."
    )


def test_the_plan_of_another_graph_is_refused(graph, table, mlp):
    other = ModelGraph([ModelNode("x", mlp(), table().reference())], label="other")
    plan = Experiment("e", other, progress="none").plan(EvalPhase("eval", data="all"))
    with pytest.raises(GraphError) as caught:
        graph.visualize(plan=plan)
    assert str(caught.value) == (
        "the plan of 'eval' belongs to the graph 'other', not to 'g'. Available: a, c, d. "
        "Hint: make a new plan with experiment.plan(phase)."
    )
    with pytest.raises(GraphError, match="plan must be a Plan, got str"):
        graph.visualize(plan="train")


@pytest.mark.parametrize(
    "label",
    [
        "<script>alert(1)<|script>",
        '"] click n0 call alert() ["',
        'a]"; n9[x',
        "`markdown`",
        "#quot;",
        "&lt;b&gt;",
        "%%{init: {'securityLevel': 'loose'}}%%",
        "[0] {1} 'x'",
        "שלום 🎉",
    ],
)
def test_a_label_is_never_more_than_a_label(label, table, mlp):
    """Wherever the text is put, in a page or a Mermaid file, the label is shown and nothing in it acts."""
    fs = FeatureSet.from_dict("s<et>\nclick", {'c"ol\n%%{': table().array("x")}, 'c"ol\n%%{')
    graph = ModelGraph([ModelNode(label, mlp(), fs.reference()), ModelNode("b", mlp(), label)]).build()
    text = graph.visualize()
    lines = text.splitlines()
    assert len(lines) == 1 + 1 + 2 + 2 + 3 + 2
    (inside,) = re.fullmatch(r'  n0\["([^"<>&`\[\]{}\']*)<br/>SequentialMLP .*"\]', lines[2]).groups()
    assert shown(inside) == label
    assert html.unescape(text) == text, "a page would read something else"
    assert "%%{" not in text and "<script" not in text
    assert lines[1] == '  d0[("s#60;et#62; click<br/>c#34;ol %%#123; float32#91;4#93;")]'


@given(st.text(st.characters(), min_size=1, max_size=12))
def test_any_label_comes_back_from_its_drawing(label):
    """What cannot be shown was replaced before."""
    boxes = (Box("n0", "concat", text(label)), Box("n1", "concat", "x"))
    _, first, _, arrow, *_ = mermaid(Diagram("g", boxes, (Arrow("n0", "n1", text(label)),))).split("\n")
    inside = first.removeprefix('  n0["').removesuffix('"]')
    assert shown(inside) == text(label)
    assert not set(inside) & set("\"<>'`[]{}\n")
    assert shown(arrow) in (f'  n0 -->|"{text(label)}"| n1', "  n0 --> n1")


def test_a_plan_of_many_crossings_asks_for_each_node_once(sims, table, mlp, monkeypatch):
    """It took a search through the plan for every pair of a crossing and a node."""
    nodes = [ModelNode("n0", mlp(3), table().reference(), "sim:0")]
    nodes += [ModelNode(f"n{i}", mlp(3), f"n{i - 1}", f"sim:{i % 2}") for i in range(1, 30)]
    graph = ModelGraph(nodes, label="long")
    plan = Experiment("e", graph, progress="none").plan(EvalPhase("eval", data="all"))
    asked, find = [], type(plan).__getitem__
    monkeypatch.setattr(type(plan), "__getitem__", lambda self, node: (asked.append(node), find(self, node))[1])
    assert graph.visualize(plan=plan).count("-.->") == 29
    assert len(asked) <= 60
