"""Loss accumulator: losses stay on their devices during an epoch and come to the host once, at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.phases.executor.stage import Losses


class LossAccumulator:
    """Losses of many steps."""

    def __init__(self) -> None:
        self._losses: list[Losses] = []

    def add(self, losses: Iterable[Losses]) -> None:
        """Keep the losses of some steps, without waiting for them."""
        self._losses.extend(losses)

    def __len__(self) -> int:
        return len(self._losses)

    def truncate(self, length: int) -> None:
        """Keep only the first so many entries; the steps of the others are done again."""
        del self._losses[length:]

    def means(self) -> dict[str, float]:
        """Means over all that was added, by label, in float64. Waits for the devices."""
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        for label, total, weight in [*self._of_calls(), *self._of_pairs()]:
            sums[label] = sums.get(label, 0.0) + total
            weights[label] = weights.get(label, 0.0) + weight
        return {label: sums[label] / weights[label] if weights[label] else float("nan") for label in sums}

    def _of_calls(self) -> Iterator[tuple[str, float, float]]:
        """Label, sum and weight for each call of several steps; a mean weighs as much as its batch."""
        for losses in self._losses:
            if losses.pairs is None:
                means = np.asarray(losses.backend.to_host(losses.means), dtype=np.float64)[: losses.n_steps]
                for label, column in zip(losses.labels, means.T, strict=True):
                    yield label, float(column.sum()) * losses.batch_size, float(len(column) * losses.batch_size)

    def _of_pairs(self) -> Iterator[tuple[str, float, float]]:
        """Label, sum and weight for each step, copied together from each backend."""
        by_backend: dict[ComputingBackend, list[tuple[str, object, object]]] = {}
        for losses in self._losses:
            pairs = [(label, *pair) for label, pair in (losses.pairs or {}).items()]
            by_backend.setdefault(losses.backend, []).extend(pairs)
        for backend, triples in by_backend.items():
            totals = _floats(backend, [total for _, total, _ in triples])
            weights = _floats(backend, [weight for _, _, weight in triples])
            yield from zip((label for label, _, _ in triples), totals, weights, strict=True)


def _floats(backend: ComputingBackend, values: Sequence[object]) -> list[float]:
    """Scalars, some on devices and some plain numbers, as plain numbers."""
    tensors = [value for value in values if not isinstance(value, (int, float))]
    copied = iter(backend.scalars(tensors).tolist() if tensors else ())
    return [float(value) if isinstance(value, (int, float)) else next(copied) for value in values]
