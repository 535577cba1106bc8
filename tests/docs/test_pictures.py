"""Pictures that pages show are well formed, readable on any page, and load nothing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

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
