"""Search: decision records stay out of the index, which is for those who use the library."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def leave_out_decisions(app: Sphinx, docname: str, source: list[str]) -> None:
    """Keep a decision record out of the search index."""
    if docname.startswith("decisions/"):
        app.env.metadata[docname]["nosearch"] = "1"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", leave_out_decisions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
