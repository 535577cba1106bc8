"""A graph for people: a table, and a Mermaid drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from anyaccel.graph.nodes import ConcatNode, ModelNode, Node, column_name
from anyaccel.graph.plan import table
from anyaccel.graph.shapes import Shapes
from anyaccel.registry import Registry

_SPECIAL = frozenset("#&<>\"'`[]{}")  # braces, because a directive may stand anywhere in the text


def summary(nodes: Mapping[str, Node], shapes: Shapes, found: Registry, label: str) -> str:
    """A table of nodes, one a line, and the number of parameters in all (shared ones once)."""
    rows = [("node", "model", "framework", "device", "takes", "gives", "parameters")]
    total, seen = 0, set()
    for name in shapes.order:
        node = nodes[name]
        count = _parameters(node, shapes.frameworks[name], found)
        model = getattr(node, "model", None)
        total += 0 if id(model) in seen else count
        seen.add(id(model) if model is not None else None)
        rows.append((name, *_kind(node, shapes.frameworks[name]), *_shapes(name, shapes), _count(node, count)))
    return "\n".join([f"graph {label!r}", *table(rows), f"{total:,} parameters"])


def _kind(node: Node, framework: str) -> tuple[str, str, str]:
    if isinstance(node, ConcatNode):
        return f"concat (axis {node.axis})", framework, "with its consumer"
    return type(node.model).__name__, framework, str(node.accelerator or "as the phase says")


def _shapes(name: str, shapes: Shapes) -> tuple[str, str]:
    return ", ".join(map(str, shapes.wanted(name))), ", ".join(
        str(shapes.specs[value]) for value in shapes.outputs[name]
    )


def _count(node: Node, count: int) -> str:
    return f"{count:,}" + (" (frozen)" if isinstance(node, ModelNode) and node.frozen else "")


def _parameters(node: Node, framework: str, found: Registry) -> int:
    if isinstance(node, ConcatNode):
        return 0
    return sum(math.prod(spec.shape) for spec in found.computing(framework).parameters(node.model).values())


def mermaid(nodes: Mapping[str, Node], shapes: Shapes | None) -> str:
    """The graph as Mermaid text; feature sets are cylinders, labels are escaped."""
    ids = {label: f"n{i}" for i, label in enumerate(nodes)}
    data: dict[str, str] = {}
    lines, arrows = ["flowchart LR"], []
    for label, node in nodes.items():
        where = f"<br/>{node.accelerator}" if isinstance(node, ModelNode) and node.accelerator else ""
        lines.append(f'  {ids[label]}["{_escaped(label)}{where}"]')
        for upstream in node.upstreams:
            name = upstream if isinstance(upstream, str) else column_name(upstream)
            source = (
                ids[name.partition(".")[0]] if isinstance(upstream, str) else data.setdefault(name, f"d{len(data)}")
            )
            arrows.append(f"  {source} --{_edge(upstream, shapes)}> {ids[label]}")
    lines += [f'  {id_}[("{_escaped(name)}")]' for name, id_ in data.items()]
    return "\n".join(lines + arrows)


def _edge(upstream: object, shapes: Shapes | None) -> str:
    if shapes is None or not isinstance(upstream, str):
        return ""
    names = shapes.outputs.get(upstream, (upstream,))
    return f'"{_escaped(", ".join(str(shapes.specs[name]) for name in names))}"--'


def _escaped(text: str) -> str:
    """Text safe inside a quoted Mermaid label and in HTML around it: Mermaid's own codes, which HTML leaves alone."""
    return "".join(f"#{ord(c)};" if c in _SPECIAL else c for c in text)
