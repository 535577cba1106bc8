"""What a plugin offers, called with an argument that there is not: shared by the tests of plugins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import pytest

from anyaccel.errors import ArgumentError


def offered(*modules: ModuleType, of_core: Collection[str] = ()) -> dict[str, Callable[..., Any]]:
    """What modules have in `__all__`, by module and name, without what core calls or makes, and not users."""
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules
        for name in module.__all__
        if name not in of_core
    }


def check_refused(called: Callable[..., Any]) -> None:
    """The error names the call, the argument, and the arguments that there are."""
    with pytest.raises(ArgumentError) as caught:
        called(colour_of_the_bars="red")
    assert f"{called.__name__} has no argument 'colour_of_the_bars'. " in str(caught.value)
    assert caught.value.available == ", ".join(inspect.signature(called).parameters)
