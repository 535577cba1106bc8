"""Run settings: what the order of the rows and the losses of a run follow from; compared when a run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data import Rows
from anyaccel.errors import ConfigError
from anyaccel.graph import ModelGraph, serialization
from anyaccel.phases.loading.source_position import is_close
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.specs import Optimizer

_SAMPLED_ROWS = 16
_SAMPLED_VALUES = 64
"""Of each row of a column."""


def settings_of(phase: PhaseSettings) -> dict[str, Any]:
    """What the steps of a phase follow from besides its graph and its data, as plain data by name."""
    settings = {
        name: setting.compare(getattr(phase, name))
        for name, setting in phase.settings.items()
        if setting.compare is not None and setting.on_resume
    }
    return _as_read(settings)


def sample_of(run: Run) -> dict[str, np.ndarray]:
    """Some values of the columns that a run loads, in the order of the rows, and how many rows there are.

    Args:
        run: whose plan and rows are known. Data that are read as they are needed are no part of it.

    Returns:
        `LABEL` of a feature set: their number, int64 []; `LABEL/COLUMN`: float64 [values], of text its CRC.
    """
    assert run.plan is not None
    in_memory = dict(_in_memory(run))
    sample: dict[str, np.ndarray] = {label: np.array(len(rows)) for label, rows in in_memory.items()}
    for column in run.plan.columns:
        rows = in_memory.get(column.feature_set)
        if rows is not None and not column.ragged:
            some = rows.take(np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLED_ROWS)).astype(np.int64))
            sample.update({f"{column.feature_set}/{name}": _values(some.array(name)) for name in column.columns})
    return sample


def optimizers_of(graph: ModelGraph) -> dict[str, Any]:
    """The configurations of the optimizers of a graph, by node, as plain data; that of all others under "optimizer"."""
    own = {label: optimizer for label, node in graph.nodes.items() if (optimizer := getattr(node, "optimizer", None))}
    given = {"optimizer": graph.optimizer, **own}
    return _as_read({name: _optimizer_settings(optimizer) for name, optimizer in given.items()})


def different_settings(before: Any, now: Any, name: str = "") -> list[str]:
    """What differs between the settings of two runs, as text for people; `name` is that of the settings."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [] if before == now else [f"{name} was {shown(before)} and is {shown(now)}"]
    return [
        difference
        for key in [*before, *(key for key in now if key not in before)]
        for difference in different_settings(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    ]


def different_data(before: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]) -> list[str]:
    """What differs between the samples of the data of two runs, as text for people."""
    differences = []
    for name in sorted({*before} & {*now}):
        if before[name].ndim == 0 and before[name] != now[name]:
            differences.append(f"{name!r} had {int(before[name]):,} rows and has {int(now[name]):,}")
    resized = {name for name in before if before[name].ndim == 0 and before[name] != now.get(name)}
    for name in sorted({*before} & {*now}):
        if before[name].ndim and name.partition("/")[0] not in resized and not is_close(before[name], now[name]):
            differences.append(f"the values of {name!r} changed")
    return differences


def _as_read(settings: dict[str, Any]) -> dict[str, Any]:
    """Plain data as they are read from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _optimizer_settings(optimizer: Optimizer | None) -> dict[str, Any] | None:
    try:
        return serialization.optimizer_entry(optimizer)
    except ConfigError:  # a schedule that is a function
        return None if optimizer is None else {"optimizer": optimizer.name, "lr": optimizer.lr}


def _in_memory(run: Run) -> Iterator[tuple[str, Rows]]:
    """The rows of a run that a user gave as rows, or by the name of a split; a source may begin with others."""
    data = run.phase.data
    for label, rows in run.rows.items():
        given = data.get(label) if isinstance(data, Mapping) else data
        if isinstance(given, (str, Rows)) and len(rows):
            yield label, rows


def _values(array: np.ndarray) -> np.ndarray:
    rows = array.reshape(len(array), -1)[:, :_SAMPLED_VALUES]
    if rows.dtype.kind in "biuf" or rows.dtype.name == "bfloat16":
        return rows.astype(np.float64).ravel()
    return np.array([crc32(repr(value).encode()) for value in rows.ravel().tolist()], np.float64)
