"""Adding up losses: kept on their devices during an epoch, brought to the host once at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.phases.executor.links import Losses


class Tally:
    """Losses of many steps."""

    def __init__(self) -> None:
        self._kept: list[Losses] = []

    def add(self, losses: Iterable[Losses]) -> None:
        """Keep the losses of some steps; nothing is waited for."""
        self._kept.extend(losses)

    def __len__(self) -> int:
        return len(self._kept)

    def cut(self, length: int) -> None:
        """Forget all but the first so many entries: their steps are done again."""
        del self._kept[length:]

    def means(self) -> dict[str, float]:
        """Means over all that was added, by label, in float64; waits for the devices."""
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        for label, total, weight in [*self._of_calls(), *self._of_pairs()]:
            sums[label] = sums.get(label, 0.0) + total
            weights[label] = weights.get(label, 0.0) + weight
        return {label: sums[label] / weights[label] if weights[label] else float("nan") for label in sums}

    def _of_calls(self) -> Iterator[tuple[str, float, float]]:
        """Label, sum and weight for each call of many steps, in which a mean weighs as much as its batch."""
        for losses in self._kept:
            if losses.pairs is None:
                means = np.asarray(losses.backend.to_host(losses.means), dtype=np.float64)[: losses.count]
                for label, column in zip(losses.labels, means.T, strict=True):
                    yield label, float(column.sum()) * losses.batch, float(len(column) * losses.batch)

    def _of_pairs(self) -> Iterator[tuple[str, float, float]]:
        """Label, sum and weight for each step, brought over together from each backend."""
        found: dict[ComputingBackend, list[tuple[str, object, object]]] = {}
        for losses in self._kept:
            pairs = [(label, *pair) for label, pair in (losses.pairs or {}).items()]
            found.setdefault(losses.backend, []).extend(pairs)
        for backend, triples in found.items():
            totals = _numbers(backend, [total for _, total, _ in triples])
            weights = _numbers(backend, [weight for _, _, weight in triples])
            yield from zip((label for label, _, _ in triples), totals, weights, strict=True)


def _numbers(backend: ComputingBackend, values: Sequence[object]) -> list[float]:
    """Scalars of devices, and plain numbers among them, as plain numbers."""
    there = [value for value in values if not isinstance(value, (int, float))]
    found = iter(backend.scalars(there).tolist() if there else ())
    return [float(value) if isinstance(value, (int, float)) else next(found) for value in values]
