"""Sight: what an evaluation looks at: rows as they are, or what a sampler draws of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from anyaccel.data import Rows, Sampler, SimpleSampler
from anyaccel.phases.loading.epoch_batches import Lane, Turn, in_order


@dataclass(frozen=True, slots=True)
class Sight:
    """The rows of an evaluation.

    Attributes:
        rows: by feature set as they are evaluated; those of a sampler's other streams as `FEATURE_SET@STREAM`.
        orders: for feature sets that a sampler draws from, the order of each stream; others are taken as they are.
    """

    rows: Mapping[str, Rows]
    orders: Mapping[Lane, np.ndarray] = field(default_factory=dict)

    def of(self, name: str, stream: str) -> Rows:
        """The rows of a feature set in a stream, `""` for the first."""
        return self.rows.get(f"{name}@{stream}", self.rows[name])

    def turns(self, batch: int) -> Iterator[Turn]:
        """What each step takes, up to `batch` rows of every feature set that has some left."""
        counts = {name: len(its) for name, its in self.rows.items() if name.rpartition("@")[0] not in self.rows}
        for start in range(0, max(counts.values()), batch):
            yield {name: (start, min(start + batch, count)) for name, count in counts.items() if start < count}


def sight_of(samplers: Sampler | Mapping[str, Sampler], rows: Mapping[str, Rows]) -> Sight:
    """What samplers draw of some rows in epoch 0, not shuffled. A SimpleSampler leaves rows as they are.

    Raises:
        SamplerError: nothing can be drawn.
    """
    if isinstance(samplers, SimpleSampler):
        return Sight(rows)
    orders = in_order(samplers, rows)
    found = dict(rows)
    for (name, stream), order in orders.items():
        if not stream:
            found[name] = rows[name].take(order)
        elif order is not orders[name, ""]:
            found[f"{name}@{stream}"] = rows[name].take(order)
    return Sight(found, orders)
