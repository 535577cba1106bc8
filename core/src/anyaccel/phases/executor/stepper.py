"""Stepper: training steps over rows that are there, in whole calls where a program can do them, else one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anyaccel.backend import MultiStepProgram
from anyaccel.phases.executor.links import Link, Losses


@dataclass(frozen=True, slots=True)
class Stepper:
    """Steps of one portion.

    No closure: the frames of an error would hold it, and with it the columns, for as long as the error is kept.

    Attributes:
        plain: trains steps one by one: (start, count, batch, piece).
        link: the only segment, where there is one whose program takes whole steps; else None.
        program: that program.
        columns: its columns, in the order of its inputs.
        orders: of each of these.
        labels: of its losses.
    """

    plain: Callable[[int, int, int, int | None], list[Losses]]
    link: Link | None = None
    program: MultiStepProgram | None = None
    columns: Sequence[Any] = ()
    orders: Sequence[Any] = ()
    labels: tuple[str, ...] = ()

    def __call__(self, start: int, count: int, batch: int, piece: int | None = None) -> list[Losses]:
        """Train `count` steps of `batch` rows from row `start` of the orders, at most `piece` rows at once."""
        parts = self.parts(batch, piece)
        if parts is None or self.program is None or self.link is None:
            return self.plain(start, count, batch, piece)
        more = () if parts == 1 else (parts,)
        means = self.program.train_steps(self.columns, self.orders, start, count, batch, *more)
        return [Losses(self.link.backend, batch, self.labels, means, count)]

    @property
    def rows(self) -> int:
        """Rows of the orders, as programs are compiled for; 0 where there is no program."""
        return int(self.orders[0].shape[0]) if self.orders else 0

    def parts(self, batch: int, piece: int | None) -> int | None:
        """In how many parts the program takes a step; None if it cannot, or there is none."""
        if self.program is None or piece is None or piece >= batch:
            return None if self.program is None else 1
        return batch // piece if self.program.supports_microbatching and batch % piece == 0 else None

    def compile(self, batch: int, piece: int | None) -> None:
        """Compile steps of `batch` rows.

        Raises:
            CompileError: they cannot be.
        """
        parts = self.parts(batch, piece)
        if self.program is not None and parts is not None:
            self.program.compile(self.columns, self.orders, batch, parts)
