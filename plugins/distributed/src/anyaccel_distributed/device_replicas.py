"""Device replicas: the interface for training one model on several devices in one process. For plugins."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, ClassVar

from anyaccel.capability import Capability
from anyaccel.device import Device
from anyaccel.errors import FrameworkError
from anyaccel.program import Program
from anyaccel.segment import Segment

Gradients = list[Any]
"""A gradient for each trained parameter, in the order of groups, nodes and parameters; None for none."""


class DeviceReplicas(Capability):
    """Capability `device_replicas`: programs of this backend are replicas of each other on several devices.

    A program for each device is built over a copy of the models, and each steps with the gradients of all. The defaults
    are for frameworks with models that `copy.deepcopy` copies and tensors with `+` and `*`.
    """

    divides_nodes: ClassVar[bool] = False
    """Whether parameters of some nodes may stay whole; without it, `whole` is not given, and such graphs refused."""

    def copy_models(self, models: Sequence[Any], device: Device) -> list[Any]:
        """Return copies of models on a device, with separate values; values that the models share, the copies share."""
        return [self.backend.place(model, device) for model in copy.deepcopy(list(models))]

    def gradients(self, program: Program) -> Gradients:
        """Return the gradients that a program has, whose tensors no later step changes.

        The default leaves out parameters without a gradient: that these are always the same ones must be true.
        """
        gradients: Gradients = []
        program.map_gradients(partial(_keep, gradients))
        return gradients

    def set_gradients(self, program: Program, gradients: Gradients) -> None:
        """Give a program gradients like those of `gradients`, on its device.

        Raises:
            FrameworkError: it has gradients of other parameters.
        """
        left = list(reversed(gradients))
        program.map_gradients(partial(_next, left))
        if left:
            raise _other_parameters(len(gradients), len(gradients) - len(left))

    def weighted_sums(self, tensors: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
        """Return, for each position, the sum of `weight * tensor`, added in the order given; None counts as zero.

        Args:
            tensors: Lists of equal length, all on one device.
            weights: Weight of each list.
        """
        return [_weighted_sum(column, weights) for column in zip(*tensors, strict=True)]

    def build_over(
        self, segment: Segment, devices: Sequence[Device], *, divided: bool = False, whole: Collection[str] = ()
    ) -> Program | None:
        """Build one program over all devices, if the framework supports it; None, the default, combines several.

        It has the numbers of a program on one device. Its inputs, outputs and losses are on the first.

        Args:
            segment: The segment, on the first device.
            devices: Devices of the replicas.
            divided: Whether each device has only a shard of the parameters and optimizer states. Passed only if
                `undividable_reason` returned nothing.
            whole: Labels of the nodes whose parameters are replicated anyway.
        """
        return None

    def undividable_reason(self, segment: Segment, *, whole: Collection[str] = ()) -> str:
        """Return why parameters cannot be sharded over devices of one process; `""` if they can.

        `whole` are the nodes whose parameters are not sharded.
        """
        return "its plugin can shard parameters only over processes"


def _keep(gradients: Gradients, gradient: Any) -> Any:
    gradients.append(gradient)
    return gradient


def _next(left: Gradients, _: Any) -> Any:
    if not left:
        raise _other_parameters(0, 1)
    return left.pop()


def _other_parameters(n_gradients: int, taken: int) -> FrameworkError:
    return FrameworkError(
        f"the replicas have gradients of different parameters: got {n_gradients}, expected {taken}",
        hint="train in several processes, anyaccel run --replicas 2 SCRIPT, or use all parameters in each step",
    )


def _weighted_sum(column: Sequence[Any], weights: Sequence[float]) -> Any:
    total = None
    for tensor, weight in zip(column, weights, strict=True):
        if tensor is not None:
            term = tensor if weight == 1.0 else tensor * weight
            total = term if total is None else total + term
    return total
