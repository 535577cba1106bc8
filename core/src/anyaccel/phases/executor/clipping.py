"""Clipping of gradients by a norm over several segments, computed on the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyaccel.device import Device
from anyaccel.phases.executor.stage import PipelineStage
from anyaccel.phases.executor.transfers import Transfer, TransferEnd, transfer
from anyaccel.results.events import LogEvent, discard_event


@dataclass(frozen=True, slots=True)
class _Member:
    """A stage with parameters of a group: how its squared norm gets to the group's first stage, and the factor back."""

    stage: PipelineStage
    to_first: Transfer
    from_first: Transfer


class GradientClipping:
    """The parameter groups that have a `clip_norm`, and the stages that each lies in.

    The first stage of a group adds up the squared norms of all and computes the factor; nothing waits for a device
    where memory is shared; `log_event` is told if that fails.
    """

    def __init__(self, stages: Sequence[PipelineStage], log_event: LogEvent = discard_event) -> None:
        self._stages = tuple(stages)
        limits = {
            group.name: group.optimizer.clip_norm
            for stage in stages
            for group in stage.segment.groups
            if group.optimizer.clip_norm is not None
        }
        self._groups = [(name, limit, _members(name, stages, log_event)) for name, limit in limits.items()]

    def scales(self) -> Mapping[int, Mapping[str, Any] | None]:
        """By `id` of a stage, the factor for the gradients of each of its groups that has a limit."""
        if not self._groups:
            return {id(stage): None for stage in self._stages}
        stats = {id(stage): stage.program.grad_stats() for stage in self._stages}
        scales: dict[int, dict[str, Any]] = {id(stage): {} for stage in self._stages}
        for name, limit, members in self._groups:
            squares = [member.to_first(stats[id(member.stage)][name][0]) for member in members]
            factor = members[0].stage.program.clip_factor(limit, squares)
            for member in members:
                scales[id(member.stage)][name] = factor if isinstance(factor, float) else member.from_first(factor)
        return scales


def _members(name: str, stages: Sequence[PipelineStage], log_event: LogEvent) -> list[_Member]:
    devices = [(stage, device) for stage in stages if (device := _norm_device(name, stage)) is not None]
    ends = [TransferEnd(stage.backend, device) for stage, device in devices]
    return [
        _Member(
            stage,
            transfer(end, ends[0], "gradient norms", log_event),
            transfer(ends[0], end, "clipping factors", log_event),
        )
        for (stage, _), end in zip(devices, ends, strict=True)
    ]


def _norm_device(group: str, stage: PipelineStage) -> Device | None:
    """The device of a group's first node in a stage, on which its squared norm is."""
    node = next((other.nodes[0] for other in stage.segment.groups if other.name == group), None)
    return next((operation.device for operation in stage.segment.operations if operation.label == node), None)
