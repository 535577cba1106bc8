"""Rejections: the devices that a node might have had, and why it has another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from anyaccel.accelerator import Accelerator
from anyaccel.device import USUAL
from anyaccel.graph.plan_entries import LEVELS, Rejection
from anyaccel.registry import Registry

_NAMES = dict(
    zip(LEVELS, ("the node's own accelerator", "the placement policy", "the phase's accelerator"), strict=False)
)
_MOST = 12  # candidates of one request


@dataclass(frozen=True, slots=True)
class LevelRequest:
    """What a level asks for, as it was written."""

    level: str
    spec: str


def outranked(decider: str, requests: Iterable[LevelRequest]) -> Iterator[Rejection]:
    """The requests of lower levels than the one that decided."""
    for request in sorted(requests, key=lambda request: LEVELS.index(request.level)):
        if LEVELS.index(request.level) > LEVELS.index(decider):
            yield Rejection(request.level, request.spec, f"{_NAMES[decider]} comes first")


def unserved(request: LevelRequest, framework: str, kind: str) -> Rejection:
    """The request that a node falls back from."""
    return Rejection(request.level, request.spec, f"no installed plugin runs {framework} on {kind}")


def refused_candidates(
    level: str, accelerator: Accelerator, frameworks: Sequence[str], known: Registry, *, strict: bool
) -> Iterator[Rejection]:
    """What a request might have got and did not; nothing if the accelerator is one device."""
    if USUAL.fullmatch(accelerator.spec):
        return
    asked = Accelerator(accelerator.spec)  # again as it was written: this one may have its device by now
    for candidate, reason in asked.refused(frameworks, known, of_all=level != "phase", strict=strict)[:_MOST]:
        yield Rejection(level, candidate, reason)
