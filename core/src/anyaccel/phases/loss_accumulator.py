"""Loss accumulator: losses stay on their devices during an epoch and are copied to the host once, at its end."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anyaccel.backend import ComputingBackend
from anyaccel.phases.executor.cross_segment import Losses

LossSums = dict[str, tuple[float, float]]
"""Sum and weight, by label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTiming:
    """An epoch, or the rest of one that continues after a checkpoint, without its validation.

    Attributes:
        steps: Optimizer steps.
        samples: Rows that they took, of the feature set with the most; pairs and triplets count as one.
        seconds: Their duration.
    """

    steps: int
    samples: int
    seconds: float


class LossAccumulator:
    """The losses of many steps.

    Args:
        total: Function that returns sums and weights over all rows from those over the rows of this process.

    Attributes:
        weightless: Labels of the losses without any counted value, after a call of `means`: their means are NaN.
    """

    def __init__(self, total: Callable[[Mapping[str, tuple[float, float]]], LossSums] = dict) -> None:
        self._total = total
        self.weightless: tuple[str, ...] = ()
        self._losses: list[Losses] = []
        self._before: dict[str, tuple[float, float]] = {}
        self._calls: list[tuple[int, int, int, int]] = []  # number of entries before, first step, steps, rows of a step

    def add(self, losses: Iterable[Losses], first_step: int = 0, n_steps: int = 1, n_rows: int = 0) -> None:
        """Keep the losses of `n_steps` steps of `n_rows` rows, which one call has done, without waiting for them."""
        self._calls.append((len(self._losses), first_step, n_steps, n_rows))
        self._losses.extend(losses)

    def go_on_after(self, sums: Mapping[str, tuple[float, float]]) -> None:
        """Add to what `sums` gave in an earlier run of this epoch."""
        self._before = dict(sums)

    def __len__(self) -> int:
        return len(self._losses)

    def truncate(self, length: int, step: int) -> None:
        """Keep only the first `length` entries, those of the calls before a step; it and later ones are done again."""
        del self._losses[length:]
        while self._calls and self._calls[-1][1] >= step:
            self._calls.pop()

    def timing(self, seconds: float) -> EpochTiming:
        """Return the number of steps that were added and of their rows, with the duration of all."""
        steps = samples = 0
        for _, _, n_steps, n_rows in self._calls:
            steps, samples = steps + n_steps, samples + n_steps * n_rows
        return EpochTiming(steps=steps, samples=samples, seconds=seconds)

    def means(self) -> dict[str, float]:
        """Return means over everything that was added, by label, in float64. Waits for the devices."""
        means, weightless = dict[str, float](), list[str]()
        for label, (total, weight) in self.sums().items():
            means[label] = total / weight if weight else math.nan
            if weight == 0:
                weightless.append(label)
        self.weightless = tuple(weightless)
        return means

    def sums(self) -> dict[str, tuple[float, float]]:
        """Return sums and weights over everything that was added, by label, in float64. Waits for the devices."""
        new: LossSums = {}
        for losses in self._losses:
            if losses.pairs is None:  # a call of several steps
                means, weights = _host_columns(losses)
                for label, column in means.items():
                    # By default a mean weighs as much as its batch.
                    size = losses.batch_size * losses.elements.get(label, 1)
                    weight = weights.get(label, np.full(len(column), float(size)))
                    _add(new, label, float(column @ weight), float(weight.sum()))
        for _, label, total, weighed in _host_pairs(self._losses):
            _add(new, label, total, weighed)
        sums = dict(self._before)
        for label, pair in self._total(new).items():
            _add(sums, label, *pair)
        return sums

    def first_not_finite(self) -> dict[str, tuple[int, float]]:
        """Return the first step with NaN or infinity, and the value there, by label. Copies the losses to the host
        again.
        """
        first: dict[str, tuple[int, float]] = {}
        for i, losses in enumerate(self._losses):
            call = bisect_right(self._calls, (i, math.inf, 0, 0)) - 1
            begin, step, n_steps, _ = self._calls[call]
            if losses.pairs is None:
                columns = _host_columns(losses)[0]
            else:  # entries of single steps are spread evenly over the steps of a call
                end = self._calls[call + 1][0] if call + 1 < len(self._calls) else len(self._losses)
                step += (i - begin) * n_steps // (end - begin)
                totals = _floats(losses.backend, [total for total, _ in losses.pairs.values()])
                columns = {label: np.array([total]) for label, total in zip(losses.pairs, totals, strict=True)}
            for label, column in columns.items():
                rows = np.flatnonzero(~np.isfinite(column))
                if rows.size and (label not in first or step + rows[0] < first[label][0]):
                    first[label] = step + int(rows[0]), float(column[rows[0]])
        return first


def step_means(losses: Sequence[Losses], n_steps: int) -> dict[str, np.ndarray]:
    """Means [n_steps] of the steps of one call, by label, in float64; NaN where a loss had no rows. Waits for devices.

    Args:
        losses: Losses of the call: one table, or equally many entries for each step.
        n_steps: Number of completed steps.
    """
    if losses and losses[0].means is not None:
        return {label: column[:n_steps] for label, column in _host_columns(losses[0])[0].items()}
    sums: dict[str, np.ndarray] = {}
    for i, label, total, weight in _host_pairs(losses):
        sums.setdefault(label, np.zeros((2, n_steps)))[:, i * n_steps // len(losses)] += total, weight
    with np.errstate(divide="ignore", invalid="ignore"):
        return {label: np.where(weights == 0, np.nan, totals / weights) for label, (totals, weights) in sums.items()}


def _host_pairs(losses: Iterable[Losses]) -> Iterator[tuple[int, str, float, float]]:
    """Yield number of the entry, label, sum and weight of each pair, copied together from each backend."""
    by_backend: dict[ComputingBackend, list[tuple[int, str, object, object]]] = {}
    for i, entry in enumerate(losses):
        for label, (total, weight) in (entry.pairs or {}).items():
            by_backend.setdefault(entry.backend, []).append((i, label, total, weight))
    for backend, backend_pairs in by_backend.items():
        totals = _floats(backend, [total for _, _, total, _ in backend_pairs])
        weights = _floats(backend, [weight for _, _, _, weight in backend_pairs])
        for (i, label, _, _), total, weight in zip(backend_pairs, totals, weights, strict=True):
            yield i, label, total, weight


def _add(sums: LossSums, label: str, total: float, weight: float) -> None:
    before = sums.get(label, (0.0, 0.0))
    sums[label] = before[0] + total, before[1] + weight


def _floats(backend: ComputingBackend, values: Sequence[object]) -> list[float]:
    """Return scalars, some on devices and some plain numbers, as plain numbers."""
    tensors = [value for value in values if not isinstance(value, (int, float))]
    copied = iter(backend.scalars(tensors).tolist() if tensors else ())
    return [float(value) if isinstance(value, (int, float)) else next(copied) for value in values]


def _host_columns(losses: Losses) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the valid means [n_steps], by label, and the weights that belong to them, in host memory."""
    table = np.asarray(losses.backend.to_host(losses.means), dtype=np.float64)[: losses.n_steps].T
    means = dict(zip(losses.labels, table, strict=False))
    return means, dict(zip(losses.weighted, table[len(losses.labels) :], strict=True))
