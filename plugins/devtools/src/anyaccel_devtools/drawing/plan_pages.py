"""A plan as a page in a notebook, and as one HTML file without scripts, which loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.graph import Plan
from anyaccel.graph.plan_entries import (
    CATEGORIES,
    NOT_COVERED,
    Assignment,
    Column,
    Crossing,
    DeviceMemory,
    NodeActivations,
    Section,
    described,
    step_bytes,
)
from anyaccel.html import (
    FONT,
    Markup,
    badge,
    element,
    escaped,
    faint,
    joined,
    line,
    listing,
    page,
    prose,
    row,
    table,
)
from anyaccel.printable import size

ROUTES = {"move": "move", "share": "shared memory", "copy": "shared memory and a copy", "host": "through host memory"}
"""How a value crosses, in a few words."""

_CROSSINGS = ("value", "from", "to", "how", "a sample")


def plan_page(plan: Plan) -> Markup:
    """Return tables of the nodes with the reason of each device, of loaded columns, and of crossings; and notes."""
    assignments = plan.assignments
    head = ("node", "device", "framework", "native name", "why", "parameters")
    frameworks = {assignment.node: assignment.framework for assignment in assignments}
    return page(
        "Plan",
        f"of {plan.phase} on {plan.graph}",
        table(head, assignments, _assignment_row),
        *(part for assignment in assignments for section in assignment.sections for part in _shown(section)),
        *_section("loads", ("columns", "to", "as", "changed"), plan.columns, _column_row),
        *_section(
            "crosses in every step", _CROSSINGS, plan.crossings, lambda crossing: _crossing_row(crossing, frameworks)
        ),
        *(line("note: ", faint(note)) for note in plan.notes),
    )


def _shown(section: Section) -> Iterator[Markup]:
    yield line(element("strong", f"{section.title}: "), prose(section.summary))
    yield table(section.head, section.rows, row)
    yield from (line("note: ", faint(note)) for note in section.notes)


def _section(title: str, head: Sequence[str], items: Sequence[Any], make: Callable[[Any], Markup]) -> Iterator[Markup]:
    if items:
        yield line(element("strong", title))
        yield table(head, items, make)


def _assignment_row(assignment: Assignment) -> Markup:
    device, name = str(assignment.device), assignment.native_name
    parameters = f"{assignment.parameters:,}" + (" (frozen)" if assignment.frozen else "")
    cells = [assignment.node, badge(device), assignment.framework, name, prose(described(assignment)), parameters]
    return row(cells, device=device)


def _column_row(column: Column) -> Markup:
    device = str(column.device)
    stream = f" (stream {column.stream})" if column.stream else ""
    names = f"{column.feature_set}: {listing(column.columns)}{stream}"
    return row([prose(names), badge(device), f"{column.framework} {column.spec_text}", column.change], device=device)


def _crossing_row(crossing: Crossing, frameworks: Mapping[str, str]) -> Markup:
    value = f"gradient of {crossing.value}" if crossing.gradient else crossing.value
    ends = ((crossing.source, crossing.origin), (crossing.target, crossing.destination))
    places = (element("span", badge(str(device)), " ", frameworks.get(node, "")) for node, device in ends)
    return row([value, *places, ROUTES.get(crossing.route, crossing.route), size(crossing.nbytes)])


# -- The plan as one HTML file: memory of each device, the graph, the edges --------------------------------------------


_COLOURS: Mapping[str, str] = {
    "parameters": "#0058FC",
    "gradients": "#79540A",
    "optimizer": "#277F56",
    "activations": "#C924BC",
    "batches": "#1A1081",
    "headroom": "#D5DAE1",
}
_STYLE = f"""
body{{font:15px/1.5 {FONT};margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1B232D;background:#FFF}}
nav a{{margin-right:1rem}}
:focus-visible{{outline:3px solid #C62;outline-offset:2px}}
.bar{{display:flex;height:1.6rem;background:#D5DAE1;border-radius:4px;overflow:hidden;margin:.2rem 0 .6rem}}
.bar span{{min-width:2px}}
.key{{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}}
.legend span{{margin-right:1.2rem}}
.figure,.table{{overflow-x:auto}}
pre{{white-space:pre-wrap;overflow-wrap:anywhere;background:#F4F6F8;padding:1rem}}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def plan_report(plan: Plan, picture: str | None = None) -> str:
    """Return the whole file.

    Args:
        plan: The plan to show.
        picture: The graph as SVG, or None.

    Raises:
        ConfigError: `picture` is not markup, and would be shown as text.
    """
    if picture is not None and not isinstance(picture, Markup):
        hint = "pass graph.visualize('svg', plan=plan)"
        raise ConfigError(f"picture={shown(picture, 60)} is not a picture of a graph", hint=hint)
    nodes = Markup(plan._repr_html_())

    def cells(entry: NodeActivations) -> Markup:
        figures = [
            element("span", NOT_COVERED if value is None else size(value), data_bytes=value, title=_title(value))
            for value in (entry.without_remat, entry.kept)
        ]
        saved = NOT_COVERED if entry.saved is None else f"{'-' if entry.saved < 0 else ''}{size(abs(entry.saved))}"
        return row([entry.node, NOT_COVERED if entry.rows is None else f"{entry.rows:,}", *figures, saved])

    parts = {
        "Memory": joined(_memory(plan.memory)),
        "Graph": element("div", picture, class_="figure", tabindex="0", role="group", aria_label="graph"),
        "Gradient checkpointing": table(
            ("node", "rows", "activations without remat", "with remat", "saved"), plan.activations, cells
        ),
        "Edges": _edges(plan.crossings, plan.batch_size),
        "Nodes and columns": element("div", nodes, class_="table", tabindex="0", role="group", aria_label="nodes"),
        "Decisions": table(("what", "choice", "why"), plan.decisions, lambda d: row([d.what, d.choice, prose(d.why)])),
        "Not covered": joined(element("p", prose(text)) for text in plan.not_covered or ["nothing"]),
        "JSON": element("details", element("summary", "the plan as JSON"), element("pre", _lines(plan.to_json()))),
    }
    for name, content in (("Graph", picture), ("Gradient checkpointing", plan.activations)):
        if not content:
            del parts[name]
    links = [element("a", name, href=f"#{_anchor(name)}") for name in parts]
    sections = [
        element("section", element("h2", name, id=_anchor(name)), content, aria_labelledby=_anchor(name))
        for name, content in parts.items()
    ]
    title = f"Plan of {plan.phase} on {plan.graph}{f' for {plan.machine}' if plan.machine else ''}"
    body = element("main", element("h1", prose(title)), element("nav", *links, aria_label="sections"), *sections)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{_head(title)}</head><body>{body}</body></html>\n'


def _head(title: str) -> Markup:
    return joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", prose(title)),
            Markup(f"<style>{_STYLE}</style>"),
        ]
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _lines(text: str) -> Markup:
    return Markup("\n".join(escaped(text_line, 100_000) for text_line in text.splitlines()))


def _memory(memory: Sequence[DeviceMemory]) -> Iterator[Markup]:
    if not memory:
        yield element("p", "not covered: this plan has no figures of memory")
        return
    keys = (
        element("span", element("span", "", class_="key", style=f"background:{colour}"), name)
        for name, colour in _COLOURS.items()
    )
    yield element("p", *keys, class_="legend")
    for device_memory in memory:
        yield element("div", badge(str(device_memory.device)), f" {device_memory.framework}, {_of(device_memory)}")
        whole = max(device_memory.known, device_memory.capacity or 0, 1)
        pieces = []
        for name in CATEGORIES:
            value = getattr(device_memory, name)
            if value:
                style = f"background:{_COLOURS[name]};width:{100 * value / whole:.6f}%"
                pieces.append(element("span", "", style=style, title=f"{name}: {_title(value)}", data_bytes=value))
        told = ", ".join(f"{name} {_title(getattr(device_memory, name))}" for name in (*CATEGORIES, "headroom"))
        label = f"memory of {device_memory.framework} on {device_memory.device}: {told}"
        yield element("div", *pieces, class_="bar", role="img", tabindex="0", aria_label=label)
    head = ("device", *CATEGORIES, "total", "headroom", "capacity")
    names = (*CATEGORIES, "total", "headroom", "capacity")
    yield element(
        "div",
        table(head, memory, lambda m: row([f"{m.framework} {m.device}", *(_figure(m, name) for name in names)])),
        class_="table",
        tabindex="0",
        role="group",
        aria_label="memory by category",
    )


def _of(memory: DeviceMemory) -> str:
    total = NOT_COVERED if memory.total is None else size(memory.total)
    capacity = "unknown" if memory.capacity is None else size(memory.capacity)
    return f"{total} of {capacity}" + (": does not fit" if memory.fits is False else "")


def _figure(memory: DeviceMemory, name: str) -> Markup:
    value = getattr(memory, name)
    shown = NOT_COVERED if value is None else f"-{size(-value)}" if value < 0 else size(value)
    return element("span", shown, data_category=name, data_bytes="" if value is None else value, title=_title(value))


def _title(value: int | None) -> str:
    return NOT_COVERED if value is None else f"{value:,} bytes"


def _edges(crossings: Sequence[Crossing], batch_size: int | None) -> Markup:
    if not crossings:
        return element("p", "nothing crosses between devices or frameworks in a step")

    def cells(crossing: Crossing) -> Markup:
        nbytes = step_bytes(crossing.nbytes, batch_size)
        return row(
            [
                f"gradient of {crossing.value}" if crossing.gradient else crossing.value,
                joined([f"{crossing.source} ", badge(str(crossing.origin))]),
                joined([f"{crossing.target} ", badge(str(crossing.destination))]),
                ROUTES.get(crossing.route, crossing.route),
                "shared" if crossing.route == "share" else "copied",
                element("span", NOT_COVERED if nbytes is None else size(nbytes), data_edge_bytes=nbytes),
            ]
        )

    return table(("value", "from", "to", "route", "memory", "a step"), crossings, cells, most=1000)
