"""Scripts as pages: the title is the file's name, then come its docstring and the whole script.

So links to scripts work in the site as in the repository.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from docstrings import as_markup
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.parsers import RSTParser


def page_of(name: str, source: str) -> str:
    """The page of a script, as reStructuredText."""
    text = ast.get_docstring(ast.parse(source)) or ""
    lines = [
        ":orphan:",
        "",
        name,
        "=" * len(name),
        "",
        *as_markup(text.splitlines()),
        "",
        f".. literalinclude:: {name}",
    ]
    return "\n".join([*lines, "   :language: python", ""])


class ScriptParser(RSTParser):
    """Reads a Python script as a page."""

    supported = ("script",)

    def parse(self, inputstring: Any, document: nodes.document) -> None:
        """Parse the page instead of the script."""
        super().parse(page_of(Path(document["source"]).name, str(inputstring)), document)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_source_suffix(".py", "script")
    app.add_source_parser(ScriptParser)
    return {"parallel_read_safe": True}
