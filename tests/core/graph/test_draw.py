"""Drawing: a table for a terminal, and Mermaid text in which no label can be more than a label."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import ConcatNode, FeatureSet, ModelGraph, ModelNode
from anyaccel.graph.draw import mermaid


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


def test_a_summary_has_a_line_for_each_node(graph):
    assert graph.summary().splitlines() == [
        "graph 'g'",
        "node  model             framework  device             takes                   gives       parameters",
        "a     SequentialMLP     numpy      gpu:1              float32[4]              float32[3]  15 (frozen)",
        "c     concat (axis -1)  numpy      with its consumer  float32[3], float32[4]  float32[7]  0",
        "d     SequentialMLP     numpy      as the phase says  float32[7]              float32[2]  16",
        "31 parameters",
    ]
    assert graph.is_built


def test_a_drawing_needs_no_shapes_and_has_them_once_they_are_known(graph):
    assert graph.visualize().splitlines() == [
        "flowchart LR",
        '  n0["a<br/>gpu:1"]',
        '  n1["c"]',
        '  n2["d"]',
        '  d0[("fs.x")]',
        "  d0 --> n0",
        "  n0 --> n1",
        "  d0 --> n1",
        "  n1 --> n2",
    ]
    assert not graph.is_built
    lines = graph.build().visualize().splitlines()
    assert '  n0 --"float32#91;3#93;"--> n1' in lines


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
    ],
)
def test_a_label_is_never_more_than_a_label(label, table, mlp):
    """Wherever the text is put, in a page or a Mermaid file, the label is shown and nothing in it acts."""
    fs = FeatureSet.from_dict("s<et>", {'c"ol': table().array("x")}, 'c"ol')
    graph = ModelGraph([ModelNode(label, mlp(), fs.reference()), ModelNode("b", mlp(), label)]).build()
    text = graph.visualize()
    lines = text.splitlines()
    assert len(lines) == 1 + 2 + 1 + 2
    (inside,) = re.fullmatch(r'  n0\["([^"<>&`\[\]{}\']*)"\]', lines[1]).groups()
    assert shown(inside) == label
    assert html.unescape(text) == text, "a page would read something else"
    assert "%%{" not in text and "<script" not in text
    assert lines[3] == '  d0[("s#60;et#62;.c#34;ol")]'


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12))
def test_any_label_comes_back_from_its_drawing(label):
    if not label.strip() or label != label.strip() or set(label) & set("./"):
        return
    nodes = {label: ModelNode(label, object(), "x")}
    nodes[label].upstreams = ()
    (line,) = mermaid(nodes, None).split("\n")[1:]
    assert shown(line.removeprefix('  n0["').removesuffix('"]')) == label
