"""A loss that is not a named one: the user's own function, object or class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyaccel.errors import SpecError
from anyaccel.specs import Loss


def make_loss(loss: Loss) -> Callable[..., Any]:
    """The loss's own object; a class is called with `loss_kwargs`.

    Raises:
        SpecError: the class does not take them, or what it gives is not callable.
    """
    if not isinstance(loss.own, type):
        own: Callable[..., Any] = loss.own
        return own
    try:
        made = loss.own(**loss.kwargs)
    except (TypeError, ValueError) as error:
        raise SpecError(f"cannot create the loss {loss.name!r}: {error}", hint="correct loss_kwargs") from error
    if not callable(made):
        raise SpecError(
            f"the loss {loss.name!r} is a class whose objects cannot be called",
            cause="a loss is called with (outputs, targets)",
            hint="give a function, a class with __call__, or a name such as 'mse'",
        )
    function: Callable[..., Any] = made
    return function
