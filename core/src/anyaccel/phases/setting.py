"""Setting: how what a phase is told is checked, saved, read and compared. Name, type and default are in signatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyaccel import arguments
from anyaccel.arguments import shown
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import PhaseError
from anyaccel.suggestions import did_you_mean

Check = Callable[[Any, str, Any], Any]
"""From the phase so far, with its label, the name of a setting, and what was given for it, to what the phase keeps."""

UNCHANGED, UNSAVED = object(), object()
"""What a check gives where the phase has the value already; and what is given where there is nothing to save."""


def _as_given(phase: Any, name: str, given: Any) -> Any:
    return given


def _as_kept(phase: Any, kept: Any) -> Any:
    return kept


def same(value: Any) -> Any:
    """The value itself."""
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a kind of phase.

    Attributes:
        check: gives what the phase keeps, or UNCHANGED; raises PhaseError.
        save: from the phase and what it keeps to plain data, or UNSAVED; raises ConfigError.
        load: from plain data to what the phase may be given; raises ConfigError, or TypeError.
        compare: from what the phase keeps to plain data that replicas of a run must have alike; None if they need not.
        on_resume: whether a run that goes on from a checkpoint must have it as before, too.
    """

    check: Check = _as_given
    save: Callable[[Any, Any], Any] = _as_kept
    load: Callable[[Any], Any] = same
    compare: Callable[[Any], Any] | None = None
    on_resume: bool = True


def integer(least: int, example: int | None = None) -> Check:
    """An int, at least so large; `example` stands in the hint."""
    return lambda phase, name, given: arguments.integer(
        PhaseError, f"phase {phase.label!r}: ", name, given, least, example
    )


def flag(phase: Any, name: str, given: Any) -> bool:
    """True or False."""
    return arguments.flag(PhaseError, f"phase {phase.label!r}: ", name, given)


def offered(name: str, *absent: Any) -> Check:
    """The check of a setting `CLASS.NAME` that a distribution offers, asked where other values than `absent` are given.

    Raises:
        MissingDistributionError: it is not installed.
    """

    def check(phase: Any, own_name: str, given: Any) -> Any:
        if any(type(given) is type(value) and given == value for value in absent):
            return given
        return load(SETTINGS, name).check(phase, own_name, given)

    return check


def choice(*choices: str, hints: dict[Any, str] | None = None) -> Check:
    """One of some words; `hints` are for others that are likely."""

    def check(phase: Any, name: str, given: Any) -> str:
        if given in choices:
            return str(given)
        hint = (hints or {}).get(given) if isinstance(given, (str, bool)) else None
        hint = hint or did_you_mean(given, choices, "use one of these")
        problem = f"phase {phase.label!r}: unknown {name}={shown(given)}"
        raise PhaseError(problem, available=", ".join(map(repr, choices)), hint=hint)

    return check


def optional(check: Check) -> Check:
    """What `check` takes, or None."""
    return lambda phase, name, given: None if given is None else check(phase, name, given)


def unless(default: Any) -> Callable[[Any, Any], Any]:
    """Saves values other than the default."""
    return lambda phase, kept: UNSAVED if kept == default else kept


def unsaved(phase: Any, kept: Any) -> Any:
    """Saves nothing."""
    return UNSAVED


def config(phase: Any, kept: Any) -> Any:
    """Saves an object as its configuration; None as it is."""
    return None if kept is None else kept.get_config()


def read(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Loads what `config` saved."""
    return lambda saved: None if saved is None else load(saved)


def read_list(name: str, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Loads a list of objects that were saved as their configurations."""

    def read(saved: Any) -> list[Any]:
        if not isinstance(saved, (list, tuple)):
            raise TypeError(f"{name} must be a list, got {shown(saved)}")
        return [load(each) for each in saved]

    return read
