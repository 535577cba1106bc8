"""Loader: the protocol through which a training or evaluation loop gets its rows, and rows that stay on their
devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from anyaccel.data.streaming.random_states import States, from_arrays, to_arrays
from anyaccel.device import Device
from anyaccel.graph import Column, Plan
from anyaccel.phases.loading.epoch_plan import EpochPlan, RowOrders, StepRange, StreamKey


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are on their devices, and the steps that take them.

    Attributes:
        columns: Columns on their devices with their row orders, by value name.
        steps: Steps, as rows of these orders.
        host_orders: The orders in host memory, as rows of the data; empty of a source of batches.
    """

    columns: DeviceColumns
    steps: tuple[StepRange, ...]
    host_orders: RowOrders


class BatchLoader(ABC):
    """The rows of a phase, or of its validation, epoch by epoch.

    Attributes:
        residency: `"resident"`, `"streamed"`, or `"mixed"` where some columns are resident.
        reads_ahead: Whether rows are read before the step before them is done.
        repeatable: Whether an epoch can be loaded again from any step on, with the same rows.
        one_shape: Whether all chunks have columns of one shape, but for the number of their rows.
        n_steps: Steps of an epoch; None if that is not known beforehand.
    """

    residency: ClassVar[str]
    reads_ahead: bool = True
    repeatable: bool = True
    one_shape: bool = True
    n_steps: int | None

    @abstractmethod
    def chunks(self, epoch: int, start_step: int = 0) -> Generator[Chunk]:
        """Return the chunks of an epoch, in sequence; close the generator to leave it early.

        Args:
            epoch: Its number.
            start_step: Steps of the epoch before this one are left out.

        Raises:
            OutOfMemoryError: no room on a device.
            SourceError: a source cannot be read.
        """

    def prefetch(self, epoch: int | None) -> None:
        """Begin to draw the row orders of the next epoch; None drops it."""

    def keep_positions(self) -> None:
        """Be ready for `position` from the next epoch on."""

    def position(self, epoch: int, step: int) -> SourcePosition | None:
        """Return the position of a source after `step` steps of an epoch; None if rows do not come from a source.

        Args:
            epoch: Number of the epoch.
            step: 0 before an epoch begins; otherwise the step of the current chunk, after a call of `keep_positions`.
        """
        return None

    def go_on(self, position: SourcePosition) -> None:
        """Let the next epoch be read from its beginning as in the run that gave a position, and compare the last step.

        `chunks` raises a SourceError where a source does not hold the same generators, or gives other rows.
        """

    def shrink(self) -> bool:
        """Hold less on the devices at once from now on; False if that is not possible."""
        return False

    def limit_rows(self, max_rows: int) -> None:
        """Load at most `max_rows` rows at once, for steps that can be computed as several, such as those of
        evaluations.
        """

    def close(self) -> None:
        """Release everything on devices."""


class LoadedRows:
    """The current rows of a phase or of its validation; both attributes change if the rows do not fit.

    Args:
        loader: Loader of the rows.

    Attributes:
        loader: The argument.
        max_rows: Maximum number of rows that are computed at once; None for whole steps.
    """

    def __init__(self, loader: BatchLoader) -> None:
        self.loader = loader
        self.max_rows: int | None = None

    def make_room(self, error: MemoryError, n_rows: int = 0) -> None:
        """Take less memory from now on, after `n_rows` rows at once did not fit; 0 for whole steps.

        Raises:
            OutOfMemoryError: that is not possible.
        """
        raise error


class ResidentLoader(BatchLoader):
    """Keep all rows on their devices for the duration of the phase; an epoch copies only its row orders.

    Args:
        columns: Columns of the plan.
        tensors: All rows of each column, on its device, by value name.
        plan: Plan of the epochs.
    """

    residency = "resident"

    def __init__(self, columns: Sequence[Column], tensors: Mapping[str, Any], plan: EpochPlan) -> None:
        self.n_steps: int | None = plan.n_steps
        self._columns, self._plan = tuple(columns), plan
        self._tensors: Mapping[str, Any] = tensors
        self._host_orders: RowOrders | None = None
        self._loaded: DeviceColumns = {}

    def chunks(self, epoch: int, start_step: int = 0) -> Generator[Chunk]:
        """Yield one chunk with everything. Row orders equal to those of the previous epoch are not copied again."""
        steps = self._plan.epoch(epoch)
        if self._host_orders is not steps.orders:
            self._loaded, self._host_orders = {}, None  # the orders of the epoch before make room
            self._loaded = with_orders(self._columns, self._tensors, load_orders(self._columns, steps.orders))
            self._host_orders = steps.orders
        yield Chunk(self._loaded, steps.skip(start_step).steps, steps.orders)

    def prefetch(self, epoch: int | None) -> None:
        self._plan.prefetch(epoch)

    def close(self) -> None:
        self._tensors, self._loaded, self._host_orders = {}, {}, None


