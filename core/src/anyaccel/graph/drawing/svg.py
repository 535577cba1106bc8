"""A graph as SVG: a card for each node, its head in the colour of its device, and lines that pass between cards.

The text stands alone: no script, no style sheet, no font and no id of its own, so that it can be put into any page.
Cards bring their own background, lines and frames are of a middle grey: both are seen on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anyaccel.graph.drawing.diagram import Arrow, Box, Picture
from anyaccel.graph.drawing.edge_paths import Drawing, curve, number, ports
from anyaccel.graph.drawing.layered_layout import Edge, Key, Size, arrange
from anyaccel.graph.drawing.text_metrics import fitted, text_width
from anyaccel.html import FONT, NOWHERE, Colours, Markup, colours, element, escaped

_PAD = 11.0  # between a card's frame and its text
_HEAD, _LINE, _FOOT = 28.0, 17.0, 10.0
_NARROW, _WIDE = 136.0, 310.0  # the least and the greatest width of a card
_MARGIN = 14.0
_TOO_WIDE = 1040.0  # a drawing from left to right that is wider goes downwards, if that is narrower
_TITLE, _WORDS = 13.0, 11.5  # sizes of text

_PAPER, _INK, _SOFT, _FRAME, _EDGE, _CROSS = "#FFFFFF", "#1B232D", "#4A5563", "#8B95A3", "#7F8895", "#C2620F"
_PILL = Colours("#FFF1E3", "#7A3B06")
_DATA = Colours("#E9EDF2", "#1B232D")


@dataclass(frozen=True, slots=True)
class _Card:
    """A box and the size at which it is drawn; `where` is the device as it is told in its head."""

    box: Box
    where: str
    width: float
    height: float


def svg(shown: Picture) -> Markup:
    """The picture as a standalone SVG document."""
    cards = {box.id: _card(box) for box in shown.boxes}
    pills = {f"e{i}": arrow for i, arrow in enumerate(shown.arrows) if arrow.label}
    sizes: dict[Key, Size] = {name: (card.width, card.height) for name, card in cards.items()}
    sizes |= {name: (text_width(arrow.label, _WORDS) + 14, 20.0) for name, arrow in pills.items()}
    edges = {edge: arrow for i, arrow in enumerate(shown.arrows) for edge in _edges(i, arrow)}
    drawing = _narrower(sizes, list(edges))
    legend, below = _legend(shown, max(drawing.size[0], 380.0))
    body = [
        *_lines(edges, drawing),
        *(_drawn(card, *drawing.centre(name)) for name, card in cards.items()),
        *(_pill(arrow.label, *drawing.centre(name)) for name, arrow in pills.items()),
        element("g", *legend, transform=f"translate(0 {number(drawing.size[1] + 18)})"),
    ]
    return _document(shown, body, max(drawing.size[0], below[0]), drawing.size[1] + below[1])


def _document(shown: Picture, body: Iterable[Markup], width: float, height: float) -> Markup:
    nodes = [f"{box.title}: {box.where}" for box in shown.boxes if box.kind != "data"]
    title = escaped(f"Graph {shown.label}. {'; '.join(nodes)}", 1000)
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
    """What is laid out for an arrow; its label is a stop on its way, so that nothing is drawn over it."""
    return [(arrow.source, f"e{i}"), (f"e{i}", arrow.target)] if arrow.label else [(arrow.source, arrow.target)]


def _narrower(sizes: dict[Key, Size], edges: list[Edge]) -> Drawing:
    """From left to right where that is not too wide, else downwards, if that is narrower."""
    right = Drawing(arrange(sizes, edges), sizes, False)
    if right.size[0] <= _TOO_WIDE:
        return right
    turned: dict[Key, Size] = {name: (height, width) for name, (width, height) in sizes.items()}
    down = Drawing(arrange(turned, edges, gap=(40.0, 26.0)), turned, True)
    return min(right, down, key=lambda one: one.size[0])


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(edges: dict[Edge, Arrow], drawing: Drawing) -> Iterator[Markup]:
    at = ports(drawing, edges)
    for edge, arrow in edges.items():
        line, head = curve(drawing, edge, at, head=edge[1] == arrow.target)
        yield _line(line, arrow.crosses)
        if head:
            yield element("path", d=head, fill=_CROSS if arrow.crosses else _EDGE)


def _line(path: str, crosses: bool) -> Markup:
    colour, dash = (_CROSS, "6 4") if crosses else (_EDGE, None)
    return element("path", d=path, fill="none", stroke=colour, stroke_width="1.7", stroke_dasharray=dash)


def _pill(label: str, x: float, y: float) -> Markup:
    width = text_width(label, _WORDS) + 14
    frame = _rectangle(x - width / 2, y - 10, width, 20, 10, fill=_PILL.fill, stroke=_CROSS)
    return element("g", frame, _text(label, x, y + 4, _WORDS, _PILL.ink, anchor="middle"))


# -- cards -------------------------------------------------------------------------------------------------------------


def _card(box: Box) -> _Card:
    where = box.where if box.kind != "data" else "data"
    head = text_width(box.title, _TITLE, bold=True) + text_width(where, _WORDS) + 14
    lines = _told(box)
    width = max([head, *(text_width(line, _WORDS) for line in lines)]) + 2 * _PAD
    return _Card(box, where, min(max(width, _NARROW), _WIDE), _HEAD + _LINE * len(lines) + _FOOT)


def _told(box: Box) -> list[str]:
    """The lines below the head."""
    first = [" \N{MIDDLE DOT} ".join(filter(None, [box.lines[0], box.framework]))] if box.lines else []
    asked = [f"asks for {box.asked}"] if box.asked else []
    return [*first, *box.lines[1:], *asked, *(["frozen"] if box.frozen else [])]


def _drawn(card: _Card, x: float, y: float) -> Markup:
    """A card around (x, y), with all of its text in its title."""
    box, left, top = card.box, x - card.width / 2, y - card.height / 2
    fill, ink = _DATA if box.kind == "data" else colours(box.device)
    told = _told(box)
    parts = [
        element("title", escaped("; ".join([f"{box.title}: {card.where}", *told]), 1000)),
        _rectangle(left + 3, top + 3, card.width, card.height, 7, fill=_DATA.fill) if box.kind == "data" else None,
        _rectangle(left, top, card.width, card.height, 7, fill=_PAPER, stroke="none"),
        element("path", d=_head(left, top, card.width), fill=fill),
        _rectangle(left, top, card.width, card.height, 7, fill="none", dash="5 3" if box.frozen else None),
        *_heading(card, left, top + 18.5, ink),
    ]
    for i, line in enumerate(told):
        kept = fitted(line, _WORDS, card.width - 2 * _PAD)
        parts.append(_text(kept, left + _PAD, top + _HEAD + 15 + _LINE * i, _WORDS, _SOFT if i else _INK))
    return element("g", *parts, data_anyaccel_node=box.title, data_anyaccel_device=box.device or None)


def _heading(card: _Card, left: float, base: float, ink: str) -> list[Markup]:
    """The label, and at the right of it the device, which is there in full unless it takes half the room."""
    room = card.width - 2 * _PAD - 10
    where = fitted(card.where, _WORDS, room * 0.6)
    title = fitted(card.box.title, _TITLE, room - text_width(where, _WORDS), bold=True)
    return [
        _text(title, left + _PAD, base, _TITLE, ink, weight="600"),
        _text(where, left + card.width - _PAD, base, _WORDS, ink, anchor="end"),
    ]


def _head(left: float, top: float, width: float) -> str:
    """The head of a card: round above, straight below."""
    low, high, right = number(top + _HEAD), number(top + 7), number(left + width - 7)
    return f"M{number(left)} {low} V{high} q0 -7 7 -7 H{right} q7 0 7 7 V{low} Z"


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
    shown: str, x: float, y: float, size: float, ink: str, *, anchor: str | None = None, weight: str | None = None
) -> Markup:
    return element(
        "text",
        shown,
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
    """A word of the legend, as it looks."""

    words: str
    colours: Colours
    frame: str = _FRAME
    dash: str | None = None
    device: str | None = None


def _chips(shown: Picture) -> Iterator[_Chip]:
    for device in shown.devices:
        yield _Chip(device, colours(device), device=device)
    if any(box.kind != "data" and not box.device for box in shown.boxes):
        yield _Chip("no device yet", NOWHERE)
    if any(arrow.crosses for arrow in shown.arrows):
        yield _Chip("to another device or framework", _PILL, _CROSS, "6 4")
    if any(box.frozen for box in shown.boxes):
        yield _Chip("frozen", Colours(_PAPER, _INK), dash="5 3")


def _legend(shown: Picture, width: float) -> tuple[list[Markup], Size]:
    """What colours and dashes mean, in rows of at most this width; and the room that it takes."""
    parts: list[Markup] = []
    x, y, widest = 0.0, 0.0, 0.0
    for chip in _chips(shown):
        needed = text_width(chip.words, _WORDS) + 16
        if x and x + needed > width:
            x, y = 0.0, y + 28
        frame = _rectangle(x, y, needed, 20, 5, fill=chip.colours.fill, stroke=chip.frame, dash=chip.dash)
        words = _text(chip.words, x + needed / 2, y + 14, _WORDS, chip.colours.ink, anchor="middle")
        parts.append(element("g", frame, words, data_anyaccel_legend=chip.device))
        x += needed + 8
        widest = max(widest, x - 8)
    return parts, (widest, y + 38 if parts else 0.0)
