"""The validation of a TrainPhase: the evaluation that a split stands for, its losses, and what may not differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.adapter import loss_function
from anyaccel.arguments import shown
from anyaccel.data import Sampler
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.metrics import Metric
from anyaccel.phases.eval_phase import EvalPhase
from anyaccel.phases.phase import Phase
from anyaccel.phases.samplers import Samplers
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import registry
from anyaccel.segment import LossTerm


def validation_of(split: str, samplers: Samplers) -> EvalPhase:
    """The evaluation of a split: row by row, or in the pairs or triplets of the training's samplers."""
    by_label = samplers if isinstance(samplers, Mapping) else {"": samplers}
    tuples = {name: part for name, part in by_label.items() if isinstance(part, Sampler) and len(part.streams) > 1}
    if not tuples:
        return EvalPhase.from_split(split, split=split)
    return EvalPhase.from_split(split, split=split, sampler=tuples.get("", tuples))


def trained_as(loss: AppliedLoss, trained: Iterable[AppliedLoss]) -> str | None:
    """The label of the trained loss that has the values of this one, whatever its label and weight; None without."""
    own = _values_of(loss)
    return next((other.label for other in trained if _values_of(other) == own), None)


def measured_losses(losses: Iterable[AppliedLoss], trained: Sequence[AppliedLoss]) -> dict[str, Metric]:
    """The losses of a validation that are not trained, by label: computed of all its outputs, as metrics are."""
    return {
        loss.label: Metric(_named_loss(loss), on=loss.on, targets=loss.inputs[1], label=f"loss.{loss.label}")
        for loss in losses
        if trained_as(loss, trained) is None
    }


def _values_of(loss: AppliedLoss) -> tuple[Any, ...]:
    return loss.loss, loss.on, loss.inputs, loss.sample_weight, loss.mask


def _is_measured(loss: AppliedLoss) -> bool:
    is_plain = len(loss.inputs) == 2 and loss.inputs[0] == "outputs" and not loss.inputs[1].startswith("outputs")
    return loss.loss.own is None and is_plain and not loss.weights


def _named_loss(loss: AppliedLoss) -> Callable[[np.ndarray, np.ndarray], float]:
    term = LossTerm(loss.label, loss.on, loss.loss, loss.inputs, Device("cpu"))
    host: Any = registry().find(BUILT_IN)
    compute = loss_function(host.ops, term)

    def named_loss(outputs: np.ndarray, targets: np.ndarray) -> float:
        shape = list(outputs.shape)
        if loss.loss.name == "cross_entropy" and targets.shape != outputs.shape:
            del shape[loss.loss.kwargs.get("class_axis", -1)]
        if targets.size == math.prod(shape):
            targets = targets.reshape(shape)
        if loss.loss.name != "cross_entropy":
            targets = targets.astype(outputs.dtype)
        result = compute([outputs, targets])
        return float(result.sum) / float(result.weight)

    return named_loss


def _difference(loss: AppliedLoss, trained: AppliedLoss) -> str:
    names = {"loss": "the loss", "inputs": "inputs", "sample_weight": "sample_weight", "mask": "mask"}
    differing = [word for name, word in names.items() if getattr(loss, name) != getattr(trained, name)]
    return " and ".join(differing)


def check_validation(training: Phase, validation: Any, *, custom_step: bool) -> None:
    """Check that a validation is computed as the training is, and by losses of it.

    Args:
        training: the TrainPhase.
        validation: what it was given.
        custom_step: whether the training has a step of its own, and so no losses.

    Raises:
        PhaseError: it is not an EvalPhase, has a loss that is neither trained nor can be computed of its outputs alone,
            or has a precision or an accelerator that the training has not.
    """
    where = f"phase {training.label!r}"
    if not isinstance(validation, EvalPhase):
        raise PhaseError(
            f"{where}: validation must be an EvalPhase or the name of a split, got {shown(validation)}",
            hint="write validation='SPLIT', or validation=EvalPhase('LABEL', data='SPLIT')",
        )
    for loss in validation.losses:
        if not custom_step and trained_as(loss, training.losses) is None and not _is_measured(loss):
            others = [trained for trained in training.losses if trained.on == loss.on]
            differs = f"differs in {_difference(loss, others[0])} from that of the training" if others else "is new"
            raise PhaseError(
                f"{where}: the loss {loss.label!r} of the validation {differs}: it is not trained, and only named "
                "losses of outputs and targets, without columns that weigh them, are computed besides",
                hint="leave losses out of the validation, and run a separate EvalPhase with this one after training",
            )
    for name in ("precision", "matmul_precision"):
        own, given = getattr(training, name), getattr(validation, name)
        if given not in (None, own):
            raise PhaseError(
                f"{where} trains with {name}={own!r} but validates with {given!r}",
                hint=f"leave {name} out of the validation: it is computed as the training is",
            )
    if validation.accelerator not in (None, training.accelerator):
        raise PhaseError(
            f"{where} trains on {training.accelerator or 'cpu:0'} but validates on {validation.accelerator}",
            hint="leave accelerator out of the validation: it runs where the nodes are",
        )
