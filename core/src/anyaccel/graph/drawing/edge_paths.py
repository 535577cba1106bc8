"""SVG paths of the edges of a layout: curved between layers, straight inside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anyaccel.graph.drawing.layered_layout import Edge, Key, Layout, Size

_PORT_GAP = 16.0  # between two lines at one side of a box, if there is room
_CORNER = 8.0  # distance of lines from the corners of a box
HEAD = 6.0
"""Length of an arrowhead."""


def number(value: float) -> str:
    """A length in SVG, rounded to tenths."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class OrientedLayout:
    """A layout with box sizes (along, across), drawn from left to right or downwards."""

    layout: Layout
    sizes: Mapping[Key, Size]
    down: bool

    @property
    def size(self) -> Size:
        """Width and height."""
        return self.turned(*self.layout.size)

    def turned(self, along: float, across: float) -> Size:
        """A point (along, across) as (x, y)."""
        return (across, along) if self.down else (along, across)

    def centre(self, name: Key) -> Size:
        """Centre of a box, (x, y)."""
        return self.turned(*self.layout.centres[name])


@dataclass(slots=True)
class _PathBuilder:
    """An SVG path under construction: the current point and the commands so far."""

    layout: OrientedLayout
    along: float
    across: float
    commands: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commands.append(f"M{self._point(self.along, self.across)}")

    def straight(self, along: float) -> None:
        """A straight line along."""
        if along != self.along:
            self.commands.append(f"L{self._point(along, self.across)}")
        self.along = along

    def bend(self, along: float, across: float) -> None:
        """A curve to another point, straight at both ends."""
        middle = (self.along + along) / 2
        points = (self._point(middle, self.across), self._point(middle, across), self._point(along, across))
        self.commands.append(f"C{' '.join(points)}")
        self.along, self.across = along, across

    def _point(self, along: float, across: float) -> str:
        return " ".join(map(number, self.layout.turned(along, across)))


def edge_path(
    drawing: OrientedLayout, edge: Edge, ports: Mapping[tuple[Edge, int], float], *, head: bool
) -> tuple[str, str]:
    """Paths of an edge and of its arrowhead, `""` without one."""
    layout, (source, target) = drawing.layout, edge
    path = _PathBuilder(drawing, _side(drawing, source, 1), ports[edge, 0])
    path.straight(layout.bands[source][1])
    for stop in layout.stops[edge]:
        path.bend(stop.start, stop.across)
        path.straight(stop.end)
    path.bend(layout.bands[target][0], ports[edge, 1])
    end = _side(drawing, target, -1)
    path.straight(end - (HEAD if head else 0.0))
    return " ".join(path.commands), _head(drawing, end, ports[edge, 1]) if head else ""


def _head(drawing: OrientedLayout, along: float, across: float) -> str:
    corners = ((along, across), (along - HEAD - 2, across - 4), (along - HEAD - 2, across + 4))
    return f"M{' L'.join(' '.join(map(number, drawing.turned(*corner))) for corner in corners)} Z"


def _side(drawing: OrientedLayout, name: Key, way: int) -> float:
    return drawing.layout.centres[name][0] + way * drawing.sizes[name][0] / 2


def ports(drawing: OrientedLayout, edges: Iterable[Edge]) -> dict[tuple[Edge, int], float]:
    """Where each edge leaves its source (0) and enters its target (1), across, without crossings at the box."""
    sides: dict[tuple[Key, int], list[Edge]] = {}
    for edge in edges:
        for end in (0, 1):
            sides.setdefault((edge[end], end), []).append(edge)
    positions: dict[tuple[Edge, int], float] = {}
    for (name, end), attached in sides.items():
        attached.sort(key=lambda edge: _other_end(drawing.layout, edge, end))  # used before the next iteration
        room = max(drawing.sizes[name][1] - 2 * _CORNER, 0.0)
        step = min(_PORT_GAP, room / max(len(attached) - 1, 1))
        first = drawing.layout.centres[name][1] - step * (len(attached) - 1) / 2
        positions.update({(edge, end): first + step * i for i, edge in enumerate(attached)})
    return positions


def _other_end(layout: Layout, edge: Edge, end: int) -> float:
    """Where an edge goes from this end, across."""
    stops = layout.stops[edge]
    if stops:
        return stops[-1 if end else 0].across
    return layout.centres[edge[1 - end]][1]
