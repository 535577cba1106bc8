"""What a compiled step is made of, as plain values: two programs with equal plans can share what was compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """How some parameters are updated: a named optimizer, its settings, and the group that is clipped together.

    `start` is how far the step count of these parameters is from that of their node.
    """

    name: str
    settings: tuple[tuple[str, Any], ...]
    clip: float | None
    group: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor that is updated at once: one parameter, or several of one rule and dtype laid end to end.

    `names` and `shapes` are those of the parameters in it, by torch's names in the whole.
    """

    rule: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a step does beside calling the whole.

    `buffers` are those that a forward pass changes, by name; `weights` those of the losses, 0 for a loss that reaches
    no parameter; `written` the inputs that some module writes to; `rest` the number of values beside the inputs;
    `parts` in how many pieces a batch is computed.
    """

    rules: tuple[Rule, ...]
    pieces: tuple[Piece, ...]
    buffers: tuple[str, ...]
    weights: tuple[float, ...]
    written: tuple[int, ...]
    rest: int
    parts: int
