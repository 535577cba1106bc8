"""What the results of every phase have in common."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from anyaccel import saved_folder
from anyaccel.arguments import shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import class_hints
from anyaccel.errors import ConfigError
from anyaccel.graph import Plan
from anyaccel.graph.serialization import checked_classes
from anyaccel.results import formatting
from anyaccel.results.events import Event
from anyaccel.results.saved_values import FieldReader, parts_of

PART = "results"
"""Name of results in the manifest of a saved folder."""
_HINT = "give the folder that save() wrote"
_Class = TypeVar("_Class", bound=type)


@class_hints
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class PhaseResults(AttributeHints):
    """The outcome of one run of a phase.

    Attributes:
        label: label of the phase.
        plan: where everything was computed; None if the run ended before there was a plan.
        error: the exception that ended the run, None if it ended well.
        number: position in the history of the experiment, from 0.
        started: start time, UTC.
        seconds: duration.
        events: decisions made during the run (compilation, residency), and what was done when memory ran out.
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
        """A pyarrow.Table; each kind of phase says what its rows are."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The table of `to_arrow` as a pandas DataFrame.

        Raises:
            ResultError: pandas is not installed.
        """
        return formatting.to_pandas(self.to_arrow())

    # -- folders ---------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything that these results show into a folder: a manifest and safetensors; no pickle.

        Of the data, targets and tags are written, and features that predictions are compared with. Of an error, its
        class and its message. What is in the folder is replaced at once when all is written.

        Args:
            folder: made if it is not there; or a URL that fsspec opens, such as `s3://bucket/results`.

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
        """The results that `save` wrote; needs neither their models nor a framework, and runs no code of the folder.

        `PhaseResults.load` finds out of which kind they are.

        Args:
            folder: that `save` wrote, or its URL.
            allow: classes of transforms that the folder may name besides those that are known, for `undo=True`.

        Raises:
            ConfigError: not such a folder, of a newer version, or of results of another kind of phase.
            StateError: a file was changed or is incomplete.
        """
        classes = checked_classes(allow)
        manifest, arrays = saved_folder.read(folder, PART)
        results = read_results(manifest[PART], arrays, classes)
        if not isinstance(results, cls):
            found = type(results).__name__
            raise ConfigError(f"these are {found}, not {cls.__name__}", hint=f"write {found}.load")
        return results

    def run_record(self) -> dict[str, Any]:
        """What every `to_dict` has: error, events, number, start (ISO 8601) and duration in seconds."""
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
    """Decorator of a class of results: the name of its kind."""

    def register(cls: _Class) -> _Class:
        KINDS[kind] = cls
        return cls

    return register


def kind_of(results: PhaseResults) -> str:
    """The name of the kind of some results: `"train"`, ..."""
    return next(kind for kind, cls in KINDS.items() if isinstance(results, cls))


def results_parts(results: PhaseResults, arrays: dict[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    """Results as plain data, ready for JSON; their arrays are added to `arrays`, named with `prefix`.

    Raises:
        ResultError, TransformError: as `PhaseResults.save`.
    """
    return {"kind": kind_of(results), "fields": parts_of(results, arrays, prefix)}


def read_results(parts: Any, arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> PhaseResults:
    """What `results_parts` gave.

    Raises:
        ConfigError: malformed.
    """
    kind = parts.get("kind") if isinstance(parts, Mapping) else None
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ConfigError(f"{shown(parts)} are not saved results", available=", ".join(sorted(KINDS)), hint=_HINT)
    reader = FieldReader(arrays, allow)
    try:
        return cls(**{name: reader.field(name, value) for name, value in parts["fields"].items()})
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"the saved results are malformed: {type(error).__name__}: {getattr(error, 'problem', error)}"
        raise ConfigError(problem, hint=_HINT) from error
