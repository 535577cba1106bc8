"""A graph for people: a table, and a drawing as Mermaid or SVG text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from anyaccel.errors import GraphError
from anyaccel.graph.drawing.diagram import Box, Picture, Whereabouts, picture, whereabouts
from anyaccel.graph.drawing.svg import svg
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, model_name
from anyaccel.graph.plan import Plan, number_of, table
from anyaccel.graph.shape_inference import Shapes
from anyaccel.html import Markup, colours, text
from anyaccel.registry import Registry

_SPECIAL = frozenset("#&<>\"'`[]{}")  # braces, because a directive may stand anywhere in the text
FORMATS = ("mermaid", "svg")


def summary(nodes: Mapping[str, Node], shapes: Shapes, found: Registry, label: str) -> str:
    """A table of nodes, one a line, and the number of parameters in all (shared ones once)."""
    rows = [("node", "model", "framework", "device", "takes", "gives", "parameters")]
    total, seen, places = 0, set(), whereabouts(nodes, shapes, None, found)
    for name in shapes.order:
        node = nodes[name]
        count = _parameters(node, shapes) if shapes.outputs[name] else 0
        model = getattr(node, "model", None)
        total += 0 if id(model) in seen else count
        seen.add(id(model) if model is not None else None)
        who = (name, _kind(node), shapes.frameworks[name], _where(places[name]))
        rows.append((*who, *_shapes(name, shapes), _count(node, count)))
    return "\n".join([f"graph {label!r}", *table(rows), number_of(total, "parameter")])


def _kind(node: Node) -> str:
    return f"concat (axis {node.axis})" if isinstance(node, ConcatNode) else model_name(node.model)


def _where(place: Whereabouts) -> str:
    return f"{place.where} (asks for {place.asked})" if place.asked else place.where


def _shapes(name: str, shapes: Shapes) -> tuple[str, str]:
    return ", ".join(map(str, shapes.wanted(name))), ", ".join(
        str(shapes.specs[value]) for value in shapes.outputs[name]
    )


def _count(node: Node, count: int) -> str:
    return f"{count:,}" + (" (frozen)" if isinstance(node, ModelNode) and node.frozen else "")


def _parameters(node: Node, shapes: Shapes) -> int:
    if isinstance(node, ConcatNode):
        return 0
    return sum(math.prod(spec.shape) for spec in shapes.backends[node.label].parameters(node.model).values())


def drawing(
    label: str, nodes: Mapping[str, Node], shapes: Shapes | None, plan: Plan | None, found: Registry, form: str
) -> Markup | str:
    """The graph in one of FORMATS; nothing is built or placed.

    Raises:
        GraphError: another format, or the plan of another graph.
    """
    if form not in FORMATS:
        raise GraphError(
            f"graph {label!r} cannot be drawn as {form!r}",
            available=" and ".join(FORMATS),
            hint="write graph.visualize('svg')",
        )
    if plan is not None and not isinstance(plan, Plan):
        raise GraphError(
            f"graph {label!r} was given a plan of type {type(plan).__name__}", hint="give experiment.plan(phase)"
        )
    shown = picture(label, nodes, shapes, plan, found)
    return svg(shown) if form == "svg" else mermaid(shown)


# -- Mermaid -----------------------------------------------------------------------------------------------------------


def mermaid(shown: Picture) -> str:
    """The picture as Mermaid text, coloured by device; feature sets are cylinders, labels are escaped."""
    lines = ["flowchart LR", *(f"  {box.id}{_shape(box)}" for box in shown.boxes)]
    for arrow in shown.arrows:
        told = f'|"{_escaped(arrow.label)}"|' if arrow.label else ""
        lines.append(f"  {arrow.source} {'-.->' if arrow.crosses else '-->'}{told} {arrow.target}")
    return "\n".join([*lines, *_legend(shown), *_styles(shown)])


def _shape(box: Box) -> str:
    first = " \N{MIDDLE DOT} ".join(filter(None, [*box.lines[:1], box.framework])) if box.kind != "data" else ""
    rest = box.lines if box.kind == "data" else box.lines[1:]
    asked = f"asks for {box.asked}" if box.asked else ""
    parts = [box.title, first, *rest, box.where, asked, "frozen" if box.frozen else ""]
    told = "<br/>".join(_escaped(part) for part in parts if part)
    return f'[("{told}")]' if box.kind == "data" else f'["{told}"]'


def _legend(shown: Picture) -> Iterator[str]:
    if shown.devices:
        yield '  subgraph legend["devices"]'
        yield from (f'    k{i}["{_escaped(device)}"]' for i, device in enumerate(shown.devices))
        yield "  end"


def _styles(shown: Picture) -> Iterator[str]:
    """A class for each device, for what has none and for what is frozen, and who is of which."""
    members: dict[str, list[str]] = {device: [f"k{i}"] for i, device in enumerate(shown.devices)}
    for box in shown.boxes:
        if box.kind != "data":
            members.setdefault(box.device, []).append(box.id)
    for device, ids in members.items():
        name, (fill, ink) = f"on_{device.replace(':', '_')}" if device else "nowhere", colours(device)
        yield f"  classDef {name} fill:{fill},color:{ink},stroke:#8B95A3"
        yield f"  class {','.join(ids)} {name}"
    frozen = [box.id for box in shown.boxes if box.frozen]
    if frozen:
        yield "  classDef frozen stroke-dasharray:5 3,stroke-width:2px"
        yield f"  class {','.join(frozen)} frozen"


def _escaped(shown: str) -> str:
    """Text safe inside a quoted Mermaid label and in HTML around it: Mermaid's own codes, which HTML leaves alone."""
    return "".join(f"#{ord(c)};" if c in _SPECIAL else c for c in text(shown, 400))
