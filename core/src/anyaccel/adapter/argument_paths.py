"""ArgumentPaths: where inputs go in a model's call, and which of their axes is the batch there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from anyaccel.segment import Path


class ArgumentPaths(tuple[Path, ...]):
    """Paths of inputs, as `Operation.arguments`, for a model that has the batch on another axis than the first.

    Only backends whose `Compute.moves_batch_axis` is true get these; `CallLayout` heeds them.

    Attributes:
        batch_axes: for each input, the axis of the batch in the argument; inputs themselves are batch first.
    """

    batch_axes: tuple[int, ...]

    def __new__(cls, paths: Iterable[Path], batch_axes: Iterable[int]) -> Self:
        made = super().__new__(cls, paths)
        made.batch_axes = tuple(batch_axes)
        return made

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and batch_axes_of(other) == self.batch_axes

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.batch_axes))

    def __reduce__(self) -> Any:
        return ArgumentPaths, (tuple(self), self.batch_axes)


def is_positional(arguments: Sequence[Path]) -> bool:
    """Whether inputs are the positional arguments of a call, in their order."""
    return tuple(arguments) == tuple((i,) for i in range(len(arguments)))


def batch_axes_of(arguments: Any) -> tuple[int, ...]:
    """The axes of the batch of some arguments; `()` where all are batch first."""
    return arguments.batch_axes if isinstance(arguments, ArgumentPaths) else ()
