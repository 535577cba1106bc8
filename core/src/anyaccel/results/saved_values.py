"""Values of results as plain data and arrays, and back: what a folder has of each field; no pickle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

import numpy as np

from anyaccel.data import SavedRows, saved_rows
from anyaccel.data.transforms.plain_state import NotPlainError, PlainReader, plain
from anyaccel.errors import ResultError
from anyaccel.graph import Plan
from anyaccel.results.events import Event
from anyaccel.results.formatting import NamedValues
from anyaccel.results.inverse_transform import original_rows
from anyaccel.results.records import Epoch, Fitted
from anyaccel.results.saved_errors import error_parts, read_error

Arrays = dict[str, np.ndarray]


def parts_of(results: Any, arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Every field of results as plain data, by name; `arrays` gets their arrays, under `prefix`.

    Raises:
        ResultError: a value that no folder can hold.
        TransformError: the rows of results that were loaded without their transforms.
    """
    parts = {}
    for field in fields(results):
        try:
            if field.name == "rows":
                parts[field.name] = _rows(results, arrays, f"{prefix}rows")
            else:
                write = _WRITERS.get(field.name, plain)
                parts[field.name] = write(getattr(results, field.name), arrays, f"{prefix}{field.name}")
        except NotPlainError as error:
            raise ResultError(
                f"run {results.label!r} cannot be saved: {error} is neither numbers nor text",
                hint="leave this output out: EvalPhase(outputs=[...])",
            ) from error
    return parts


def _rows(results: Any, arrays: Arrays, prefix: str) -> dict[str, Any]:
    """The rows of which there are predictions, and those that predictions are compared with."""
    lengths = {len(array) for array in results.predictions.values()}
    columns: dict[str, list[str]] = {}
    for label, names in results.compared.values():
        columns.setdefault(label, []).extend(names)
    return {
        label: saved_rows(rows, original_rows(rows), columns.get(label, ()), arrays, f"{prefix}/{label}")
        for label, rows in results.rows.items()
        if label in columns or len(rows) in lengths
    }


def _by_name(values: Mapping[str, Any], arrays: Arrays, path: str) -> dict[str, Any]:
    return {name: plain(value, arrays, f"{path}/{name}") for name, value in values.items()}


def _epochs(epochs: Iterable[Epoch], arrays: Arrays, path: str) -> list[dict[str, Any]]:
    return [
        {
            name: _by_name(value, arrays, path) if isinstance(value, Mapping) else plain(value, arrays, path)
            for name, value in asdict(epoch).items()
        }
        for epoch in epochs
    ]


_WRITERS: dict[str, Callable[[Any, Arrays, str], Any]] = {
    "plan": lambda plan, arrays, path: None if plan is None else plan.to_dict(),
    "error": lambda error, arrays, path: error_parts(error),
    "started": lambda started, arrays, path: None if started is None else started.isoformat(),
    "events": lambda events, arrays, path: [event.to_dict() for event in events],
    "epochs": _epochs,
    "fitted": lambda fitted, arrays, path: [_by_name(asdict(entry), arrays, path) for entry in fitted],
    "losses": _by_name,
    "metrics": _by_name,
    "predictions": _by_name,
    "compared": lambda compared, arrays, path: {name: [label, list(own)] for name, (label, own) in compared.items()},
    "nodes": lambda nodes, arrays, path: list(nodes),
}


class FieldReader:
    """Reads the fields that `parts_of` wrote.

    Args:
        arrays: by name.
        allow: classes of transforms that may be named besides those known.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], allow: Iterable[type]) -> None:
        self._arrays, self._allow, self._reader = arrays, tuple(allow), PlainReader(arrays)

    def field(self, name: str, given: Any) -> Any:
        """The value of a field.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: malformed (a ConfigError is a ValueError).
        """
        read = _READERS.get(name)
        return self._reader.value(given) if read is None else read(self, given)

    def by_name(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values by name."""
        return {name: self._reader.value(value) for name, value in given.items()}

    def epoch(self, given: Mapping[str, Any]) -> Epoch:
        """An epoch; its losses and figures are mappings."""
        mappings = ("losses", "validation", "step_figures")
        read: dict[str, Any] = {
            name: self.by_name(value) if name in mappings else self._reader.value(value)
            for name, value in given.items()
        }
        return Epoch(**read)

    def rows(self, given: Mapping[str, Any]) -> dict[str, SavedRows]:
        """Rows by label."""
        return {label: SavedRows.read(parts, self._arrays, self._allow) for label, parts in given.items()}


_READERS: dict[str, Callable[[FieldReader, Any], Any]] = {
    "plan": lambda reader, given: None if given is None else Plan.from_dict(given),
    "error": lambda reader, given: read_error(given),
    "started": lambda reader, given: None if given is None else datetime.fromisoformat(given),
    "events": lambda reader, given: tuple(Event(**event) for event in given),
    "epochs": lambda reader, given: tuple(map(reader.epoch, given)),
    "fitted": lambda reader, given: tuple(Fitted(**reader.by_name(entry)) for entry in given),
    "losses": lambda reader, given: NamedValues("loss", reader.by_name(given)),
    "metrics": lambda reader, given: NamedValues("metric", reader.by_name(given)),
    "predictions": lambda reader, given: reader.by_name(given),
    "rows": lambda reader, given: reader.rows(given),
    "compared": lambda reader, given: {name: (label, tuple(columns)) for name, (label, columns) in given.items()},
    "nodes": lambda reader, given: tuple(given),
}
