"""Snapshot of a program: copies of everything that a step changes, on the devices of the originals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from anyaccel_torch.loss_scaling import LossScaling
from anyaccel_torch.optimizers import GroupOptimizer
from anyaccel_torch.state_guard import BufferSnapshot, RandomState


class ProgramSnapshot:
    """What a program goes back to, as often as wanted.

    Args:
        parameters: those that are trained.
        modules: whose buffers change.
        groups: whose optimizer states change.
        random: the random state now.
        scaling: whose scale changes; None where losses are not scaled.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        modules: Iterable[nn.Module],
        groups: Sequence[GroupOptimizer],
        random: RandomState,
        scaling: LossScaling | None,
    ) -> None:
        self._parameters = [(parameter, parameter.detach().clone()) for parameter in parameters]
        self._buffers = BufferSnapshot(modules)
        self._groups = [(group, group.snapshot()) for group in groups]
        self._random, self._scaling = random, scaling
        self._loss_scale = None if scaling is None else scaling.state

    @torch.no_grad()
    def restore(self) -> None:
        """Give everything the values of the snapshot."""
        for parameter, saved in self._parameters:
            parameter.copy_(saved)
        self._buffers.restore()
        for group, snapshot in self._groups:
            group.restore(snapshot)
        self._random.restore()
        if self._scaling is not None and self._loss_scale is not None:
            self._scaling.state = self._loss_scale
