"""Device replicas of JAX: meshes, and sums of gradients in one compiled call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from anyaccel.backend import Program
from anyaccel.device import Device
from anyaccel.segment import Segment
from anyaccel_distributed.device_replicas import DeviceReplicas, Gradients
from anyaccel_jax.error_translation import with_translated_errors
from anyaccel_jax.sharding import undividable_reason


class JaxReplicas(DeviceReplicas):
    """Replicas of JAX: a program for each device, or one compiled step over a mesh of all."""

    divides_nodes: ClassVar[bool] = True

    def weighted_sums(self, tensors: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
        """Add lists in one call, which is compiled once for each number of lists and their shapes."""
        sums: Gradients = _weighted_sums(
            [list(tensor_list) for tensor_list in tensors], [np.float64(weight) for weight in weights]
        )
        return sums

    def build_over(
        self, segment: Segment, devices: Sequence[Device], *, divided: bool = False, whole: Collection[str] = ()
    ) -> Program | None:
        """Build one compiled step over a mesh, whose devices are all different."""
        if len({*devices}) < len(devices):
            return None
        program: Program = self.backend.build_mesh(segment, devices, divided=divided, whole=whole)
        return program

    def undividable_reason(self, segment: Segment, *, whole: Collection[str] = ()) -> str:
        """Return a reason for layers of Keras, whose variables are on one device."""
        return undividable_reason(segment, whole)


def _sums(tensors: list[Gradients], weights: list[Any]) -> Gradients:
    return [_sum(column, weights) for column in zip(*tensors, strict=True)]


def _sum(column: Sequence[Any], weights: Sequence[Any]) -> Any:
    total = None
    for tensor, weight in zip(column, weights, strict=True):
        if tensor is not None:
            term = tensor * weight.astype(tensor.dtype)
            total = term if total is None else total + term
    return total


_weighted_sums = with_translated_errors(jax.jit(_sums), "the gradients of replicas")
