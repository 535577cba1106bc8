"""A diagram as SVG: a card per node with a header in the color of its device, and edges between the cards.

The SVG is self-contained, without scripts, style sheets, fonts or ids, so that it can be embedded in any page. Cards
have their own background, and edges and frames are medium grey: both are visible on light and dark pages.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from anyaccel.html import FONT, NOWHERE, Colours, Markup, colours, element, escaped
from anyaccel_devtools.drawing.diagram import Arrow, Box, Diagram
from anyaccel_devtools.drawing.layered_layout import Edge, Key, Layout, Size, arrange

_PAD = 11.0  # between the frame of a card and its text
_HEADER, _LINE, _FOOTER = 28.0, 17.0, 10.0
_MIN_WIDTH, _MAX_WIDTH = 136.0, 310.0  # of a card
_MARGIN = 14.0
_MAX_DIAGRAM_WIDTH = 1040.0  # a diagram that is wider from left to right is drawn downwards, if that is narrower
_TITLE_SIZE, _TEXT_SIZE = 13.0, 11.5  # font sizes

_PAPER, _INK, _SOFT, _FRAME, _EDGE, _CROSS = "#FFFFFF", "#1B232D", "#4A5563", "#8B95A3", "#7F8895", "#C2620F"
_PILL = Colours("#FFF1E3", "#7A3B06")
_DATA = Colours("#E9EDF2", "#1B232D")


@dataclass(frozen=True, slots=True)
class _Card:
    """A box with its size; `where` is the device as shown in the header."""

    box: Box
    where: str
    width: float
    height: float


def svg(diagram: Diagram) -> Markup:
    """Return the diagram as a self-contained SVG document."""
    cards = {box.id: _card(box) for box in diagram.boxes}
    pills = {f"e{i}": arrow for i, arrow in enumerate(diagram.arrows) if arrow.label}
    sizes: dict[Key, Size] = {name: (card.width, card.height) for name, card in cards.items()}
    sizes |= {name: (text_width(arrow.label, _TEXT_SIZE) + 14, 20.0) for name, arrow in pills.items()}
    edges = {edge: arrow for i, arrow in enumerate(diagram.arrows) for edge in _edges(i, arrow)}
    # From left to right if that fits, otherwise in the narrower of both directions.
    pairs = list(edges)
    right = OrientedLayout(arrange(sizes, pairs), sizes, False)
    if right.size[0] <= _MAX_DIAGRAM_WIDTH:
        drawing = right
    else:
        turned: dict[Key, Size] = {name: (height, width) for name, (width, height) in sizes.items()}
        down = OrientedLayout(arrange(turned, pairs, gap=(40.0, 26.0)), turned, True)
        drawing = min(right, down, key=lambda layout: layout.size[0])
    width = max(drawing.size[0], 380.0)
    legend: list[Markup] = []
    x, y, widest = 0.0, 0.0, 0.0
    for chip in _chips(diagram):
        needed = text_width(chip.words, _TEXT_SIZE) + 16
        if x and x + needed > width:
            x, y = 0.0, y + 28
        frame = _rectangle(x, y, needed, 20, 5, fill=chip.colours.fill, stroke=chip.frame, dash=chip.dash)
        words = _text(chip.words, x + needed / 2, y + 14, _TEXT_SIZE, chip.colours.ink, anchor="middle")
        legend.append(element("g", frame, words, data_anyaccel_legend=chip.device))
        x += needed + 8
        widest = max(widest, x - 8)
    body = [
        *_edge_elements(edges, drawing),
        *(_card_element(card, *drawing.centre(name)) for name, card in cards.items()),
        *(_pill(arrow.label, *drawing.centre(name)) for name, arrow in pills.items()),
        element("g", *legend, transform=f"translate(0 {number(drawing.size[1] + 18)})"),
    ]
    return _document(diagram, body, max(drawing.size[0], widest), drawing.size[1] + (y + 38 if legend else 0.0))


def _document(diagram: Diagram, body: Iterable[Markup], width: float, height: float) -> Markup:
    nodes = [f"{box.title}: {box.where}" for box in diagram.boxes if box.kind != "data"]
    title = escaped(f"Graph {diagram.label}. {'; '.join(nodes)}", 1000)
    size = {"width": number(width + 2 * _MARGIN), "height": number(height + 2 * _MARGIN)}
    return element(
        "svg",
        element("title", title),
        element("g", *body, transform=f"translate({number(_MARGIN)} {number(_MARGIN)})"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {size['width']} {size['height']}",
        **size,
        role="img",
        aria_label=title,
        font_family=FONT,
    )


def _edges(i: int, arrow: Arrow) -> list[Edge]:
    """Return edges of the layout for an arrow; its label is a box on the way, so that nothing overlaps it."""
    return [(arrow.source, f"e{i}"), (f"e{i}", arrow.target)] if arrow.label else [(arrow.source, arrow.target)]


# -- edges -------------------------------------------------------------------------------------------------------------


def _edge_elements(edges: dict[Edge, Arrow], drawing: OrientedLayout) -> Iterator[Markup]:
    positions = ports(drawing, edges)
    for edge, arrow in edges.items():
        line, head = edge_path(drawing, edge, positions, head=edge[1] == arrow.target)
        colour, dash = (_CROSS, "6 4") if arrow.crosses else (_EDGE, None)
        yield element("path", d=line, fill="none", stroke=colour, stroke_width="1.7", stroke_dasharray=dash)
        if head:
            yield element("path", d=head, fill=_CROSS if arrow.crosses else _EDGE)


def _pill(label: str, x: float, y: float) -> Markup:
    width = text_width(label, _TEXT_SIZE) + 14
    frame = _rectangle(x - width / 2, y - 10, width, 20, 10, fill=_PILL.fill, stroke=_CROSS)
    return element("g", frame, _text(label, x, y + 4, _TEXT_SIZE, _PILL.ink, anchor="middle"))


# -- cards -------------------------------------------------------------------------------------------------------------


def _card(box: Box) -> _Card:
    where = box.where if box.kind != "data" else "data"
    head = text_width(box.title, _TITLE_SIZE, bold=True) + text_width(where, _TEXT_SIZE) + 14
    lines = _body_lines(box)
    width = max([head, *(text_width(line, _TEXT_SIZE) for line in lines)]) + 2 * _PAD
    return _Card(box, where, min(max(width, _MIN_WIDTH), _MAX_WIDTH), _HEADER + _LINE * len(lines) + _FOOTER)


def _body_lines(box: Box) -> list[str]:
    """Return the lines below the header."""
    first = [" \N{MIDDLE DOT} ".join(filter(None, [box.lines[0], box.framework]))] if box.lines else []
    requested = [f"asks for {box.requested}"] if box.requested else []
    return [*first, *box.lines[1:], *requested, *(["frozen"] if box.frozen else [])]


def _card_element(card: _Card, x: float, y: float) -> Markup:
    """Return a card centred at (x, y); its title (tooltip) has the full text."""
    box, left, top = card.box, x - card.width / 2, y - card.height / 2
    fill, ink = _DATA if box.kind == "data" else colours(box.device)
    lines = _body_lines(box)
    room = card.width - 2 * _PAD - 10
    where = fitted(card.where, _TEXT_SIZE, room * 0.6)
    title = fitted(card.box.title, _TITLE_SIZE, room - text_width(where, _TEXT_SIZE), bold=True)
    low, high, right = number(top + _HEADER), number(top + 7), number(left + card.width - 7)
    parts = [
        element("title", escaped("; ".join([f"{box.title}: {card.where}", *lines]), 1000)),
        _rectangle(left + 3, top + 3, card.width, card.height, 7, fill=_DATA.fill) if box.kind == "data" else None,
        _rectangle(left, top, card.width, card.height, 7, fill=_PAPER, stroke="none"),
        element("path", d=f"M{number(left)} {low} V{high} q0 -7 7 -7 H{right} q7 0 7 7 V{low} Z", fill=fill),
        _rectangle(left, top, card.width, card.height, 7, fill="none", dash="5 3" if box.frozen else None),
        _text(title, left + _PAD, top + 18.5, _TITLE_SIZE, ink, weight="600"),
        _text(where, left + card.width - _PAD, top + 18.5, _TEXT_SIZE, ink, anchor="end"),
    ]
    for i, line in enumerate(lines):
        shortened = fitted(line, _TEXT_SIZE, card.width - 2 * _PAD)
        parts.append(_text(shortened, left + _PAD, top + _HEADER + 15 + _LINE * i, _TEXT_SIZE, _SOFT if i else _INK))
    return element("g", *parts, data_anyaccel_node=box.title, data_anyaccel_device=box.device or None)


def _rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    corner: float,
    *,
    fill: str,
    stroke: str = _FRAME,
    dash: str | None = None,
) -> Markup:
    return element(
        "rect",
        x=number(x),
        y=number(y),
        width=number(width),
        height=number(height),
        rx=number(corner),
        fill=fill,
        stroke=stroke,
        stroke_dasharray=dash,
    )


def _text(
    content: str, x: float, y: float, size: float, ink: str, *, anchor: str | None = None, weight: str | None = None
) -> Markup:
    return element(
        "text",
        content,
        x=number(x),
        y=number(y),
        font_size=number(size),
        fill=ink,
        text_anchor=anchor,
        font_weight=weight,
    )


# -- legend ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chip:
    """An entry of the legend."""

    words: str
    colours: Colours
    frame: str = _FRAME
    dash: str | None = None
    device: str | None = None


def _chips(diagram: Diagram) -> Iterator[_Chip]:
    for device in diagram.devices:
        yield _Chip(device, colours(device), device=device)
    if any(box.kind != "data" and not box.device for box in diagram.boxes):
        yield _Chip("no device yet", NOWHERE)
    if any(arrow.crosses for arrow in diagram.arrows):
        yield _Chip("to another device or framework", _PILL, _CROSS, "6 4")
    if any(box.frozen for box in diagram.boxes):
        yield _Chip("frozen", Colours(_PAPER, _INK), dash="5 3")


# -- SVG paths of the edges of a layout: curved between layers, straight inside them -----------------------------------


_PORT_GAP = 16.0  # between two lines at one side of a box, if there is room
_CORNER = 8.0  # distance of lines from the corners of a box
HEAD = 6.0
"""Length of an arrowhead."""


def number(value: float) -> str:
    """Return a length in SVG, rounded to tenths."""
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
        """Return a point (along, across) as (x, y)."""
        return (across, along) if self.down else (along, across)

    def centre(self, name: Key) -> Size:
        """Return the centre of a box, (x, y)."""
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
        """Add a straight line along."""
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
    """Return paths of an edge and of its arrowhead, or `""`."""
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
    """Return where each edge leaves its source (0) and enters its target (1), across, without crossings at the box."""
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
    """Return where an edge goes from this end, across."""
    stops = layout.stops[edge]
    if stops:
        return stops[-1 if end else 0].across
    return layout.centres[edge[1 - end]][1]


# -- widths of text without measuring fonts: upper bounds for common sans-serif fonts ----------------------------------


_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

# Groups of characters by width; widths in units of the font size are in `_advance`.
_THIN = frozenset("ijlI|'.,:;!` ")
_SLIM = frozenset('ftrJ()[]{}-/\\"*^')
_BROAD = frozenset("mwMW@%#+<=>~\N{RIGHTWARDS ARROW}\N{HORIZONTAL ELLIPSIS}")
_BOLD = 1.12


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return an upper bound of the width of a text, in the unit of `size` (the font size)."""
    return sum(map(_advance, text)) * size * (_BOLD if bold else 1.0)


def _advance(char: str) -> float:
    if char in _THIN:
        return 0.4
    if char in _SLIM:
        return 0.46
    if char in _BROAD or unicodedata.east_asian_width(char) in "WF":
        return 1.0 if ord(char) < 0x1F000 else 1.4
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0.0
    if ord(char) < 128:
        return 0.79 if char.isupper() or char in "&$_" else 0.65
    return 0.95


def fitted(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """Return the text, shortened with an ellipsis if it is wider than `room`."""
    if text_width(text, size, bold=bold) <= room:
        return text
    shortened = text.removesuffix(_ELLIPSIS)
    while shortened and text_width(f"{shortened}{_ELLIPSIS}", size, bold=bold) > room:
        shortened = shortened[:-1]
    return f"{shortened.rstrip()}{_ELLIPSIS}"
