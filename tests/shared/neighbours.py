"""Samplers of a user's: rows drawn together in several streams, without conditions between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyaccel.data import EpochOrders, Rows, Sampler


@dataclass(frozen=True)
class Neighbours(Sampler):
    """Each row, `rounds` times, with the next one that has the same value in a column; the first follows the last."""

    streams: ClassVar[tuple[str, ...]] = ("anchor", "pair")

    batch_size: int
    column: str = "label"
    rounds: int = 1
    shuffle: bool = True
    drop_last: bool = False
    seed: int = 0

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        (source,) = [part for part in rows.values() if self.column in part.columns]
        values = source.column(self.column).to_pylist()
        n = len(values)
        following = [next(j % n for j in range(i + 1, i + n + 1) if values[j % n] == values[i]) for i in range(n)]
        orders = [np.repeat(np.arange(n), self.rounds)]
        for _ in self.streams[1:]:
            orders.append(np.array(following)[orders[-1]])
        return EpochOrders(n * self.rounds, lambda epoch: tuple(orders), fixed=not self.shuffle)

    def get_config(self) -> dict[str, Any]:
        raise AssertionError("no test saves it")


class Threes(Neighbours):
    """Each row with the next two that have the same value in a column."""

    streams = ("anchor", "positive", "negative")
