"""The documentation shows the code as it is."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def test_the_how_to_shows_placement_as_it_is() -> None:
    source = (HERE / "../src/anyaccel_abacus/placement.py").read_text("utf-8").strip()
    assert source in (HERE / "../../../how-to/write-a-backend.md").read_text("utf-8")
    assert len(source.splitlines()) < 100
