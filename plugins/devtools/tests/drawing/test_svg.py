"""SVG: a document of its own, in which boxes do not overlap, lines pass between them, and labels are text."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel import ConcatNode, EvalPhase, Experiment, FeatureSet, ModelGraph, ModelNode
from anyaccel.html import colours, text
from anyaccel_devtools.drawing.diagram import Arrow, Box, Diagram
from anyaccel_devtools.drawing.layered_layout import Layout, arrange
from anyaccel_devtools.drawing.svg import OrientedLayout, fitted, svg, text_width

NS = "{http://www.w3.org/2000/svg}"
OURS = {"svg", "title", "g", "rect", "path", "text"}


def parsed(drawn: str) -> ElementTree.Element:
    root = ElementTree.fromstring(drawn)
    names = {one.tag.removeprefix(NS) for one in root.iter()}
    assert names <= OURS, "an element that is not ours"
    attributes = {name for one in root.iter() for name in one.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name or name in ("id", "style")}
    return root


def cards(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {one.attrib["data-anyaccel-node"]: one for one in root.iter(f"{NS}g") if "data-anyaccel-node" in one.attrib}


def words(element: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()) for one in element.iter(f"{NS}text")]


@pytest.fixture
def mixed(sims, table, mlp):
    fs = table()
    nodes = [
        ModelNode("left", mlp(3), fs.reference(), "sim:0"),
        ModelNode("right", mlp(3), fs.reference(), "sim:1"),
        ConcatNode("both", ["left", "right"]),
        ModelNode("head", mlp(), "both", "sim:0"),
    ]
    return ModelGraph(nodes, label="mixed").freeze("right")


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_drawing_names_each_node_its_model_its_device_and_its_shapes(mixed):
    plan = Experiment("e", mixed, progress="none").plan(EvalPhase("eval", data="all"))
    root = parsed(mixed.visualize("svg", plan=plan))
    found = cards(root)
    assert {name: one.attrib.get("data-anyaccel-device") for name, one in found.items()} == {
        "fs": None,
        "left": "sim:0",
        "right": "sim:1",
        "both": "sim:0",
        "head": "sim:0",
    }
    assert words(found["left"]) == ["left", "sim:0", "SequentialMLP · numpy", "float32[4] → float32[3]"]
    assert words(found["both"])[2:] == [
        "concat along axis -1 · numpy",
        "2 \N{MULTIPLICATION SIGN} float32[3] → float32[6]",
    ]
    assert words(found["right"])[-1] == "frozen"
    assert words(found["fs"]) == ["fs", "data", "x float32[4]"]
    fills = {one.attrib.get("fill") for one in found["right"].iter(f"{NS}path")}
    assert colours("sim:1").fill in fills
    legend = [one for one in root.iter(f"{NS}g") if "data-anyaccel-legend" in one.attrib]
    assert [words(one) for one in legend] == [["sim:0"], ["sim:1"]]
    assert {"move", "to another device or framework", "frozen"} <= set(words(root))


def test_a_drawing_is_told_to_those_who_do_not_see_it(mixed):
    root = parsed(mixed.visualize("svg"))
    title = root.find(f"{NS}title").text
    assert root.attrib["role"] == "img" and root.attrib["aria-label"] == title
    assert title == "Graph mixed. left: sim:0; right: sim:1; both: sim:0; head: sim:0"


def test_an_unbuilt_graph_is_drawn_and_stays_unbuilt(mixed):
    parsed(mixed.visualize("svg"))
    assert not mixed.is_built
    assert all(getattr(node, "model", None) is None or not node.model.parameters for node in mixed.nodes.values())


def test_a_drawing_is_the_same_every_time(mixed):
    assert mixed.visualize("svg") == mixed.visualize("svg")
    assert mixed.visualize("svg")._repr_html_() == mixed.visualize("svg")


def test_a_stream_is_named(table):
    node = ModelNode("a", object(), table().reference(stream="pair"), framework="numpy")
    assert "stream pair" in words(cards(parsed(ModelGraph([node]).visualize("svg")))["fs"])


# -- labels ------------------------------------------------------------------------------------------------------------

EVIL = [
    "<script>alert(1)<|script>",
    '"><img src=x onerror=alert(1)>',
    "]]><!--",
    "&amp;&#x3c;",
    "שלום \u202e🎉",
    "x" * 500,
]


@pytest.mark.parametrize("label", EVIL)
def test_labels_and_columns_are_text(label, table, mlp):
    fs = FeatureSet.from_dict(label, {label: table().array("x")}, label)
    graph = ModelGraph([ModelNode(label + "!", mlp(), fs.reference())], label=label)
    found = cards(parsed(graph.visualize("svg")))
    assert set(found) == {text(label), text(label + "!")}


@settings(deadline=None)
@given(st.lists(st.text(st.characters(), max_size=40), min_size=1, max_size=4))
def test_any_text_anywhere_gives_a_drawing_of_nothing_but_ours(labels):
    boxes = tuple(
        Box(f"n{i}", "model", text(one), text(one), "", text(one), lines=(text(one), one))
        for i, one in enumerate(labels)
    )
    arrows = tuple(Arrow("n0", f"n{i}", text(one), crosses=True) for i, one in enumerate(labels) if i)
    root = parsed(svg(Diagram(labels[0], boxes, arrows)))
    assert len([one for one in root.iter(f"{NS}g") if "data-anyaccel-node" in one.attrib]) == len(labels)


# -- text in its place -------------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.floats(20, 300))
def test_text_is_cut_to_the_room_there_is(label, room):
    shown = fitted(label, 12, room)
    assert text_width(shown, 12) <= room
    assert shown == label or shown.endswith("…")


def test_wide_characters_take_more_room():
    assert text_width("WWWW", 10) > text_width("nnnn", 10) > text_width("iiii", 10)
    assert text_width("日本", 10) >= 20 and text_width("🎉", 10) > 10
    assert text_width("e\u0301", 10) == text_width("e", 10)
    assert text_width("ab", 10, bold=True) > text_width("ab", 10)


def test_a_long_label_fits_its_box_and_is_whole_in_the_title():
    long = "an encoder with a label that is much too long for any box"
    card = cards(parsed(svg(Diagram("g", (Box("n0", "model", long, where="cpu:0", device="cpu:0"),), ()))))[long]
    assert words(card)[0].endswith("…") and words(card)[1] == "cpu:0"
    assert card.find(f"{NS}title").text == f"{long}: cpu:0"
    width = max(float(one.attrib["width"]) for one in card.iter(f"{NS}rect"))
    assert text_width(words(card)[0], 13, bold=True) + text_width("cpu:0", 11.5) < width


# -- layout ------------------------------------------------------------------------------------------------------------


def random_graph(seed: int, n: int) -> tuple[dict, list]:
    draw = np.random.default_rng(seed)
    sizes = {i: (float(draw.integers(20, 200)), float(draw.integers(20, 100))) for i in range(n)}
    edges = {(int(draw.integers(0, j)), j) for j in range(1, n) for _ in range(draw.integers(0, 4))}
    return sizes, sorted(edges)


def boxes_of(layout: Layout, sizes: dict) -> dict:
    return {
        name: (a - sizes[name][0] / 2, a + sizes[name][0] / 2, c - sizes[name][1] / 2, c + sizes[name][1] / 2)
        for name, (a, c) in layout.centres.items()
    }


def check(sizes: dict, edges: list) -> Layout:
    """Nothing overlaps, nothing is outside, arrows go forward, and no line passes a box."""
    layout = arrange(sizes, edges)
    boxes = boxes_of(layout, sizes)
    for (a, b, c, d), (e, f, g, h) in itertools.combinations(boxes.values(), 2):
        assert b <= e + 1e-6 or f <= a + 1e-6 or d <= g + 1e-6 or h <= c + 1e-6
    assert all(min(box) >= -1e-6 for box in boxes.values())
    assert all(box[1] <= layout.size[0] + 1e-6 and box[3] <= layout.size[1] + 1e-6 for box in boxes.values())
    for source, target in edges:
        assert layout.bands[source][1] < layout.bands[target][0]
        for stop in layout.stops[source, target]:
            for a, b, c, d in boxes.values():
                assert stop.end <= a + 1e-6 or b <= stop.start + 1e-6 or stop.across <= c or d <= stop.across
    return layout


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 10**6), st.integers(1, 25))
def test_boxes_do_not_overlap_and_lines_pass_between_them(seed, n):
    check(*random_graph(seed, n))


def test_twenty_layers_and_thirty_nodes_in_one():
    chain = [(i, i + 1) for i in range(20)]
    layout = check(dict.fromkeys(range(21), (150.0, 60.0)), [*chain, (0, 20), (3, 17)])
    assert len(layout.stops[0, 20]) == 19
    straight = {round(layout.centres[i][1], 3) for i in range(4, 17)}
    assert len(straight) == 1, "a chain is drawn straight"
    wide = [(0, i) for i in range(1, 31)] + [(i, 31) for i in range(1, 31)]
    layout = check(dict.fromkeys(range(32), (150.0, 60.0)), wide)
    assert layout.centres[0][1] == pytest.approx(layout.centres[31][1], abs=1)


def test_lines_do_not_cross_where_they_need_not():
    """Two chains whose nodes were given in turns."""
    edges = [("a1", "b2"), ("a2", "b1"), ("b1", "c1"), ("b2", "c2")]
    sizes = dict.fromkeys(["a1", "a2", "b1", "b2", "c1", "c2"], (10.0, 10.0))
    at = {name: across for name, (_, across) in check(sizes, edges).centres.items()}
    assert (at["a1"] < at["a2"]) == (at["b2"] < at["b1"]) == (at["c2"] < at["c1"])


def test_data_stand_next_to_the_first_node_that_takes_them():
    layout = check(dict.fromkeys("abcdx", (10.0, 10.0)), [("a", "b"), ("b", "c"), ("c", "d"), ("x", "d")])
    assert layout.centres["x"][0] == layout.centres["c"][0]


def test_nothing_gives_an_empty_layout_and_one_box_stands_alone():
    assert check({"a": (10.0, 20.0)}, []).size == (10.0, 20.0)


def test_a_wide_graph_goes_downwards():
    def drawn(n):
        boxes = tuple(Box(f"n{i}", "model", f"node {i}", device="cpu:0", where="cpu:0") for i in range(n))
        return parsed(svg(Diagram("g", boxes, tuple(Arrow(f"n{i}", f"n{i + 1}") for i in range(n - 1)))))

    for n, down in ((2, False), (20, True)):
        root = drawn(n)
        assert (float(root.attrib["height"]) > float(root.attrib["width"])) is down


def test_a_long_legend_takes_several_rows():
    boxes = tuple(Box(f"n{i}", "model", f"n{i}", device=f"gpu:{i}", where=f"gpu:{i}") for i in range(12))
    root = parsed(svg(Diagram("g", boxes, ())))
    rows = {one.find(f"{NS}rect").attrib["y"] for one in root.iter(f"{NS}g") if "data-anyaccel-legend" in one.attrib}
    assert rows == {"0", "28"}


def test_every_line_leaves_and_arrives_at_its_boxes(mixed):
    """The ends of the lines lie on the sides of cards or labels."""
    root = parsed(mixed.build().visualize("svg"))
    rects = [tuple(float(one.attrib[name]) for name in ("x", "y", "width", "height")) for one in root.iter(f"{NS}rect")]
    lines = [one.attrib["d"] for one in root.iter(f"{NS}path") if one.attrib.get("fill") == "none"]
    assert len(lines) == 5
    for line in lines:
        numbers = list(map(float, re.findall(r"-?[\d.]+", line)))
        for x, y in (numbers[:2], numbers[-2:]):
            gaps = [max(a - x, x - a - w, b - y, y - b - h, 0.0) for a, b, w, h in rects]
            assert min(gaps) <= 6.5


def test_a_drawing_turns_with_its_layout():
    layout = arrange({"a": (10.0, 20.0)}, [])
    assert OrientedLayout(layout, {}, False).size == (10.0, 20.0)
    assert OrientedLayout(layout, {}, True).size == (20.0, 10.0)
