"""What a FitPhase did: which nodes, to how many rows, in what time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from anyaccel.graph import Plan
from anyaccel.phases import Fitted
from anyaccel.phases.events import Event
from anyaccel.results import formatting
from anyaccel.results.formatting import ended, told, when
from anyaccel.results.notebook import fit_html


@dataclass(frozen=True, slots=True, repr=False)
class FitResults:
    """What a FitPhase did: one entry for each node that it fitted, in this order.

    `plan` is that of the last round, where estimators waited for each other. `error`, `number`, `started`, `seconds`
    and `events` are as in TrainResults. It has no figures: `loss` is NaN, and `losses`, `metrics` and
    `predictions` are empty.
    """

    label: str
    fitted: tuple[Fitted, ...]
    plan: Plan | None
    error: BaseException | None = None
    number: int | None = None
    started: datetime | None = None
    seconds: float = math.nan
    events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        return (
            f"FitResults({self.label!r}, fitted {', '.join(self.nodes) or 'nothing'}{ended(self.error, self.events)})"
        )

    def _repr_html_(self) -> str:
        return fit_html(self)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Labels of the nodes that were fitted."""
        return tuple(one.node for one in self.fitted)

    @property
    def loss(self) -> float:
        """NaN: fitting has no loss; run an EvalPhase over the nodes."""
        return math.nan

    @property
    def losses(self) -> Mapping[str, float]:
        """Empty."""
        return {}

    @property
    def metrics(self) -> Mapping[str, float]:
        """Empty."""
        return {}

    @property
    def predictions(self) -> Mapping[str, np.ndarray]:
        """Empty."""
        return {}

    def to_arrow(self) -> Any:
        """A table with a row for each node: `node`, `estimator` (its class), `rows` and `seconds`."""
        import pyarrow as pa

        types = {"node": pa.string(), "estimator": pa.string(), "rows": pa.int64(), "seconds": pa.float64()}
        return pa.table(
            {key: pa.array([getattr(one, key) for one in self.fitted], kind) for key, kind in types.items()}
        )

    def to_pandas(self) -> Any:
        """The table of `to_arrow` as a pandas DataFrame.

        Raises:
            ResultError: pandas is not installed.
        """
        return formatting.to_pandas(self.to_arrow())

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        fitted = [asdict(one) for one in self.fitted]
        return {
            "label": self.label,
            "fitted": fitted,
            "error": told(self.error),
            "events": [event.to_dict() for event in self.events],
            **when(self.number, self.started, self.seconds),
        }
