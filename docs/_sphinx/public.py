"""The directive `public`: documents public names of `anyaccel` from the sources, without a list kept by hand.

Each argument is a module of core (`data`: all public names that live there, in the order of `anyaccel.__all__`), a
package of another distribution (`anyaccel_resources`), or one public name (`simulate`).
"""

from __future__ import annotations

import inspect
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import anyaccel
from anyaccel.distributions import NAMES, OFFERED

# Members of these bases are documented with the base alone.
_BASES = "object, ABC, Callback, AnyaccelError"


def names_of(place: str) -> list[str]:
    """The public names that an argument stands for."""
    home = place if place.startswith("anyaccel_") else f"anyaccel.{place}"
    offered = " ".join(OFFERED[NAMES].values()).split()
    return [
        name
        for name in (*anyaccel.__all__, *offered)
        if name == place or _home(name).startswith((home + ".", home + " "))
    ]


def _home(name: str) -> str:
    value = getattr(anyaccel, name)
    return "" if inspect.ismodule(value) else f"{value.__module__} "


def entry(name: str) -> list[str]:
    """The lines that document one public name."""
    if inspect.isclass(getattr(anyaccel, name)):
        return [f".. autoclass:: anyaccel.{name}", "   :members:", f"   :inherited-members: {_BASES}", ""]
    return [f".. autofunction:: anyaccel.{name}", ""]


class Public(SphinxDirective):
    """`.. public:: data digits`"""

    required_arguments = 1
    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        """The entries of all names; an argument without names is an error."""
        lines: list[str] = []
        for place in self.arguments:
            names = names_of(place)
            if not names:
                raise self.error(f"anyaccel has no public names in {place!r}")
            lines += [line for name in names for line in entry(name)]
        parent = nodes.Element()
        parent.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.get_source_info()[0]), self.content_offset, parent)
        return list(parent.children)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("public", Public)
    return {"parallel_read_safe": True}
