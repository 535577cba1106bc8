"""Check: the result of one check of a machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["PASS", "WARN", "FAIL"]

STATUSES: tuple[Status, ...] = ("PASS", "WARN", "FAIL")
"""From good to bad; the index is the exit status of `anyaccel doctor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        name: Subject of the check, in a few words.
        status: `"PASS"`; `"WARN"`: it works, but slower or with less than the machine has; `"FAIL"`: it does not work.
        message: The finding.
        fix: Command or setting that fixes it, `""` if there is nothing to fix.
    """

    name: str
    status: Status
    message: str
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the four attributes."""
        return {"name": self.name, "status": self.status, "message": self.message, "fix": self.fix}


def worst(checks: Iterable[Check]) -> Status:
    """Return the worst status of all; `"PASS"` without any."""
    return max((check.status for check in checks), key=STATUSES.index, default="PASS")
