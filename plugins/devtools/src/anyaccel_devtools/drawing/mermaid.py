"""Diagrams of graphs as Mermaid text, and the choice of a format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anyaccel.errors import GraphError
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan import Plan
from anyaccel.graph.shape_inference import Shapes
from anyaccel.html import Markup, colours, text
from anyaccel.registry import Registry
from anyaccel_devtools.drawing.diagram import Box, Diagram, build_diagram
from anyaccel_devtools.drawing.svg import svg

_SPECIAL = frozenset("#&<>\"'`[]{}")  # braces, as a Mermaid directive may occur anywhere in the text
FORMATS = ("mermaid", "svg")


def draw(
    label: str, nodes: Mapping[str, Node], shapes: Shapes | None, plan: Plan | None, registry: Registry, format: str
) -> Markup | str:
    """Return the graph in one of FORMATS; builds and places nothing.

    Raises:
        GraphError: unknown format, or the plan of another graph.
    """
    if format not in FORMATS:
        raise GraphError(
            f"graph {label!r} cannot be drawn as {format!r}",
            available=", ".join(FORMATS),
            hint="graph.visualize('svg')",
        )
    if plan is not None and not isinstance(plan, Plan):
        raise GraphError(
            f"graph {label!r}: plan must be a Plan, got {type(plan).__name__}", hint="pass experiment.plan(phase)"
        )
    diagram = build_diagram(label, nodes, shapes, plan, registry)
    return svg(diagram) if format == "svg" else mermaid(diagram)


def mermaid(diagram: Diagram) -> str:
    """Return the diagram as Mermaid text, colored by device; feature sets are cylinders, labels are escaped."""
    lines = ["flowchart LR", *(f"  {box.id}{_shape(box)}" for box in diagram.boxes)]
    for arrow in diagram.arrows:
        label = f'|"{_escaped(arrow.label)}"|' if arrow.label else ""
        lines.append(f"  {arrow.source} {'-.->' if arrow.crosses else '-->'}{label} {arrow.target}")
    return "\n".join([*lines, *_legend(diagram), *_styles(diagram)])


def _shape(box: Box) -> str:
    first = " \N{MIDDLE DOT} ".join(filter(None, [*box.lines[:1], box.framework])) if box.kind != "data" else ""
    rest = box.lines if box.kind == "data" else box.lines[1:]
    requested = f"asks for {box.requested}" if box.requested else ""
    parts = [box.title, first, *rest, box.where, requested, "frozen" if box.frozen else ""]
    content = "<br/>".join(_escaped(part) for part in parts if part)
    return f'[("{content}")]' if box.kind == "data" else f'["{content}"]'


def _legend(diagram: Diagram) -> Iterator[str]:
    if diagram.devices:
        yield '  subgraph legend["devices"]'
        yield from (f'    k{i}["{_escaped(device)}"]' for i, device in enumerate(diagram.devices))
        yield "  end"


def _styles(diagram: Diagram) -> Iterator[str]:
    """Yield a style class for each device, for nodes without one and for frozen nodes, and the members of each."""
    members: dict[str, list[str]] = {device: [f"k{i}"] for i, device in enumerate(diagram.devices)}
    for box in diagram.boxes:
        if box.kind != "data":
            members.setdefault(box.device, []).append(box.id)
    for device, ids in members.items():
        name, (fill, ink) = f"on_{device.replace(':', '_')}" if device else "nowhere", colours(device)
        yield f"  classDef {name} fill:{fill},color:{ink},stroke:#8B95A3"
        yield f"  class {','.join(ids)} {name}"
    frozen = [box.id for box in diagram.boxes if box.frozen]
    if frozen:
        yield "  classDef frozen stroke-dasharray:5 3,stroke-width:2px"
        yield f"  class {','.join(frozen)} frozen"


def _escaped(label: str) -> str:
    """Return a label safe in quoted Mermaid text and in HTML around it: Mermaid's codes, which HTML leaves alone."""
    return "".join(f"#{ord(char)};" if char in _SPECIAL else char for char in text(label, 400))