# -- Device columns: columns and row orders on the devices where they are needed ---------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceColumn:
    """A column on its device.

    Attributes:
        rows: A tensor [n, ...] of its framework.
        order: Row numbers in the order of the steps, on the same device; None for rows in their stored order.
        feature_set: Feature set of the rows.
    """

    rows: Any
    order: Any
    feature_set: str


DeviceColumns = Mapping[str, DeviceColumn]
"""By value name."""


def stream_of(column: Column) -> StreamKey:
    """Return the feature set of a column and its stream, `""` for the first."""
    return column.feature_set, column.stream


def with_orders(columns: Iterable[Column], rows: Mapping[str, Any], orders: Mapping[str, Any]) -> DeviceColumns:
    """Combine tensors and row orders on devices, both by value name."""
    return {
        column.name: DeviceColumn(rows[column.name], orders.get(column.name), column.feature_set) for column in columns
    }


def load(
    plan: Plan, arrays: Mapping[str, np.ndarray], on_loaded: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Put host columns on their devices; an array is copied once to each place.

    Args:
        plan: The plan, with the device of each column.
        arrays: Columns, by value name; ownership of writeable ones is given up.
        on_loaded: Function called with the bytes of each column once it is loaded.

    Raises:
        OutOfMemoryError: no room.
    """
    tensors: dict[str, Any] = {}
    loaded: dict[tuple[int, str, Device, bool], Any] = {}
    for column in plan.columns:
        backend, array = column.backend, arrays[column.name]
        key = (id(array), column.framework, column.device, column.pinned)
        if key not in loaded:
            if array.flags.writeable and not column.pinned:  # a copy of ours; what a feature set owns is read-only
                loaded[key] = backend.from_host_owned(array, column.device)
            else:
                loaded[key] = backend.from_host(array, column.device, pinned=column.pinned)
            if on_loaded is not None:
                on_loaded(array.nbytes)
        tensors[column.name] = loaded[key]
    return tensors


def load_orders(columns: Iterable[Column], orders: RowOrders) -> dict[str, Any]:
    """Return row orders on the devices of their columns, by value name: the only copy of a resident epoch.

    Columns without an order are left out. An order is copied to each device once, for all columns that read it.
    """
    tensors: dict[str, Any] = {}
    copied: dict[tuple[int, str, Device], Any] = {}
    for column in columns:
        order = orders.get(stream_of(column))
        if order is None:
            continue
        key = (id(order), column.framework, column.device)
        if key not in copied:
            backend = column.backend
            copied[key] = backend.from_host(order.astype(backend.index_dtype, copy=False), column.device)
        tensors[column.name] = copied[key]
    return tensors


# -- Source position: where a source is within an epoch, as a checkpoint keeps it --------------------------------------


_TOLERANCE = 1e-3
"""Relative, as other libraries and machines compute transforms of the data to other last bits."""
_VALUES = 8
"""Of each row of a column."""
Sample = Mapping[str, np.ndarray]
"""Some values of the rows of a step, float64 [rows, values], by value name."""


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """The state to continue a source from.

    Attributes:
        draws: Whether it draws random numbers, so that skipped steps are read, too.
        states: States of its generators at the start of the epoch.
        held: These states before the first batch was read, if that was before the epoch began; otherwise None.
        sample: Sample of the last completed step; empty at the start of an epoch.
    """

    draws: bool = False
    states: States = field(default_factory=dict)
    held: States | None = None
    sample: Sample = field(default_factory=dict)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the fields as arrays by name, without `draws`."""
        return {
            **{f"states/{name}": array for name, array in to_arrays(self.states).items()},
            **{f"held/{name}": array for name, array in to_arrays(self.held or {}).items()},
            **{f"sample/{name}": array for name, array in self.sample.items()},
        }

    @classmethod
    def from_arrays(cls, draws: bool, arrays: Mapping[str, np.ndarray]) -> SourcePosition:
        """Rebuild the object from the output of `to_arrays`.

        Raises:
            StateError: it is malformed.
        """
        parts: dict[str, dict[str, np.ndarray]] = {"states": {}, "held": {}, "sample": {}}
        for name, array in arrays.items():
            part, _, rest = name.partition("/")
            if part in parts:
                parts[part][rest] = array
        held = from_arrays(parts["held"]) if parts["held"] else None
        return cls(draws, from_arrays(parts["states"]), held, parts["sample"])


def sample_rows(columns: Iterable[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return some values of each row of arrays [rows, *shape], by name."""
    sample = {}
    for name, array in columns:
        flat = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 0)
        width = flat.shape[1]
        places = np.linspace(0, max(width - 1, 0), min(width, _VALUES)).astype(np.int64)
        sample[name] = flat[:, places].astype(np.float64)
    return sample


def is_close(before: np.ndarray, now: np.ndarray) -> bool:
    """Return whether values of data equal earlier ones, which may have been computed elsewhere."""
    if before.shape != now.shape:
        return False
    if np.array_equal(before, np.rint(before)):  # ids and classes: one that is near is another one
        return bool(np.array_equal(before, now))
    finite = before[np.isfinite(before)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(before, now, rtol=_TOLERANCE, atol=_TOLERANCE * scale * 1e-3, equal_nan=True))
