"""Pictures that pages show are well formed, readable on any page, and load nothing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pictures
import pytest

STATIC = Path(__file__).parents[2] / "docs/_static"
PICTURES = sorted(STATIC.rglob("*.svg"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_loads_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text.partition("?>")[2] if text.startswith("<?xml") else text)
    assert not re.search(r"<script|@font-face|@import|<image|(?:href|src)=\"http", text)


def test_the_terminal_shows_the_demo_and_a_plan() -> None:
    words = re.sub(r"<[^>]+>|&#160;", " ", (STATIC / "terminal.svg").read_text(encoding="utf-8"))
    text = " ".join(words.split())
    for shown in ("anyaccel demo", "test accuracy", "plan of 'train'", "jax cpu:0", "by shared memory"):
        assert shown in text.replace("&#x27;", "'")


def test_the_drawings_are_those_of_the_code() -> None:
    for draw in pictures.DRAWINGS:
        assert (STATIC / f"{draw.__name__}.svg").read_text(encoding="utf-8") == draw(), "run docs/_sphinx/pictures.py"


@pytest.mark.parametrize("name", ["loop", "lifecycle", "placement", "streams", "replicas"])
def test_a_drawing_fits_a_phone_and_brings_its_own_background(name: str) -> None:
    drawing = ElementTree.fromstring((STATIC / f"{name}.svg").read_text(encoding="utf-8"))
    assert drawing.get("width") == "400"
    first = drawing[0]
    assert (first.get("width"), first.get("height")) == (drawing.get("width"), drawing.get("height"))
    assert first.get("fill") == "#F4F6F8"
