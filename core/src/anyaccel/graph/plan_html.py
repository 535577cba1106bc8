"""A plan as a page in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anyaccel.graph.plan_entries import Assignment, Column, Crossing, Section
from anyaccel.html import Markup, badge, element, faint, line, listing, page, prose, row, size, table

ROUTES = {"move": "move", "share": "shared memory", "copy": "shared memory and a copy", "host": "through host memory"}
"""How a value crosses, in a few words."""

_CROSSINGS = ("value", "from", "to", "how", "a sample")


def plan_page(
    title: str,
    assignments: Sequence[Assignment],
    columns: Sequence[Column],
    crossings: Sequence[Crossing],
    notes: Sequence[str],
    why: Callable[[Assignment], str],
) -> Markup:
    """Return tables of the nodes with the reason (`why`) of each device, of loaded columns, and of crossings; and
    notes.
    """
    head = ("node", "device", "framework", "native name", "why", "parameters")
    frameworks = {assignment.node: assignment.framework for assignment in assignments}
    return page(
        "Plan",
        title,
        table(head, assignments, lambda assignment: _assignment_row(assignment, why(assignment))),
        *(part for assignment in assignments for section in assignment.sections for part in _shown(section)),
        *_section("loads", ("columns", "to", "as", "changed"), columns, _column_row),
        *_section("crosses in every step", _CROSSINGS, crossings, lambda crossing: _crossing_row(crossing, frameworks)),
        *(line("note: ", faint(note)) for note in notes),
    )


def _shown(section: Section) -> Iterator[Markup]:
    yield line(element("strong", f"{section.title}: "), prose(section.summary))
    yield table(section.head, section.rows, row)
    yield from (line("note: ", faint(note)) for note in section.notes)


def _section(title: str, head: Sequence[str], items: Sequence[Any], make: Callable[[Any], Markup]) -> Iterator[Markup]:
    if items:
        yield line(element("strong", title))
        yield table(head, items, make)


def _assignment_row(assignment: Assignment, why: str) -> Markup:
    device, name = str(assignment.device), assignment.native_name
    parameters = f"{assignment.parameters:,}" + (" (frozen)" if assignment.frozen else "")
    cells = [assignment.node, badge(device), assignment.framework, name, prose(why), parameters]
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
