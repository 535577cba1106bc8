"""What a distribution offers, called with an argument that there is not, and with wrong values of the others."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import os
import zlib
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any

import pytest

from anyaccel.errors import AnyaccelError, ArgumentError

FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
SAMPLE = 5  # of the values for each argument
FAILED_ONCE = {"fit.loss": ["int"], "WeightAveraging.load_state_dict.state": ["{1: 2}"]}
"""Values that are in every sample, as they gave a raw error."""

VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1e9": lambda: 1e9,
    "''": str,
    "'x'": lambda: "x",
    "'false'": lambda: "false",
    "[]": list,
    "{}": dict,
    "[None]": lambda: [None],
    "{1: 2}": lambda: {1: 2},
    "object()": object,
    "int": lambda: int,
    "nan": lambda: float("nan"),
    "10**400": lambda: 10**400,
}
KINDS = {"bool": bool, "int": int, "str": str, "float": int | float, "None": type(None)}
"""Annotations that say all about the type of an argument."""


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


def outcome(call: Callable[[], Any], annotation: str, value: Any) -> str:
    """What is wrong with the outcome of a call with one wrong argument, `""` if nothing is."""
    try:
        call()
    except AnyaccelError as error:
        return "" if error.hint else f"no hint: {error}"
    except OSError as error:  # documented: a file that cannot be opened
        return "" if isinstance(value, str) else repr(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    kinds = [KINDS.get(kind) for kind in annotation.split(" | ")]
    whole = "int" in annotation and isinstance(value, float) and value.is_integer()
    return "" if whole or None in kinds or isinstance(value, tuple(kinds)) else f"accepted as {annotation}"


def chosen(name: str, values: dict[str, Callable[[], Any]]) -> list[str]:
    """The values that are tried for an argument: all, or some that are always the same."""
    start = 0 if FULL else zlib.crc32(name.encode()) % len(values)
    sample = itertools.islice(itertools.cycle(values), start, start + (len(values) if FULL else SAMPLE))
    return list(dict.fromkeys([*sample, *FAILED_ONCE.get(name, ())]))


def wrongly_taken(name: str, make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]) -> list[str]:
    """Where a call with one wrong argument is neither an error with a hint nor valid; the call as it is must work.

    Args:
        name: of the call.
        make: gives the function, and valid arguments of it.
    """
    function, arguments = make()
    function(**arguments)
    annotations = {key: str(each.annotation) for key, each in inspect.signature(function).parameters.items()}
    wrong = []
    for argument in arguments:
        for shown in chosen(f"{name}.{argument}", VALUES):
            function, valid = make()
            value = VALUES[shown]()
            call = functools.partial(function, **{**valid, argument: value})
            said = outcome(call, annotations.get(argument, ""), value)
            wrong += [f"{argument}={shown}: {said}"] if said else []
    return wrong


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand in nested dicts and lists."""
    yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def replaced(config: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy of nested dicts and lists with another value at one place."""
    changed = copy.deepcopy(config)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    if not at:
        return value
    inner[at[-1]] = value
    return changed


def wrongly_read(config: Any, read: Callable[[Any], object]) -> list[str]:
    """Where a configuration with one wrong value is neither an error with a hint nor valid."""
    wrong = []
    for at in places(config):
        is_flag = isinstance(functools.reduce(lambda inner, key: inner[key], at, config), bool)
        for shown in chosen(str(at), VALUES)[: None if FULL or is_flag else 2]:
            value = VALUES[shown]()
            said = outcome(functools.partial(read, replaced(config, at, value)), "bool" if is_flag else "", value)
            wrong += [f"{'.'.join(map(str, at))}={shown}: {said}"] if said else []
    return wrong
