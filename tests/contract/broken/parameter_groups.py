"""Wrong backends that have parameter groups: settings of other groups, and states of some only."""

from __future__ import annotations

import copy
from dataclasses import replace

from anyaccel.adapter import ArrayProgram
from anyaccel.segment import NodeState
from anyaccel.specs import Schedule

from .faults import fault


def with_groups(segment, change):
    """The segment with other groups of parameters, which `change` makes of those of an optimizer."""
    optimizers = [changed(each.optimizer, groups=change(each.optimizer.groups)) for each in segment.groups]
    groups = (replace(group, optimizer=other) for group, other in zip(segment.groups, optimizers, strict=True))
    return replace(segment, groups=tuple(groups))


def changed(optimizer, **attributes):
    """A copy of the optimizer with other attributes."""
    other = copy.copy(optimizer)
    for name, value in attributes.items():
        object.__setattr__(other, name, value)
    return other


@fault("compute", "test_each_parameter_is_updated_with_the_settings_of_its_group[sgd]")
def groups_are_left_out(segment):
    return with_groups(segment, lambda groups: ())


@fault("compute", "test_each_parameter_is_updated_with_the_settings_of_its_group[adamw]")
def predicates_are_left_out(segment):
    return with_groups(segment, lambda groups: tuple(each for each in groups if isinstance(each[0], str)))


@fault("compute", "test_each_parameter_is_updated_with_the_settings_of_its_group[momentum]")
def groups_have_no_schedule(segment):
    def constant(groups):
        return tuple((pattern, changed(group, schedule=Schedule("constant"))) for pattern, group in groups)

    return with_groups(segment, constant)


@fault("compute", "test_each_parameter_is_updated_with_the_settings_of_its_group[clipped by value]")
def groups_are_clipped_elsewhere(segment):
    groups = [replace(g, optimizer=changed(g.optimizer, clip_value=None)) for g in segment.groups if g.optimizer.groups]
    return replace(segment, groups=tuple(groups) or segment.groups)


@fault("compute", "test_the_first_group_of_a_parameter_counts")
def the_last_group_counts(segment):
    return with_groups(segment, lambda groups: groups[::-1])


@fault("compute", "test_groups_keep_their_state_from_program_to_program")
class StatesWithoutGroups(ArrayProgram):
    """What is in a group has no slots in the states."""

    def close(self):
        optimizers = {node: group.optimizer for group in self.segment.groups for node in group.nodes}
        return {node: self.usual(state, optimizers.get(node)) for node, state in super().close().items()}

    def usual(self, state, optimizer):
        if optimizer is None or not optimizer.groups:
            return state
        return NodeState(state.step, dict(list(state.slots.items())[1:-1]))
