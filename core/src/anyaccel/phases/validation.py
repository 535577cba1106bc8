"""The validation of a TrainPhase: the evaluation that a split stands for, and what may not differ from the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.arguments import shown
from anyaccel.data import Sampler
from anyaccel.errors import PhaseError
from anyaccel.phases.eval_phase import EvalPhase
from anyaccel.phases.phase import Phase
from anyaccel.phases.samplers import Samplers


def validation_of(split: str, samplers: Samplers) -> EvalPhase:
    """The evaluation of a split: row by row, or in the pairs or triplets of the training's samplers."""
    by_label = samplers if isinstance(samplers, Mapping) else {"": samplers}
    tuples = {name: part for name, part in by_label.items() if isinstance(part, Sampler) and len(part.streams) > 1}
    if not tuples:
        return EvalPhase.from_split(split, split=split)
    return EvalPhase.from_split(split, split=split, sampler=tuples.get("", tuples))


def check_validation(training: Phase, validation: Any, *, own_step: bool) -> None:
    """Check that a validation is computed as the training is, and by losses of it.

    Args:
        training: the TrainPhase.
        validation: what it was given.
        own_step: whether the training has a step of its own, and so no losses.

    Raises:
        PhaseError: it is not an EvalPhase, or has a loss, a precision or an accelerator that the training has not.
    """
    where = f"phase {training.label!r}"
    if not isinstance(validation, EvalPhase):
        raise PhaseError(
            f"{where}: validation must be an EvalPhase or the name of a split, got {shown(validation)}",
            hint="write validation='SPLIT', or validation=EvalPhase('LABEL', data='SPLIT')",
        )
    for loss in validation.losses:
        if loss not in training.losses and not own_step:
            raise PhaseError(
                f"{where}: the validation has the loss {loss.label!r}, which is not trained",
                available=", ".join(trained.label for trained in training.losses),
                hint="leave losses out of the validation, or run a separate EvalPhase after training",
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
