"""Wrong backends that weigh losses: what counts twice, not at all, or although it should not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import bare, put_like
from anyaccel.specs import Loss

from .faults import fault


def with_settings(segment, change):
    """The segment with other settings of its named losses."""
    terms = [replace(t, loss=Loss(t.loss.name, **change(dict(t.loss.kwargs)))) for t in segment.losses]
    return replace(segment, losses=tuple(terms))


def without(name):
    return lambda settings: {key: value for key, value in settings.items() if key != name}


@fault("compute", "test_a_weighted_loss_follows_its_formula[class weights]")
def classes_weigh_alike(segment):
    return with_settings(segment, without("class_weights"))


@fault("compute", "test_a_weighted_loss_follows_its_formula[ignored targets]")
def every_target_counts(segment):
    return with_settings(segment, without("ignore_index"))


@fault("compute", "test_a_weighted_loss_follows_its_formula[weighted samples]")
def samples_weigh_alike(segment):
    return replace(segment, losses=tuple(replace(term, inputs=term.inputs[:2]) for term in segment.losses))


@fault("compute", "test_a_weighted_loss_follows_its_formula[both weights]")
def the_second_weight_is_left_out(segment):
    return replace(segment, losses=tuple(replace(term, inputs=term.inputs[:3]) for term in segment.losses))


class DividesByTheRows(ArrayProgram):
    """The weight of every loss is the number of rows."""

    def forward_pullback(self, inputs, scale=None):
        rows = {t.label: 1 / len(bare(inputs[0])) for t in self.segment.losses if len(t.inputs) > 2 or t.loss.kwargs}
        return super().forward_pullback(inputs, scale if scale is not None else rows or None)


@fault("compute", "test_gradients_of_a_weighted_loss_are_those_of_its_mean[all settings]")
class GradientsAreDividedByTheRows(DividesByTheRows):
    pass


@fault("compute", "test_positions_of_a_sample_are_weighted[classes last]")
class PositionsWeighAlike(ArrayProgram):
    """Each position has the mean weight of its sample."""

    def forward_pullback(self, inputs, scale=None):
        weights = [put_like(self.mean(bare(value)), value) for value in inputs[2:]]
        return super().forward_pullback((*inputs[:2], *weights), scale)

    def mean(self, weight):
        return np.ones_like(weight) * weight.mean(axis=1, keepdims=True) if weight.ndim > 1 else weight


class MultipliesBy(NumpyOps):
    """Multiplies where the adapter chooses, so that 0 times NaN is NaN."""

    class xp:
        def __getattr__(self, name):
            return getattr(np, name)

        @staticmethod
        def where(condition, chosen, other):
            is_zero = isinstance(chosen, float) and chosen == 0.0
            return other + 0 * condition if is_zero else np.where(condition, chosen, other)

    xp = xp()


@fault("compute", "test_what_weighs_nothing_counts_nothing_whatever_it_is")
class NothingTimesNaN(MultipliesBy):
    pass


@fault("compute", "test_a_loss_of_no_weight_is_zero")
class DividesByZero(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        _, losses, _ = super().forward_pullback(inputs)
        with np.errstate(all="ignore"):
            given = {name: np.float64(1) / np.asarray(bare(weight), float) for name, (_, weight) in losses.items()}
        return super().forward_pullback(inputs, scale if scale is not None else given)


@fault("compute", "test_loss_weights_are_those_of_the_losses")
class EveryLossWeighsOne(ArrayProgram):
    def loss_weights(self, inputs):
        return {name: np.ones_like(weight) for name, weight in super().loss_weights(inputs).items()}
