"""MapSource: data sets that give one row for one number, so that a phase's own sampler says which and in which order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel.data.readers.hf_datasets import has_table
from anyaccel.data.roles import Names, listed
from anyaccel.data.streaming.base import EXAMPLE_ROWS, Columns, Source
from anyaccel.data.streaming.batch_schema import Column, Kind
from anyaccel.data.streaming.batch_structure import parts_of
from anyaccel.data.streaming.not_a_source import instead_of
from anyaccel.data.streaming.source_errors import error_context, failed
from anyaccel.data.streaming.to_numpy import anything, arrays_of, numbers
from anyaccel.errors import SourceError


class MapSource(Source):
    """Rows of a map-style data set, such as torch's `Dataset`: `len(dataset)` of them, `dataset[i]` is one.

    They have numbers, so that samplers draw from them as from a feature set: the same seed gives the same order.

    Args:
        label: the label of the feature set that the graph is wired to, or of the source's own `example`.
        dataset: what has `__len__` and `__getitem__`. An item gives its columns by name (a mapping, data class or named
            tuple), by position (a tuple or list: features, then targets, then tags), or is the only one itself; values
            are numbers, arrays, or tensors of any framework whose plugin is there.
        features, targets, tags: names of columns by role.
        workers: threads that read items at the same time. 0, the default, reads one after the other, as most data sets
            are not made for threads; more help where items are waited for (files, a network) or made by code that
            releases Python's lock. Not used where the data set has `__getitems__`, which gets all numbers at once.

    Raises:
        DataError: a label that is not text or has a dot.
        ColumnError: roles that cannot be.
        SourceError: `dataset` is no such data set, or has no rows; or `workers` is below 0.
    """

    repeats = True

    def __init__(
        self,
        label: str,
        dataset: Any,
        *,
        features: Names,
        targets: Names = (),
        tags: Names = (),
        workers: int = 0,
    ) -> None:
        super().__init__(label, features, targets, tags)
        self._dataset = dataset
        self._rows = _length(label, dataset)
        self._workers = _checked_workers(label, workers)
        self._kinds: dict[str, Kind] = {}
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        """Rows of the data set, as counted when the source was made."""
        return self._rows

    def gather(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """Some rows, in the order of their numbers, as arrays in host memory by column name, [len(indices), *shape].

        May be called from several threads; the data set is asked by one at a time, unless there are `workers`.

        Raises:
            SourceError: no numbers or one that is out of range, an item that cannot be read or taken, or one of
                another shape or dtype than the first.
        """
        wanted = self._checked(indices)
        names = list(self._roles)
        parts = [
            parts_of(_Row(self._label, row), item, names).values
            for row, item in zip(wanted, self._items(wanted), strict=True)
        ]
        columns = {name: self._stacked(name, [part[name] for part in parts], wanted) for name in names}
        self._keep_example(columns)
        return columns

    def _first(self) -> Columns:
        return self.gather(range(min(self._rows, EXAMPLE_ROWS)))

    def _checked(self, indices: Sequence[int] | np.ndarray) -> list[int]:
        wanted = np.asarray(indices)
        if wanted.ndim != 1 or not wanted.size or wanted.dtype.kind not in "iu":
            raise SourceError(
                f"rows of source {self._label!r} were asked for by {wanted.dtype}{list(wanted.shape)}",
                available="numbers of rows, at least one",
            )
        low, high = int(wanted.min()), int(wanted.max())
        if low < 0 or high >= self._rows:
            raise SourceError(
                f"source {self._label!r} has no row {low if low < 0 else high}", available=f"rows 0 to {self._rows - 1}"
            )
        return [int(row) for row in wanted]

    def _items(self, rows: list[int]) -> list[Any]:
        if callable(getattr(self._dataset, "__getitems__", None)):
            return self._together(rows)
        if self._workers < 2 or len(rows) < 2:
            with self._lock:
                return [self._item(row) for row in rows]
        return _by_threads(self._item, rows, self._workers)

    def _item(self, row: int) -> Any:
        try:
            return self._dataset[row]
        except Exception as error:
            raise failed(f"{_Row(self._label, row)} could not be read", error) from error

    def _together(self, rows: list[int]) -> list[Any]:
        what = f"rows {listed(rows)} of source {self._label!r}"
        try:
            with self._lock:
                items = list(self._dataset.__getitems__(rows))
        except Exception as error:
            raise failed(f"{what} could not be read", error) from error
        if len(items) != len(rows):
            raise SourceError(
                f"{what}: __getitems__ gave {len(items)} items for {len(rows)} numbers",
                available="it gives a list with one item for each number",
                hint="correct __getitems__, or leave it out",
            )
        return items

    def _stacked(self, name: str, values: list[Any], rows: list[int]) -> np.ndarray:
        where = f"rows {listed(rows)} of source {self._label!r}"
        with error_context(where):
            if self._roles[name] == "tag":
                return anything(name, values)
            arrays = arrays_of(name, values)
            column = numbers(name, values) if any(one is None for one in arrays) else self._alike(name, arrays, rows)
        if name not in self._kinds:
            self._kinds[name] = Kind.of(column)
        self._kinds[name].check(Column(name, where), column)
        return column

    def _alike(self, name: str, arrays: Sequence[Any], rows: list[int]) -> np.ndarray:
        """Arrays of one kind in one; the first that is of another is named."""
        shape, dtype = arrays[0].shape, arrays[0].dtype
        if not all(array.shape == shape and array.dtype == dtype for array in arrays):
            wanted = self._kinds.get(name) or Kind(shape, dtype)
            for row, array in zip(rows, arrays, strict=True):
                wanted.check(Column(name, _Row(self._label, row)), array[None])
        return numbers(name, np.stack(arrays))


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a source, for messages."""

    label: str
    number: int

    def __str__(self) -> str:
        return f"row {self.number} of source {self.label!r}"


def _by_threads(read: Callable[[int], Any], rows: list[int], workers: int) -> list[Any]:
    """Items read by several threads, which have ended when this returns or raises, Ctrl-C included."""
    stop, count = threading.Event(), min(workers, len(rows))
    found: list[Any] = [None] * len(rows)

    def work(start: int) -> None:
        try:
            for position in range(start, len(rows), count):
                if stop.is_set():
                    return
                found[position] = read(rows[position])
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(count, thread_name_prefix="anyaccel-items") as pool:
        try:
            for done in [pool.submit(work, start) for start in range(count)]:
                done.result()
        finally:
            stop.set()
    return found


def _length(label: str, dataset: Any) -> int:
    is_table = has_table(dataset)  # read row by row on purpose: with functions of its own, say
    remedy = "" if is_table else instead_of(dataset)
    if remedy or isinstance(dataset, Mapping) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise SourceError(
            f"the {type(dataset).__name__} of source {label!r} is no data set of items",
            available="one has __len__ and __getitem__, which gives one row",
            hint=remedy or "write IterableSource(label, source, ...) for what gives batches by itself",
        )
    try:
        rows = len(dataset)
    except Exception as error:
        raise failed(f"the length of source {label!r} cannot be told", error) from error
    if not rows:
        raise SourceError(f"source {label!r} has no rows", hint="give data with at least one row")
    return rows


def _checked_workers(label: str, workers: Any) -> int:
    if isinstance(workers, bool) or not hasattr(workers, "__index__") or workers < 0:
        raise SourceError(
            f"source {label!r}: workers={workers!r} is no number of threads", hint="write workers=0, or a few"
        )
    return int(workers)
