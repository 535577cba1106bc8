"""Gradients of several programs as one list, for groups that exchange them together. For plugins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from anyaccel.program import Program


def gradients_of(programs: Iterable[Program]) -> list[Any]:
    """Return the gradients of programs, unchanged, in the order of `Program.map_gradients`."""
    gradients: list[Any] = []

    def keep(gradient: Any) -> Any:
        gradients.append(gradient)
        return gradient

    for program in programs:
        program.map_gradients(keep)
    return gradients


def replace_gradients(programs: Iterable[Program], gradients: Sequence[Any]) -> None:
    """Let programs have these gradients, in the order of `gradients_of`."""
    left = iter(gradients)
    for program in programs:
        program.map_gradients(lambda _: next(left))
