"""Device columns: columns and row orders on the devices where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel.device import Device
from anyaccel.graph import Column, Plan
from anyaccel.phases.loading.epoch_batches import RowOrders, StreamKey
from anyaccel.phases.loading.host_columns import same_array


@dataclass(frozen=True, slots=True)
class DeviceColumn:
    """A column on its device.

    Attributes:
        rows: a tensor [n, ...] of its framework.
        order: row numbers in the order in which steps take them, on the same device; None for rows as they lie.
        feature_set: where the rows come from.
    """

    rows: Any
    order: Any
    feature_set: str


DeviceColumns = Mapping[str, DeviceColumn]
"""By value name."""


def stream_of(column: Column) -> StreamKey:
    """The feature set of a column and the stream that it is read from, `""` for the first."""
    return column.feature_set, column.stream


def with_orders(columns: Iterable[Column], rows: Mapping[str, Any], orders: Mapping[str, Any]) -> DeviceColumns:
    """Tensors and row orders on devices, both by value name, put together."""
    return {
        column.name: DeviceColumn(rows[column.name], orders.get(column.name), column.feature_set) for column in columns
    }


def load(
    plan: Plan, arrays: Mapping[str, np.ndarray], on_loaded: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Put host columns on their devices; columns that are one array in one place are copied once.

    Args:
        plan: which columns go where.
        arrays: the columns, by value name; writeable ones are given away.
        on_loaded: is called with the bytes of each column when it is there.

    Raises:
        OutOfMemoryError: no room.
    """
    tensors: dict[str, Any] = {}
    for column in plan.columns:
        same = next((other for other in plan.columns if other.name in tensors and same_array(other, column)), None)
        if same is not None and arrays[same.name] is arrays[column.name]:
            tensors[column.name] = tensors[same.name]
            continue
        backend, array = column.backend, arrays[column.name]
        if array.flags.writeable and not column.pinned:  # a copy of ours; what a feature set owns is read-only
            tensors[column.name] = backend.from_host_owned(array, column.device)
        else:
            tensors[column.name] = backend.from_host(array, column.device, pinned=column.pinned)
        if on_loaded is not None:
            on_loaded(array.nbytes)
    return tensors


def load_orders(columns: Iterable[Column], orders: RowOrders) -> dict[str, Any]:
    """Row orders on the devices of the columns that they belong to, by value name: the only copy of a resident epoch.

    Columns without an order are left out. An order goes to each device once, however many columns read it.
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
