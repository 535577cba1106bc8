"""MapSource: map-style data sets; the phase's own sampler chooses and orders the rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import constructor_hints
from anyaccel.data.arrow_columns import Pad, mask_dtype
from anyaccel.data.readers.hf_datasets import has_table
from anyaccel.data.roles import Names, listed
from anyaccel.data.streaming.base import EXAMPLE_ROWS, Columns, Source
from anyaccel.data.streaming.batch_schema import BatchSchema, batch_parts, rows_of, source_pads
from anyaccel.data.streaming.random_states import RandomStates, same_states, watched_rng
from anyaccel.data.streaming.source_errors import data_hint, error_context, failed
from anyaccel.data.streaming.to_numpy import all_as_numpy, number_array, tag_array
from anyaccel.errors import SourceError

_COLLATED = 256
"""Items that are collated together where all rows are read into memory."""


@constructor_hints
class MapSource(Source):
    """Read rows of a map-style data set, such as torch's `Dataset`, with `len(dataset)` and `dataset[i]`.

    The rows are numbered, so samplers draw from them as from a feature set: the same seed produces the same order.

    Args:
        label: Label of the feature set that the graph is connected to, or of the source's own `example`.
        dataset: Object with `__len__` and `__getitem__`. An item has its columns by name (a mapping, data class or
            named tuple), by position (a tuple or list: features, then targets, then tags), or is the only column
            itself. Values are numbers, arrays, or tensors of any framework whose plugin is installed.
        features, target, tags: Names of columns by role.
        pad: For each column whose rows differ in length: the padding value, as a number or a Pad. Each batch is padded
            to its longest row.
        collate: Function that turns a list of items into a batch, like the `collate_fn` of a torch DataLoader. A batch
            has the same forms as in an IterableSource.
        workers: Number of threads that read items at the same time. 0, the default, reads one item at a time, because
            most data sets are not thread-safe. More threads help if items come from files or a network, or from code
            that releases Python's lock. Not used if the data set has `__getitems__`, which receives all numbers
            together.

    Raises:
        DataError: a label that is not text or has a dot.
        ColumnError: invalid roles.
        SourceError: `dataset` is not a map-style data set, or has no rows; or `workers` is below 0.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> class Squares:
        ...     def __len__(self):
        ...         return 100
        ...     def __getitem__(self, i):
        ...         return {"x": np.float32([i / 100]), "y": np.float32([(i / 100) ** 2])}
        >>> source = aa.MapSource("squares", Squares(), features=["x"], target=["y"])
        >>> source.rows, source.gather([0, 50])["y"].shape
        (100, (2, 1))
    """

    repeats = True

    def __init__(
        self,
        label: str,
        dataset: Any,
        *,
        features: Names,
        target: Names = (),
        tags: Names = (),
        workers: int = 0,
        pad: Mapping[str, float | Pad] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(label, features, target, tags)
        self._given = list(self._roles)
        self.pads = source_pads(label, pad, self._roles, masks=collate is None)
        self._masks = {pad.mask: name for name, pad in self.pads.items() if pad.mask is not None}
        self._roles.update(dict.fromkeys(self._masks, "feature"))
        self.pads.update({mask: replace(self.pads[name], value=0, mask=None) for mask, name in self._masks.items()})
        if collate is not None and not callable(collate):
            raise SourceError(
                f"source {label!r}: collate={shown(collate)} is not a function", hint="write collate=lambda items: ..."
            )
        self.collate = collate
        self._schema = BatchSchema(self._roles, self.pads)
        self._dataset = dataset
        hint = "" if has_table(dataset) else data_hint(dataset)
        if (
            hint
            or isinstance(dataset, Mapping)
            or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"))
        ):
            raise SourceError(
                f"the {type(dataset).__name__} of source {label!r} is not a map-style data set",
                cause="a map-style data set has __len__ and __getitem__, which returns one row",
                hint=hint or "write IterableSource(label, source, ...) for a source of batches",
            )
        try:
            rows = len(dataset)
        except Exception as error:
            raise failed(f"the length of source {label!r} cannot be read", error) from error
        if not rows:
            raise SourceError(f"source {label!r} has no rows", hint="pass data with at least one row")
        self._rows = rows
        if not is_integer(workers) or workers < 0:
            raise SourceError(
                f"source {label!r}: workers={shown(workers)} is not a number of threads",
                hint="write workers=0, or a few",
            )
        self._workers = int(workers)
        self._lock = threading.Lock()
        self._random_states = RandomStates((dataset, collate))

    @property
    def rows(self) -> int:
        """Number of rows of the data set, counted when the source was created."""
        return self._rows

    def gather(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """Return some rows, in the order of their numbers, as arrays in host memory by column name, [len(indices),
        *shape].

        Several threads may call it; they read the data set one at a time, unless there are `workers`.

        Raises:
            SourceError: no numbers or one out of range, an item that cannot be read or converted, or one with another
                shape or dtype than the first.
        """
        array = np.asarray(indices)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            raise SourceError(
                f"rows of source {self._label!r} must be integers [k], k > 0, got {array.dtype}{list(array.shape)}",
                hint="write gather([0, 1])",
            )
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self._rows:
            raise SourceError(
                f"source {self._label!r} has no row {low if low < 0 else high}",
                available=f"rows 0 to {self._rows - 1}",
                hint="number the rows from 0",
            )
        numbers = [int(number) for number in array]
        columns = dict(self._columns(numbers) if self.collate is None else self._collated(numbers))
        position = f"rows {listed(numbers)} of source {self._label!r}"
        with error_context(position):
            for name in self.pads if self.collate is None else ():
                columns[name] = self._schema.pad(name, position, columns[name])
        self._keep_example(columns)
        return columns

    def _columns(self, numbers: list[int]) -> dict[str, Any]:
        """Return some rows by column name: arrays [n, *shape], or lists of arrays if rows differ in length."""
        items = zip(numbers, self._items(numbers), strict=True)
        parts = [
            batch_parts(_RowPosition(self._label, number), item, self._given, self.left_out).values
            for number, item in items
        ]
        columns: dict[str, Any] = {}
        for name in self._given:
            values = [part[name] for part in parts]
            columns[name] = rows_of(name, values) if name in self.pads else self._stacked(name, values, numbers)
        for mask, name in self._masks.items():
            columns[mask] = [np.ones(len(row), mask_dtype(row.dtype)) for row in columns[name]]
        return columns

    def _collated(self, numbers: list[int]) -> Columns:
        assert self.collate is not None
        position = f"the batch of rows {listed(numbers)} of source {self._label!r}"
        try:
            batch = self.collate(self._items(numbers))
        except SourceError:
            raise
        except Exception as error:
            raise failed(f"{position} could not be collated", error) from error
        columns = self._schema.convert(position, batch, self.left_out)
        rows = len(next(iter(columns.values())))
        if rows != len(numbers):
            raise SourceError(
                f"{position}: collate returned {rows} rows for {len(numbers)} items",
                cause="a batch needs one row for each item",
                hint="return one row per item, in the same order",
            )
        return columns

    def read(self) -> dict[str, Any]:
        """Return all rows by column name: arrays [n, *shape], or lists of arrays if rows differ in length.

        `collate` receives a few hundred items at a time.

        Raises:
            SourceError: an item that cannot be read or converted.
        """
        if self.collate is None:
            return self._columns(list(range(self._rows)))
        starts = range(0, self._rows, _COLLATED)
        parts = [self._collated(list(range(start, min(start + _COLLATED, self._rows)))) for start in starts]
        return {
            name: [row for part in parts for row in part[name]]
            if name in self.pads
            else np.concatenate([part[name] for part in parts])
            for name in self.columns
        }

    def _first(self) -> Columns:
        workers, self._workers = self._workers, 0  # what a thread of a pool draws is not seen
        try:
            with watched_rng() as passed:
                rows = self.gather(range(min(self._rows, EXAMPLE_ROWS)))
            self.passes_thread_rng = passed()
            if workers > 1 and self._seeds_host_generators():
                workers = 0
        finally:
            self._workers = workers
        return rows

    def _seeds_host_generators(self) -> bool:
        """Whether a row leaves NumPy's or Python's generator in one state, wherever it stood before."""
        hosts, states = RandomStates(()), []
        for rows in ([], [0], [0]):
            if rows:
                self.gather(rows)
            states.append(hosts.states())
        before, first, second = states
        return any(
            not same_states({name: before[name]}, {name: first[name]})
            and same_states({name: first[name]}, {name: second[name]})
            for name in before
        )

    def _items(self, numbers: list[int]) -> list[Any]:
        if callable(getattr(self._dataset, "__getitems__", None)):
            what = f"rows {listed(numbers)} of source {self._label!r}"
            try:
                with self._lock:
                    items = list(self._dataset.__getitems__(numbers))
            except Exception as error:
                raise failed(f"{what} could not be read", error) from error
            if len(items) != len(numbers):
                raise SourceError(
                    f"{what}: __getitems__ returned {len(items)} items for {len(numbers)} numbers",
                    cause="it must return a list with one item for each number",
                    hint="correct __getitems__, or leave it out",
                )
            return items
        if self._workers < 2 or len(numbers) < 2 or self.passes_thread_rng:
            with self._lock:
                return [self._item(number) for number in numbers]
        # Several threads, which have ended when this returns or raises, even after Ctrl-C.
        stop, count = threading.Event(), min(self._workers, len(numbers))
        items = [None] * len(numbers)

        def read_share(start: int) -> None:
            try:
                for position in range(start, len(numbers), count):
                    if stop.is_set():
                        return
                    items[position] = self._item(numbers[position])
            except BaseException:
                stop.set()
                raise

        with ThreadPoolExecutor(count, thread_name_prefix="anyaccel-items") as pool:
            try:
                for future in [pool.submit(read_share, start) for start in range(count)]:
                    future.result()
            finally:
                stop.set()
        return items

    def _item(self, number: int) -> Any:
        try:
            return self._dataset[number]
        except Exception as error:
            raise failed(f"{_RowPosition(self._label, number)} could not be read", error) from error

    def _stacked(self, name: str, values: list[Any], numbers: list[int]) -> np.ndarray:
        position = f"rows {listed(numbers)} of source {self._label!r}"
        with error_context(position):
            if self._roles[name] == "tag":
                return tag_array(name, values)
            arrays = all_as_numpy(name, values)
            uniform = [array for array in arrays if array is not None]
            if len(uniform) < len(arrays):
                column = number_array(name, values)
            else:
                shape, dtype = uniform[0].shape, uniform[0].dtype
                if not all(array.shape == shape and array.dtype == dtype for array in uniform):
                    spec = self._schema.spec_of(name, uniform[0][None])  # a refused batch sets none for others
                    for number, array in zip(numbers, uniform, strict=True):  # the error has the first that differs
                        spec.check(name, _RowPosition(self._label, number), array[None])
                column = number_array(name, np.stack(uniform))
        self._schema.check(name, position, column)
        return column


@dataclass(frozen=True, slots=True)
class _RowPosition:
    """A row of a source, for messages."""

    label: str
    number: int

    def __str__(self) -> str:
        return f"row {self.number} of source {self.label!r}"
