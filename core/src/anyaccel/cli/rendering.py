"""Templates of new projects: text files beside this module, filled in by `string.Template`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from string import Template

_WIDTH = 120


def rendered(template: str, values: Mapping[str, str]) -> str:
    """A template of the folder `templates`, filled in; every name in it must have a value."""
    return Template(files("anyaccel.cli").joinpath("templates", template).read_text("utf-8")).substitute(values)


def imports(*sections: Mapping[str, Iterable[str]]) -> str:
    """Import statements in the order that linters want.

    Args:
        sections: names by module for each of the standard library, what is installed, and the project itself. A name
            `* as NAME` imports the module itself under that name.
    """
    return "\n\n".join("\n".join(_section(section)) for section in sections if section)


def _section(section: Mapping[str, Iterable[str]]) -> list[str]:
    whole, parts = [], []
    for module, names in sorted(section.items()):
        if not (ordered := sorted(set(names), key=_order)):
            continue
        if ordered[0].startswith("* as "):
            whole.append(f"import {module} as {ordered[0][5:]}".removesuffix(f" as {module}"))
        else:
            parts.append(_whole(module, ordered))
    return whole + parts


def _whole(module: str, names: list[str]) -> str:
    """One line where it fits, else one for each name."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _order(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)
