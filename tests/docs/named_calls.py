"""Calls that a page names: whether what they name exists, and takes these arguments."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any


def code(cell: str) -> list[str]:
    """What is in backticks."""
    return re.findall(r"`([^`]+)`", cell)


ELSEWHERE = object()


class Unknown(Exception):
    """Something that the page names is not there."""


def attribute(node: ast.expr, names: dict[str, Any]) -> Any:
    """The object that an expression of names and attributes refers to; ELSEWHERE if its root is an example's own."""
    if isinstance(node, ast.Name):
        return names.get(node.id, ELSEWHERE)
    if isinstance(node, ast.Attribute):
        owner = attribute(node.value, names)
        if owner is ELSEWHERE:
            return ELSEWHERE
        if not hasattr(owner, node.attr):
            raise Unknown(f"{ast.unparse(node)}")
        return getattr(owner, node.attr)
    return ELSEWHERE


def check(text: str, names: dict[str, Any]) -> int:
    """Look up what an expression names, and the arguments of its calls; how many names of ours it has."""
    n_checked = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and attribute(node, names) is not ELSEWHERE:
            n_checked += 1
        if isinstance(node, ast.Call):
            called = attribute(node.func, names)
            assert called is not ELSEWHERE, f"{text}: what is called is not of ours"
            signature = inspect.signature(called.__init__ if isinstance(called, type) else called)
            arguments = {keyword.arg: None for keyword in node.keywords}
            try:
                signature.bind(*([None] if isinstance(called, type) else []), *node.args, **arguments)
            except TypeError as error:
                raise Unknown(f"{text}: {error}") from error
    return n_checked
