"""What a notebook shows of a graph: a drawing above the table."""

from __future__ import annotations

from anyaccel import ModelGraph, ModelNode


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
