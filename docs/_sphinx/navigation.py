"""The navigation of a page is made of titles alone.

The theme asks for a tree of all titles on every page. Sphinx copies the headings of all pages for it, and each name of
the reference, and then deletes them. Here they are deleted once: a third of the time of a build.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def titles_of(contents: nodes.Element) -> nodes.Element:
    """A page's table of contents without its headings, as Sphinx leaves it for a tree of titles."""
    titles = contents.deepcopy()
    for title in titles.children:
        if isinstance(title, nodes.Element) and len(title) > 1:
            if subtrees := list(title.findall(addnodes.toctree)):
                title[1][:] = subtrees
            else:
                title.pop(1)
    return titles


def use_titles(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Make trees of titles from titles."""
    env, tree_of = app.env, context["toctree"]
    if not hasattr(app, "titles"):
        app.titles = {name: titles_of(contents) for name, contents in env.tocs.items()}  # type: ignore[attr-defined]

    def tree(**options: Any) -> str:
        if not options.get("titles_only"):
            return str(tree_of(**options))
        contents, env.tocs = env.tocs, app.titles  # type: ignore[attr-defined]
        try:
            return str(tree_of(**options))
        finally:
            env.tocs = contents

    context["toctree"] = tree


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx; before the theme, which is connected with the usual priority."""
    app.connect("html-page-context", use_titles, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
