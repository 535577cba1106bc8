"""The documentation shows the code as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_the_how_to_shows_placement_as_it_is() -> None:
    page = HERE / "../../../how-to/write-a-backend.md"
    if not page.exists():
        pytest.skip("this is a copy of the example, away from the documentation")
    source = (HERE / "../src/anyaccel_abacus/placement.py").read_text("utf-8").strip()
    assert source in page.read_text("utf-8")
    assert len(source.splitlines()) < 100
