"""Evaluation rows: what an EvalPhase or FitPhase computes: rows as they are, or what a sampler draws of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from anyaccel.data import Rows, Sampler, SimpleSampler
from anyaccel.phases.loading.epoch_batches import RowOrders, StepRows, evaluation_orders


@dataclass(frozen=True, slots=True)
class EvaluationRows:
    """The rows of an evaluation.

    Attributes:
        rows: by feature set, in the order of evaluation; those of a sampler's other streams as `FEATURE_SET@STREAM`.
        orders: the row order of each stream that a sampler draws; other feature sets are taken as they are.
    """

    rows: Mapping[str, Rows]
    orders: RowOrders = field(default_factory=dict)

    @classmethod
    def drawn(cls, samplers: Sampler | Mapping[str, Sampler], rows: Mapping[str, Rows]) -> EvaluationRows:
        """What samplers draw in epoch 0, not shuffled. A SimpleSampler leaves rows as they are.

        Raises:
            SamplerError: nothing can be drawn.
        """
        if isinstance(samplers, SimpleSampler):
            return cls(rows)
        orders = evaluation_orders(samplers, rows)
        taken = dict(rows)
        for (name, stream), order in orders.items():
            if not stream:
                taken[name] = rows[name].take(order)
            elif order is not orders[name, ""]:
                taken[f"{name}@{stream}"] = rows[name].take(order)
        return cls(taken, orders)

    def of(self, feature_set: str, stream: str) -> Rows:
        """The rows of a feature set in a stream, `""` for the first."""
        return self.rows.get(f"{feature_set}@{stream}", self.rows[feature_set])

    def steps(self, batch_size: int) -> Iterator[StepRows]:
        """What each step takes: up to `batch_size` rows of every feature set that has some left."""
        counts = {name: len(rows) for name, rows in self.rows.items() if name.rpartition("@")[0] not in self.rows}
        for start in range(0, max(counts.values()), batch_size):
            yield {name: (start, min(start + batch_size, n)) for name, n in counts.items() if start < n}
