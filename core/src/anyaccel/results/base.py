"""The base class of the results of every phase."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from anyaccel import saved_folder
from anyaccel.arguments import shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import class_hints
from anyaccel.data import SavedRows, saved_rows
from anyaccel.data.saved_rows import original_rows
from anyaccel.distributions import SAVED, load, saved_names
from anyaccel.errors import ArgumentError, ConfigError, ResultError
from anyaccel.graph import Plan
from anyaccel.graph.serialization import checked_classes
from anyaccel.results import formatting
from anyaccel.results.events import Event
from anyaccel.results.formatting import NamedValues
from anyaccel.results.records import Epoch, Fitted
from anyaccel.results.saved_errors import error_parts, read_error
from anyaccel.saved_folder.plain_values import Arrays, NotPlainError, PlainReader, plain

PART = "results"
"""Name of results in the manifest of a saved folder."""
_HINT = "pass the folder that save() wrote"
_Class = TypeVar("_Class", bound=type)


@class_hints
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class PhaseResults(AttributeHints):
    """The outcome of one run of a phase.

    Attributes:
        label: Label of the phase.
        plan: Where everything was computed; None if the run ended before there was a plan.
        error: The exception that ended the run, or None.
        number: Position in the history of the experiment, from 0.
        started: Start time, UTC.
        seconds: Duration.
        events: Decisions made during the run (compilation, residency), and measures taken when memory ran out.
    """

    attribute_hints: ClassVar[Mapping[str, str]] = {
        "predict predictions_ output outputs y_pred": "use prediction('NODE') of an EvalPhase",
        "accuracy score f1": "use metrics['accuracy'] of an EvalPhase with metrics=['accuracy']",
        "history": "use figures and figure('NAME') of a TrainPhase: figure('loss')",
        "metrics": "a TrainPhase has them per epoch: figure('val_accuracy')",
        "val_loss": "use figure('val_loss') of a TrainPhase with a validation",
        "model graph": "use experiment.graph",
        "df to_df": "use to_pandas()",
    }

    label: str
    plan: Plan | None = None
    error: BaseException | None = None
    number: int | None = None
    started: datetime | None = None
    seconds: float = math.nan
    events: tuple[Event, ...] = ()

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table; the rows depend on the kind of phase."""
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getitem__(self, name: Any) -> Any:
            if isinstance(name, str) and name.isidentifier() and hasattr(self, name):
                hint = f"write results.{name}"
            elif name in getattr(self, "metrics", ()):
                hint = f"write results.metrics[{name!r}]"
            else:
                hint = "write results.to_dict()" if not hasattr(self, "figure") else f"write results.figure({name!r})"
            raise ArgumentError(f"{type(self).__name__} has attributes, not [{name!r}]", hint=hint)

    def to_pandas(self) -> Any:
        """Return the table of `to_arrow` as a pandas DataFrame.

        Raises:
            ResultError: pandas is not installed.
        """
        return formatting.to_pandas(self.to_arrow())

    # -- folders ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that these results show into a folder: a manifest and safetensors; no pickle.

        From the data, targets and tags are written, and features that predictions are compared with; from an error, its
        class and its message. The content of the folder is replaced atomically when everything is written.

        Args:
            folder: The folder, created if it does not exist; or a URL that fsspec opens, such as `s3://bucket/results`.

        Raises:
            ResultError: predictions that are neither numbers nor text.
            ConfigError: the folder has a manifest of something else.
            TransformError: results that were loaded without a transform of their data.
        """
        check_replaceable(folder, PART)
        arrays: dict[str, np.ndarray] = {}
        saved_folder.write(folder, {PART: results_parts(self, arrays)}, arrays)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, allow: Iterable[type] = ()) -> Self:
        """Load the results that `save` wrote, without their models or frameworks. Runs no code of the folder.

        `PhaseResults.load` detects the kind of the results.

        Args:
            folder: A folder that `save` wrote, or its URL.
            allow: Classes of transforms that the folder may name in addition to the known ones, for `undo=True`.

        Raises:
            ConfigError: not such a folder, written by a newer version, or results of another kind of phase.
            StateError: a file was changed or is incomplete.
        """
        classes = checked_classes(allow)
        manifest, arrays = saved_folder.read(folder, PART)
        results = read_results(manifest[PART], arrays, classes)
        if not isinstance(results, cls):
            kind = type(results).__name__
            raise ConfigError(f"these are {kind}, not {cls.__name__}", hint=f"write {kind}.load")
        return results

    def run_record(self) -> dict[str, Any]:
        """Return the entries of every `to_dict`: error, events, number, start (ISO 8601) and duration in seconds."""
        return {
            "error": formatting.error_text(self.error),
            "events": [event.to_dict() for event in self.events],
            "number": self.number,
            "started": self.started.isoformat() if self.started is not None else None,
            **formatting.finite({"seconds": self.seconds}),
        }


def check_replaceable(folder: Any, part: str) -> None:
    """Check that a folder to be written to is new, or has this part already, so that nothing else is lost.

    Raises:
        ConfigError: it holds something else, such as a graph.
    """
    if not saved_folder.is_saved(saved_folder.storage_of(folder)):
        return
    try:
        saved_folder.part(folder, part)
    except ConfigError as error:
        problem = f"{error.problem}, and would be overwritten"
        raise ConfigError(problem, available=error.available, hint="choose a name for a new folder") from None


KINDS: dict[str, type[PhaseResults]] = {}
"""The kinds of results by the name that saved folders have for them."""


def saved_as(kind: str) -> Callable[[_Class], _Class]:
    """Decorate a class of results with the name of its kind."""

    def register(cls: _Class) -> _Class:
        KINDS[kind] = cls
        return cls

    return register


def kind_of(results: PhaseResults) -> str:
    """Return the name of the kind of some results: `"train"`, ..."""
    return next(kind for kind, cls in KINDS.items() if isinstance(results, cls))


def results_parts(results: PhaseResults, arrays: dict[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    """Return results as plain data, ready for JSON; their arrays are added to `arrays`, named with `prefix`.

    Raises:
        ResultError, TransformError: see `PhaseResults.save`.
    """
    return {"kind": kind_of(results), "fields": parts_of(results, arrays, prefix)}


def read_results(parts: Any, arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> PhaseResults:
    """Rebuild results from the output of `results_parts`.

    Raises:
        ConfigError: malformed.
        MissingDistributionError: results of a kind whose distribution is not installed.
    """
    kind = parts.get("kind") if isinstance(parts, Mapping) else None
    cls = KINDS.get(kind) or load(SAVED, f"results.{kind}") if isinstance(kind, str) else None
    if cls is None:
        kinds = sorted({*KINDS, *saved_names("results")})
        raise ConfigError(f"{shown(parts)} are not saved results", available=", ".join(kinds), hint=_HINT)
    reader = FieldReader(arrays, allow)
    try:
        return cls(**{name: reader.field(name, value) for name, value in parts["fields"].items()})
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"the saved results are malformed: {type(error).__name__}: {getattr(error, 'problem', error)}"
        raise ConfigError(problem, hint=_HINT) from error


# -- values of results as plain data and arrays, and back: what a folder has of each field; no pickle ------------------


def parts_of(results: Any, arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Return every field of results as plain data, by name; their arrays are added to `arrays`, under `prefix`.

    Raises:
        ResultError: a value that no folder can hold.
        TransformError: the rows of results that were loaded without their transforms.
    """
    parts = {}
    for field in fields(results):
        try:
            if field.name == "rows":
                lengths = {len(array) for array in results.predictions.values()}
                compared: dict[str, list[str]] = {}
                for label, names in results.compared.values():
                    compared.setdefault(label, []).extend(names)
                parts["rows"] = {  # those with predictions, and those that predictions are compared with
                    label: saved_rows(
                        rows, original_rows(rows), compared.get(label, ()), arrays, f"{prefix}rows/{label}"
                    )
                    for label, rows in results.rows.items()
                    if label in compared or len(rows) in lengths
                }
            else:
                write = _WRITERS.get(field.name, plain)
                parts[field.name] = write(getattr(results, field.name), arrays, f"{prefix}{field.name}")
        except NotPlainError as error:
            raise ResultError(
                f"run {results.label!r} cannot be saved: {error} is neither numbers nor text",
                hint="leave this output out: EvalPhase(outputs=[...])",
            ) from error
    return parts


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
    "compared": lambda compared, arrays, path: {
        name: [label, list(names)] for name, (label, names) in compared.items()
    },
    "nodes": lambda nodes, arrays, path: list(nodes),
}


