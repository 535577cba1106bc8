"""Results of a FitPhase: the fitted nodes, their numbers of rows, and the times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anyaccel.call_hints import class_hints
from anyaccel.html import Markup, guarded, page, row, table
from anyaccel.results.base import PhaseResults, saved_as
from anyaccel.results.formatting import ended
from anyaccel.results.notebook import duration, facts, outcome
from anyaccel.results.records import Fitted


@class_hints
@saved_as("fit")
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class FitResults(PhaseResults):
    """Results of a FitPhase: one entry of `fitted` for each node, in the order of fitting.

    `plan` is the plan of the last round if estimators waited for each other. A FitPhase computes no losses, metrics or
    predictions: `loss` is NaN, the others are empty. See PhaseResults for the other fields.
    """

    fitted: tuple[Fitted, ...]

    def __repr__(self) -> str:
        return (
            f"FitResults({self.label!r}, fitted {', '.join(self.nodes) or 'nothing'}{ended(self.error, self.events)})"
        )

    def _repr_html_(self) -> str:
        return guarded(self, self._html)

    def _html(self) -> Markup:
        def node_row(entry: Fitted) -> Markup:
            return row([entry.node, entry.estimator, f"{entry.rows:,}", f"{entry.seconds:.3g}"])

        nodes = table(("node", "estimator", "rows", "seconds"), self.fitted, node_row)
        return page("FitResults", self.label, facts([duration(self.seconds)]), *outcome(self), nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Labels of the fitted nodes."""
        return tuple(entry.node for entry in self.fitted)

    @property
    def loss(self) -> float:
        """NaN: fitting has no loss. Run an EvalPhase to judge the nodes."""
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
        """Return a table with a row per node: `node`, `estimator` (its class), `rows` and `seconds`."""
        import pyarrow as pa

        types = {"node": pa.string(), "estimator": pa.string(), "rows": pa.int64(), "seconds": pa.float64()}
        return pa.table(
            {name: pa.array([getattr(entry, name) for entry in self.fitted], dtype) for name, dtype in types.items()}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {"label": self.label, "fitted": [asdict(entry) for entry in self.fitted], **self.run_record()}
