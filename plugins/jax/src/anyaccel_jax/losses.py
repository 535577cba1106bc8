"""Losses of Keras as functions of (outputs, targets) that give one number."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from anyaccel.errors import SpecError
from anyaccel.specs import Loss
from anyaccel_jax.tree_utils import comes_from


def scalar_loss(loss: Loss) -> Loss:
    """The recipe, where it is Keras's, with a function as others give it.

    Raises:
        SpecError: the loss's settings are wrong.
    """
    own = loss.own
    if isinstance(own, type):
        try:
            own = own(**loss.kwargs)
        except (TypeError, ValueError) as error:
            raise SpecError(f"the loss {loss.name!r} cannot be made: {error}", hint="correct loss_kwargs") from error
    if not (comes_from(own, "keras") or str(getattr(own, "__module__", "")).startswith("keras.")):
        return Loss(own)

    def mean(outputs: Any, targets: Any) -> Any:
        return jnp.mean(own(targets, outputs))  # Keras takes targets first, and may give one number a sample

    mean.__name__ = loss.name
    return Loss(mean)
