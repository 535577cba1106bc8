"""Errors of runs as plain data, and back: of Python's own classes and those of anyaccel; others by their names."""

from __future__ import annotations

import builtins
import math
from contextlib import suppress
from typing import Any

from anyaccel import errors
from anyaccel.arguments import shown
from anyaccel.errors import AnyaccelError, ConfigError


class SavedError(Exception):
    """The error of a loaded run whose class is neither Python's nor anyaccel's.

    Attributes:
        class_name: Its name.
    """

    def __init__(self, class_name: str, message: str) -> None:
        super().__init__(message)
        self.class_name = class_name


def class_name(error: BaseException) -> str:
    """Name of the class of an error, of a loaded one too."""
    return error.class_name if isinstance(error, SavedError) else type(error).__name__


def error_parts(error: BaseException | None) -> dict[str, Any] | None:
    """Return an error as plain data, without its traceback and causes."""
    if error is None:
        return None
    is_plain = all(
        type(argument) in (str, bool, int, type(None)) or (type(argument) is float and math.isfinite(argument))
        for argument in error.args
    )
    parts: dict[str, Any] = {
        "class": class_name(error),
        "message": str(error),
        "args": (list(error.args) if is_plain else []),
    }
    parts["notes"] = [str(note) for note in getattr(error, "__notes__", ())]
    if isinstance(error, AnyaccelError):
        parts |= {"problem": error.problem, "available": error.available, "hint": error.hint}
    return parts


def read_error(parts: Any) -> BaseException | None:
    """Create the error of plain data: of its class if that is known and gives the same message, otherwise a SavedError.

    Raises:
        ConfigError: malformed.
    """
    if parts is None:
        return None
    try:
        name, message = str(parts["class"]), str(parts["message"])
        made: BaseException | None = None
        own, of_python = getattr(errors, name, None), getattr(builtins, name, None)
        with suppress(TypeError, ValueError):  # it takes other arguments
            if isinstance(own, type) and issubclass(own, AnyaccelError) and "problem" in parts:
                made = own(str(parts["problem"]), available=str(parts["available"]), hint=str(parts["hint"]))
            elif isinstance(of_python, type) and issubclass(of_python, BaseException):
                made = of_python(*parts["args"])
        error = made if made is not None and str(made) == message else SavedError(name, message)
        for note in parts["notes"]:
            error.add_note(str(note))
    except (KeyError, TypeError) as failure:
        raise ConfigError(f"{shown(parts)} is not a saved error", hint="pass the folder that save() wrote") from failure
    return error
