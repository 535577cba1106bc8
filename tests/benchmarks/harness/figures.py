"""What a contestant took, and how it compares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Figures:
    """Seconds of each turn that counts.

    Attributes:
        seconds: round by round.
        first: seconds until it was made and had taken its first turn, compilers included.
        missing: why it could not take part, `""` if it did.
        failed: whether that is a fault, rather than something that is not installed.
        told: whatever else it has to say.
    """

    seconds: list[float] = field(default_factory=list)
    first: float = math.nan
    missing: str = ""
    failed: bool = False
    told: dict[str, Any] = field(default_factory=dict)

    def check(self, answer: Mapping[str, Any]) -> None:
        """Note why it cannot take part, if the answer says so."""
        self.missing = self.missing or answer.get("absent", "") or answer.get("failed", "")
        self.failed = self.failed or "failed" in answer

    def take(self, answer: Mapping[str, Any]) -> None:
        """Note a turn."""
        self.check(answer)
        if not self.missing:
            self.seconds.append(answer["seconds"])


@dataclass(slots=True)
class Table:
    """Figures of one workload, in one unit, beside a base.

    Args:
        title: what was measured.
        figures: by contestant.
        unit: of the column of medians.
        scale: by which seconds become that unit.
        base: the contestant to whose turns in the same round the others are compared; None compares nothing.
    """

    title: str
    figures: Mapping[str, Figures]
    unit: str
    scale: float
    base: str | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each contestant: `name`, and either `missing` or what was found.

        `median` is in the table's unit. `ratio` is the geometric mean of the ratios round by round, `spread` their
        geometric standard deviation (a factor), `median_ratio` their median.
        """
        return [self._row(name, one) for name, one in self.figures.items()]

    def _row(self, name: str, one: Figures) -> dict[str, Any]:
        if one.missing or not one.seconds:
            return {"name": name, "missing": one.missing or "no turn was taken", "failed": one.failed}
        taken = [seconds * self.scale for seconds in one.seconds]
        row = {"name": name, "median": statistics.median(taken), "first_s": one.first, "turns": taken}
        base = self.figures.get(self.base or "")
        if base is not None and len(base.seconds) == len(one.seconds):
            row |= compared(one.seconds, base.seconds)
        return row | ({"told": one.told} if one.told else {})


def shown(value: float) -> str:
    """A figure of three digits or more, without an exponent where it can be."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def compared(ones: list[float], bases: list[float]) -> dict[str, float]:
    """Geometric mean, geometric standard deviation and median of the ratios round by round."""
    ratios = [one / base for one, base in zip(ones, bases, strict=True)]
    logs = [math.log(ratio) for ratio in ratios]
    spread = math.exp(statistics.stdev(logs)) if len(logs) > 1 else math.nan
    return {"ratio": math.exp(statistics.fmean(logs)), "spread": spread, "median_ratio": statistics.median(ratios)}
