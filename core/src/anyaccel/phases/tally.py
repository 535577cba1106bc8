"""Adding up losses: kept on their devices during an epoch, brought to the host once at its end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anyaccel.phases.chain import Losses


class Tally:
    """Losses of many steps."""

    def __init__(self) -> None:
        self._kept: list[Losses] = []

    def add(self, losses: Iterable[Losses]) -> None:
        """Keep the losses of some steps; nothing is waited for."""
        self._kept.extend(losses)

    def means(self) -> dict[str, float]:
        """Means over all that was added, by label, in float64; waits for the devices."""
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        for losses in self._kept:
            for label, total, weight in _host(losses):
                sums[label] = sums.get(label, 0.0) + total
                weights[label] = weights.get(label, 0.0) + weight
        return {label: sums[label] / weights[label] if weights[label] else float("nan") for label in sums}


def _host(losses: Losses) -> list[tuple[str, float, float]]:
    if losses.pairs is not None:
        sums = losses.backend.scalars([total for total, _ in losses.pairs.values()])
        return [
            (label, float(total), _weight(losses, weight))
            for total, (label, (_, weight)) in zip(sums, losses.pairs.items(), strict=True)
        ]
    means = np.asarray(losses.backend.to_host(losses.means), dtype=np.float64)
    return [
        (label, float(column.sum()) * losses.batch, float(len(column) * losses.batch))
        for label, column in zip(losses.labels, means.T, strict=True)
    ]


def _weight(losses: Losses, weight: object) -> float:
    return float(weight) if isinstance(weight, (int, float)) else float(losses.backend.scalars([weight])[0])
