"""Clipping by a norm over several segments, computed on the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyaccel.device import Device
from anyaccel.phases.executor.border import Carrier, carrier
from anyaccel.phases.executor.links import Link


@dataclass(frozen=True, slots=True)
class _Member:
    """A segment with parameters of a group; `there` carries its squared norm to the first, `back` the factor."""

    link: Link
    there: Carrier
    back: Carrier


class Clipping:
    """The parameter groups that have a limit, and the segments that each lies in.

    The first segment of a group adds up the squared norms of all, and finds the factor; nothing waits for a device
    where memory is shared.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        limits = {
            group.name: group.optimizer.clip_norm
            for link in links
            for group in link.segment.groups
            if group.optimizer.clip_norm is not None
        }
        self._groups = [(name, limit, _members(name, links)) for name, limit in limits.items()]

    def scales(self) -> Mapping[int, Mapping[str, Any] | None]:
        """By `id` of a link, the factor for each of its groups that has a limit."""
        if not self._groups:
            return {id(link): None for link in self._links}
        stats = {id(link): link.program.grad_stats() for link in self._links}
        found: dict[int, dict[str, Any]] = {id(link): {} for link in self._links}
        for name, limit, members in self._groups:
            squares = [member.there(stats[id(member.link)][name][0]) for member in members]
            factor = members[0].link.program.clip_factor(limit, squares)
            for member in members:
                found[id(member.link)][name] = factor if isinstance(factor, float) else member.back(factor)
        return found


def _members(name: str, links: Sequence[Link]) -> list[_Member]:
    mine = [(link, home) for link in links if (home := _home(name, link)) is not None]
    first, hub = mine[0]
    return [
        _Member(link, carrier(link.backend, home, first.backend, hub), carrier(first.backend, hub, link.backend, home))
        for link, home in mine
    ]


def _home(name: str, link: Link) -> Device | None:
    """The device of a group's first node in a segment, where its squared norm is."""
    node = next((group.nodes[0] for group in link.segment.groups if group.name == name), None)
    return next((op.device for op in link.segment.operations if op.label == node), None)
