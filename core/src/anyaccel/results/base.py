"""What the results of every phase have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from anyaccel.attribute_hints import AttributeHints
from anyaccel.graph import Plan
from anyaccel.phases.events import Event
from anyaccel.results import formatting


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

    def run_record(self) -> dict[str, Any]:
        """What every `to_dict` has: error, events, number, start (ISO 8601) and duration in seconds."""
        return {
            "error": formatting.error_text(self.error),
            "events": [event.to_dict() for event in self.events],
            "number": self.number,
            "started": self.started.isoformat() if self.started is not None else None,
            **formatting.finite({"seconds": self.seconds}),
        }
