"""Accumulation is refused where batches do not add up to one batch of all their rows."""

from __future__ import annotations

import functools

import pytest

from anyaccel import AppliedLoss
from anyaccel.errors import PhaseError
from anyaccel.phases import TrainPhase
from anyaccel.phases.accumulation import ignored_target
from anyaccel.specs import Loss


class Own:
    """A loss with the settings that frameworks' own losses have."""

    def __init__(self, reduction="mean", ignore_index=-100, weight=None):
        self.reduction, self.ignore_index, self.weight = reduction, ignore_index, weight

    def __call__(self, outputs, targets):
        raise NotImplementedError


def phase(loss, accumulate=2):
    return TrainPhase("t", data="all", losses=[AppliedLoss(loss, on="net")], accumulate=accumulate)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (Own("sum"), r"a sum over rows \(reduction='sum'\)"),
        (Loss(Own, loss_kwargs={"reduction": "sum"}), r"a sum over rows \(reduction='sum'\)"),
        (functools.partial(lambda a, b, reduction: a, reduction="sum"), r"a sum over rows \(reduction='sum'\)"),
        (Own(weight=[1, 2]), r"a mean weighted by class \(weight\)"),
        (Loss(Own, loss_kwargs={"weight": [1, 2]}), r"a mean weighted by class \(weight\)"),
    ],
)
def test_losses_that_are_no_means_over_rows_are_not_accumulated(loss, reason):
    with pytest.raises(
        PhaseError, match=rf"the loss 'net' is {reason}: a step would differ from .* Hint: leave accumulate"
    ):
        phase(loss)
    assert phase(loss, accumulate=1).accumulate == 1


@pytest.mark.parametrize("loss", ["mse", Own, Own(), Own(reduction="none"), lambda outputs, targets: outputs])
def test_other_losses_are_accumulated(loss):
    assert phase(loss).accumulate == 2


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [("mse", None), (Own(), -100), (Own, -100), (Loss(Own, loss_kwargs={"ignore_index": 3}), 3), (len, None)],
)
def test_the_class_that_a_loss_leaves_out_is_known(loss, ignored):
    assert ignored_target(loss if isinstance(loss, Loss) else Loss(loss)) == ignored
