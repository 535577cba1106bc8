"""Search: guides are also found by the words that people type, and decision records are left out.

`synonyms.toml` has these words by page, so that the pages stay plain Markdown.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

SYNONYMS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("synonyms.toml").read_text("utf-8"))


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add a page's synonyms to the index, or leave a decision record out of it."""
    if docname.startswith("decisions/"):
        app.env.metadata[docname]["nosearch"] = "1"
    if docname in SYNONYMS:
        title, _, rest = source[0].partition("\n")
        source[0] = f"{title}\n\n```{{index}} {', '.join(f'! {words}' for words in SYNONYMS[docname])}\n```\n{rest}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
