"""The parameter groups of a segment, each with its optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from anyaccel.segment import Segment
from anyaccel_torch import keras
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.module_state import submodules
from anyaccel_torch.optimizers import GroupOptimizer
from anyaccel_torch.segment_parameters import initial_states, switched_off, trained_parameters


def create_groups(segment: Segment, losses: Sequence[BoundLoss], modules: Iterable[nn.Module]) -> list[GroupOptimizer]:
    """An optimizer for each group; a parameter is in the first of those that have it.

    Args:
        segment: has the groups.
        losses: whose own parameters are trained with the nodes that they are on.
        modules: all of the segment.

    Raises:
        SpecError: an optimizer that torch lacks.
    """
    seen: set[int] = set()
    states, every = initial_states(segment), list(modules)
    sparse = any(getattr(part, "sparse", False) for module in every for part in submodules(module))
    constraints = {p: c for module in every for p, c in keras.constraints(module).items()}
    variables = {p: v for module in every for p, v in keras.trained_variables(module).items()}
    return [
        GroupOptimizer(
            group,
            trained_parameters(segment, losses, group.nodes, seen),
            states,
            switched_off=switched_off(segment, group.nodes),
            sparse=sparse,
            constraints=constraints,
            variables=variables,
        )
        for group in segment.groups
    ]
