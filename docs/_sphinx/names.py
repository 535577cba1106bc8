"""The directive `names`: tables of everything that pages of the reference document, with a line for each name.

`.. names:: data graph` lists the entries of these pages, by module. Every page of `reference/api` opens with such a
table of itself. A line is the first sentence of a docstring, taken from the page that was built from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

FOLDER = "reference/api/"
FEWEST = 3  # entries of a page that opens with a table


class Listed(nodes.General, nodes.Element):
    """The place of a table, until all pages are read."""


class Names(SphinxDirective):
    """`.. names:: data graph`"""

    required_arguments = 1
    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        """Mark the place."""
        return [Listed("", pages=self.arguments)]


def first_sentence(content: nodes.Element) -> list[nodes.Node]:
    """The nodes of the first sentence of an entry, without links."""
    paragraph = content.next_node(nodes.paragraph)
    kept: list[nodes.Node] = []
    for node in paragraph.children if paragraph else []:
        if not isinstance(node, nodes.Text):
            is_code = isinstance(node, nodes.literal) or node.next_node(nodes.literal)
            kept.append((nodes.literal if is_code else nodes.inline)("", node.astext()))
            continue
        sentence, end, _ = node.astext().replace("\n", " ").partition(". ")
        kept.append(nodes.Text(sentence + end.strip()))
        if end:
            break
    return kept


def entries(doctree: nodes.document) -> Iterable[tuple[str, str, str, list[nodes.Node]]]:
    """The module, name, anchor and first sentence of what a page documents, without members."""
    for entry in doctree.findall(addnodes.desc):
        signature = entry.next_node(addnodes.desc_signature)
        if isinstance(entry.parent, addnodes.desc_content) or not signature or not signature.get("ids"):
            continue
        name, content = signature["fullname"], entry.next_node(addnodes.desc_content)
        assert content is not None
        yield signature["module"], name, signature["ids"][0], first_sentence(content)


def keep(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the entries of a page of the reference, which other pages list: reading the page again takes seconds."""
    if app.env.docname.startswith(FOLDER):
        app.env.metadata[app.env.docname]["entries"] = list(entries(doctree))


def tables(app: Sphinx, docname: str, page: str) -> tuple[int, list[nodes.Node]]:
    """How many entries a page has, and a table of them for each module."""
    rows = app.env.metadata[page]["entries"]
    found: list[nodes.Node] = []
    for module, group in groupby(sorted(rows, key=lambda row: row[0]), key=lambda row: row[0]):
        group_node = nodes.tgroup(cols=2)
        group_node += [nodes.colspec(colwidth=30), nodes.colspec(colwidth=70)]
        head = nodes.entry("", nodes.paragraph("", "", nodes.literal("", module)), morecols=1)
        group_node += nodes.thead("", nodes.row("", head))
        body = nodes.tbody()
        for _, name, anchor, sentence in group:
            link = make_refnode(app.builder, docname, page, anchor, nodes.literal("", name))
            cells = [nodes.paragraph("", "", link), nodes.paragraph("", "", *(node.deepcopy() for node in sentence))]
            body += nodes.row("", *(nodes.entry("", cell) for cell in cells))
        group_node += body
        found.append(nodes.table("", group_node, classes=["names"]))
    return len(rows), found


def fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the tables where the directive stands, and at the beginning of a page of the reference."""
    for place in list(doctree.findall(Listed)):
        place.replace_self([node for page in place["pages"] for node in tables(app, docname, FOLDER + page)[1]])
    if docname.startswith(FOLDER):
        count, found = tables(app, docname, docname)
        top = doctree.next_node(nodes.section)
        if count >= FEWEST and top is not None:
            at = next(
                (i for i, node in enumerate(top.children) if i and not isinstance(node, nodes.paragraph)), len(top)
            )
            top[at:at] = found


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_node(Listed)
    app.add_directive("names", Names)
    app.connect("doctree-read", keep)
    app.connect("doctree-resolved", fill)
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
