"""Wrong backends that train replicas: copies that are none, and sums that depend on who adds them."""

from __future__ import annotations

import random

import numpy as np

from anyaccel_distributed.device_replicas import DeviceReplicas

from .faults import fault


@fault("compute", "test_copies_of_models_have_values_of_their_own")
class CopiesThatAreTheModels(DeviceReplicas):
    def copy_models(self, models, device):
        return [self.backend.place(model, device) for model in models]


@fault("compute", "test_replicas_train_like_one_program[4]")
class SharesOfEqualWeight(DeviceReplicas):
    def weighted_sums(self, tensors, weights):
        equal = weights if set(weights) == {1.0} else [1.0 / len(weights)] * len(weights)
        return super().weighted_sums(tensors, equal)


@fault("compute", "test_devices_that_divide_parameters_train_like_one")
class DivisionsThatLeaveTheModelElsewhere(DeviceReplicas):
    """One program that trains on the first device, and leaves the model on the last."""

    def undividable_reason(self, segment):
        return ""

    def build_over(self, segment, devices, *, divided=False):
        return closed_elsewhere(self.backend, segment, devices) if divided else None


def closed_elsewhere(backend, segment, devices):
    program = backend.build(segment)
    close = program.close

    def close_elsewhere():
        states = close()
        backend.place(segment.operations[0].model, devices[-1])
        return states

    program.close = close_elsewhere
    return program


@fault("compute", "test_nodes_that_stay_whole_train_like_one")
class NodesThatStayElsewhere(DeviceReplicas):
    divides_nodes = True

    def undividable_reason(self, segment, *, whole=()):
        return ""

    def build_over(self, segment, devices, *, divided=False, whole=()):
        if not divided:
            return None
        return closed_elsewhere(self.backend, segment, devices) if whole else self.backend.build(segment)


@fault("compute", "test_replicas_stay_equal")
class ReplicasThatKeepTheirGradients(DeviceReplicas):
    def set_gradients(self, program, gradients):
        """Each steps with its own."""


@fault("compute", "test_a_fixed_order_of_sums_gives_the_same_bits")
class SumsInAnyOrder(DeviceReplicas):
    draws = random.Random(0)

    def weighted_sums(self, tensors, weights):
        pairs = list(zip(tensors, weights, strict=True))
        self.draws.shuffle(pairs)
        return super().weighted_sums(*zip(*pairs, strict=True))


@fault("compute", "test_a_step_that_is_not_finite_in_one_replica_is_skipped_by_all")
class SumsOfWhatIsFinite(DeviceReplicas):
    def weighted_sums(self, tensors, weights):
        finite = [[x if x is None or np.isfinite(np.asarray(x)).all() else None for x in each] for each in tensors]
        return super().weighted_sums(finite, weights)