class FieldReader:
    """Read the fields that `parts_of` wrote.

    Args:
        arrays: Arrays by name.
        allow: Classes of transforms that may be named in addition to the known ones.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], allow: Iterable[type]) -> None:
        self._arrays, self._allow, self._reader = arrays, tuple(allow), PlainReader(arrays)

    def field(self, name: str, value: Any) -> Any:
        """Return the value of a field.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: malformed (a ConfigError is a ValueError).
        """
        read = _READERS.get(name)
        return self._reader.value(value) if read is None else read(self, value)

    def by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by name."""
        return {name: self._reader.value(value) for name, value in values.items()}

    def epoch(self, values: Mapping[str, Any]) -> Epoch:
        """Return an epoch; its losses and figures are mappings."""
        mappings = ("losses", "validation", "step_figures")
        read: dict[str, Any] = {
            name: self.by_name(value) if name in mappings else self._reader.value(value)
            for name, value in values.items()
        }
        return Epoch(**read)

    def rows(self, values: Mapping[str, Any]) -> dict[str, SavedRows]:
        """Return rows by label."""
        return {label: SavedRows.read(parts, self._arrays, self._allow) for label, parts in values.items()}


_READERS: dict[str, Callable[[FieldReader, Any], Any]] = {
    "plan": lambda reader, value: None if value is None else Plan.from_dict(value),
    "error": lambda reader, value: read_error(value),
    "started": lambda reader, value: None if value is None else datetime.fromisoformat(value),
    "events": lambda reader, value: tuple(Event(**event) for event in value),
    "epochs": lambda reader, value: tuple(map(reader.epoch, value)),
    "fitted": lambda reader, value: tuple(Fitted(**reader.by_name(entry)) for entry in value),
    "losses": lambda reader, value: NamedValues("loss", reader.by_name(value)),
    "metrics": lambda reader, value: NamedValues("metric", reader.by_name(value)),
    "predictions": lambda reader, value: reader.by_name(value),
    "rows": lambda reader, value: reader.rows(value),
    "compared": lambda reader, value: {name: (label, tuple(columns)) for name, (label, columns) in value.items()},
    "nodes": lambda reader, value: tuple(value),
}
