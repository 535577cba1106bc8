"""Lines between the boxes of a layout, as the paths of SVG: curved between layers, straight inside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anyaccel.graph.drawing.layered_layout import Edge, Key, Layout, Size

_PORTS = 16.0  # between two lines at one side of a box, where there is room
_CORNER = 8.0  # what lines keep away from the corners of a box
HEAD = 6.0
"""Length of an arrow's head."""


def number(value: float) -> str:
    """A length as SVG has it: a tenth is fine enough."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A layout with the sizes of its boxes (along, across), and whether its arrows go downwards."""

    layout: Layout
    sizes: Mapping[Key, Size]
    down: bool

    @property
    def size(self) -> Size:
        """Width and height of the whole."""
        return self.turned(*self.layout.size)

    def turned(self, along: float, across: float) -> Size:
        """The point (x, y)."""
        return (across, along) if self.down else (along, across)

    def centre(self, name: Key) -> Size:
        """The middle of a box, (x, y)."""
        return self.turned(*self.layout.centres[name])


@dataclass(slots=True)
class Curve:
    """A path that is on its way: where it is, and what has been written."""

    drawing: Drawing
    along: float
    across: float
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.written.append(f"M{self._point(self.along, self.across)}")

    def straight(self, along: float) -> None:
        """Go on at the same height."""
        if along != self.along:
            self.written.append(f"L{self._point(along, self.across)}")
        self.along = along

    def bend(self, along: float, across: float) -> None:
        """Go to another height; begins and ends straight."""
        middle = (self.along + along) / 2
        points = (self._point(middle, self.across), self._point(middle, across), self._point(along, across))
        self.written.append(f"C{' '.join(points)}")
        self.along, self.across = along, across

    def _point(self, along: float, across: float) -> str:
        return " ".join(map(number, self.drawing.turned(along, across)))


def curve(drawing: Drawing, edge: Edge, ports: Mapping[tuple[Edge, int], float], *, head: bool) -> tuple[str, str]:
    """The path of an edge, and that of the head at its end, `""` for none."""
    layout, (source, target) = drawing.layout, edge
    path = Curve(drawing, _side(drawing, source, 1), ports[edge, 0])
    path.straight(layout.bands[source][1])
    for stop in layout.stops[edge]:
        path.bend(stop.start, stop.across)
        path.straight(stop.end)
    path.bend(layout.bands[target][0], ports[edge, 1])
    end = _side(drawing, target, -1)
    path.straight(end - (HEAD if head else 0.0))
    return " ".join(path.written), _head(drawing, end, ports[edge, 1]) if head else ""


def _head(drawing: Drawing, along: float, across: float) -> str:
    corners = ((along, across), (along - HEAD - 2, across - 4), (along - HEAD - 2, across + 4))
    return f"M{' L'.join(' '.join(map(number, drawing.turned(*corner))) for corner in corners)} Z"


def _side(drawing: Drawing, name: Key, way: int) -> float:
    return drawing.layout.centres[name][0] + way * drawing.sizes[name][0] / 2


def ports(drawing: Drawing, edges: Iterable[Edge]) -> dict[tuple[Edge, int], float]:
    """Where each edge leaves its first box (0) and arrives at its second (1), across: in an order without crossings."""
    sides: dict[tuple[Key, int], list[Edge]] = {}
    for edge in edges:
        for end in (0, 1):
            sides.setdefault((edge[end], end), []).append(edge)
    found: dict[tuple[Edge, int], float] = {}
    for (name, end), here in sides.items():
        here.sort(key=lambda edge: _far(drawing.layout, edge, end))  # used before the next turn
        room = max(drawing.sizes[name][1] - 2 * _CORNER, 0.0)
        step = min(_PORTS, room / max(len(here) - 1, 1))
        first = drawing.layout.centres[name][1] - step * (len(here) - 1) / 2
        found.update({(edge, end): first + step * i for i, edge in enumerate(here)})
    return found


def _far(layout: Layout, edge: Edge, end: int) -> float:
    """Where an edge goes to from this end of it, across."""
    stops = layout.stops[edge]
    if stops:
        return stops[-1 if end else 0].across
    return layout.centres[edge[1 - end]][1]
