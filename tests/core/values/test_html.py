"""HTML: users' text is escaped, tables are cut, and device colours are readable and distinct."""

from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.html import (
    NOWHERE,
    ROWS,
    Markup,
    badge,
    colours,
    cut,
    element,
    escaped,
    guarded,
    joined,
    line,
    listing,
    page,
    row,
    table,
    text,
)
from anyaccel.printable import size

GPUS = [f"gpu:{i}" for i in range(7)]


# -- text --------------------------------------------------------------------------------------------------------------


@given(st.text(st.characters(), max_size=80))
def test_any_text_becomes_one_text_node_in_xml(given_text):
    """Control characters and lone surrogates too, in an element and in an attribute."""
    shown = element("p", given_text, title=given_text)
    root = ElementTree.fromstring(shown)
    assert (root.tag, list(root), list(root.attrib)) == ("p", [], ["title"])
    assert (root.text or "") == root.attrib["title"] == text(given_text)
    shown.encode()


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cn"]), max_size=20))
def test_text_that_can_be_seen_stays(given_text):
    marks = {chr(code) for code in [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]}
    assert all(one == other or one in marks for one, other in zip(given_text, text(given_text), strict=True))


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("a\n\r\tb\u2028c", "a b c"),
        ("\x1b[2J\x00\x7f\x9b", "\ufffd[2J\ufffd\ufffd\ufffd"),
        ("\ud800x\udfff", "\ufffdx\ufffd"),
        ("\u202eright\u2066", "\ufffdright\ufffd"),
        ("שלום 👩\u200d🔬", "שלום 👩\u200d🔬"),
    ],
)
def test_what_cannot_be_shown_is_replaced(given_text, shown):
    assert text(given_text) == shown


def test_long_text_is_cut():
    assert text("x" * 80) == "x" * 80
    assert text("x" * 81) == "x" * 79 + "…"
    assert len(text("x" * 10**6, 10)) == 10


def test_an_object_whose_str_fails_is_shown_by_its_type():
    class Mute:
        def __str__(self) -> str:
            raise ValueError("no")

    assert text(Mute()) == "Mute (ValueError in str)"


def test_markup_is_not_escaped_twice_and_text_always_is():
    inner = element("b", "<i>")
    assert inner == "<b>&lt;i&gt;</b>"
    assert joined([inner, "&", None, 3]) == "<b>&lt;i&gt;</b>&amp;3"
    assert escaped(escaped("'\"")) == "&#39;&quot;"
    assert isinstance(inner, Markup) and inner._repr_html_() == inner


def test_attributes_are_named_and_left_out():
    assert element("p", data_anyaccel_device="gpu:0", class_="a", id=None) == (
        '<p data-anyaccel-device="gpu:0" class="a"></p>'
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def rows_of(shown: str) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in one] for one in ElementTree.fromstring(shown).iter("tr")]


def test_a_short_table_is_shown_as_it_is():
    assert rows_of(table(("a", "b"), [(1, "<x>"), (2, "y")])) == [["a", "b"], ["1", "<x>"], ["2", "y"]]


def test_a_long_table_says_how_many_rows_are_left_out_and_does_not_read_them():
    looked = []

    def make(item):
        looked.append(item)
        return row([item])

    shown = rows_of(table(("n",), range(10**7), make, last=3))
    assert shown[-4:] == [["and 9,999,980 more"], ["9999997"], ["9999998"], ["9999999"]]
    assert len(looked) == ROWS


def test_names_are_listed_up_to_a_number():
    assert listing([f"c{i}" for i in range(3)]) == "c0, c1, c2"
    assert listing(range(1000), 2) == "0, 1, and 998 more"
    assert cut(range(5), 3, 1) == ([0, 1], 2, [4])


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"), (2**52, "4096.0 TiB")],
)
def test_bytes_have_units(nbytes, shown):
    assert size(nbytes) == shown


# -- objects that fail -------------------------------------------------------------------------------------------------


def test_what_cannot_be_shown_says_why_and_never_raises():
    def fail():
        raise ValueError("<script>alert(1)</script>\x00")

    shown = guarded(object(), fail)
    root = ElementTree.fromstring(shown)
    assert "It cannot be shown: ValueError: <script>alert(1)</script>\ufffd" in "".join(root.itertext())
    assert not list(root.iter("script"))
    assert guarded(1, lambda: page("a", "b", line("c"))).startswith("<div")


# -- colours -----------------------------------------------------------------------------------------------------------

# How eyes without one kind of cone see linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
EYES = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def lab(rgb: list[float]) -> tuple[float, float, float]:
    def root(part: float) -> float:
        return part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116

    r, g, b = (min(1.0, max(0.0, part)) for part in rgb)
    x = root((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047)
    y = root(0.2126 * r + 0.7152 * g + 0.0722 * b)
    z = root((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one: str, other: str, eye: str) -> float:
    """How different two colours look (CIE 1976); 2 is just seen."""
    seen = [[sum(a * b for a, b in zip(line, linear(c), strict=True)) for line in EYES[eye]] for c in (one, other)]
    return math.dist(lab(seen[0]), lab(seen[1]))


@pytest.mark.parametrize("device", ["", "cpu:0", *GPUS, "sim:0", "mps:0", "xpu:3", "tpu:1", "no_such_kind:99999"])
def test_text_on_a_colour_can_be_read(device):
    fill, ink = colours(device)
    assert contrast(fill, ink) >= 4.5
    assert colours(device) == colours(device)


@pytest.mark.parametrize("eye", EYES)
def test_device_colours_differ_for_every_kind_of_colour_vision(eye):
    fills = [colours(device).fill for device in ["cpu:0", *GPUS]]
    assert min(apart(one, other, eye) for one, other in itertools.combinations(fills[:5], 2)) > 24
    assert min(apart(one, other, eye) for one, other in itertools.combinations(fills, 2)) > 13


def test_a_badge_is_marked_with_its_device():
    assert 'data-anyaccel-device="gpu:1"' in badge("gpu:1")
    nowhere = badge("", "as set by the phase")
    assert "data-anyaccel-device" not in nowhere and NOWHERE.fill in nowhere and ">as set by the phase<" in nowhere
