"""Phases and callbacks of an experiment as plain data, and back; what has no configuration is named with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.graph.serialization import class_name
from anyaccel.phases.callbacks import Callback, EarlyStopping
from anyaccel.phases.framework_settings import FrameworkSettings
from anyaccel.phases.profile import Profile
from anyaccel.phases.settings import PhaseSettings

_KNOWN: dict[str, type[Callback]] = {
    "EarlyStopping": EarlyStopping,
    "FrameworkSettings": FrameworkSettings,
    "Profile": Profile,
}
_HINT = "give the folder that save() wrote"


def phase_parts(phase: PhaseSettings) -> dict[str, Any]:
    """A phase with its callbacks as plain data; `config` is None where it has none, and `reason` says why."""
    parts = {"label": phase.label, "config": None, "reason": "", "callbacks": callback_parts(phase.callbacks)}
    if type(phase) is not PhaseSettings.kinds[phase.kind]:
        return {**parts, "reason": f"it is of a class of its own, {type(phase).__name__}"}
    try:
        return {**parts, "config": phase.get_config()}
    except ConfigError as error:
        return {**parts, "reason": error.problem}


def read_phase(parts: Any, allow: Iterable[type]) -> Any:
    """The phase of `phase_parts`.

    Raises:
        ConfigError: malformed, or the phase or a callback of it has no configuration.
    """
    if not isinstance(parts, Mapping) or not {"label", "config", "reason", "callbacks"} <= set(parts):
        raise ConfigError(f"{shown(parts)} is not a saved phase", hint=_HINT)
    where = f"phase {parts['label']!r}"
    hint = f"give the phases: load(folder, phases=[TrainPhase({parts['label']!r}, ...)]); phases=[] for none"
    if parts["config"] is None:
        raise ConfigError(f"{where} was not saved: {parts['reason']}", hint=hint)
    phase = PhaseSettings.from_config(parts["config"])
    phase.callbacks = read_callbacks(parts["callbacks"], allow, where, hint)
    return phase


def callback_parts(callbacks: Iterable[Callback]) -> list[dict[str, Any]]:
    """Callbacks as plain data: the class, and what its `get_config` gives; None without one."""
    return [
        {"class": _name(callback), "config": callback.get_config() if hasattr(callback, "get_config") else None}
        for callback in callbacks
    ]


def _name(callback: Callback) -> str:
    cls = type(callback)
    return cls.__name__ if _KNOWN.get(cls.__name__) is cls else class_name(cls)


def read_callbacks(given: Any, allow: Iterable[type], where: str, hint: str) -> tuple[Callback, ...]:
    """The callbacks of `callback_parts`; nothing is imported.

    Args:
        given: the list.
        allow: classes that it may name besides those of this library.
        where: begins messages.
        hint: for a callback without a configuration.

    Raises:
        ConfigError: malformed; or a callback without a configuration, or of a class that is not allowed.
    """
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise ConfigError(f"{where}: {shown(given)} are not saved callbacks", hint=_HINT)
    known: dict[str, type] = {**{class_name(cls): cls for cls in allow}, **_KNOWN}
    return tuple(_read_callback(each.get("class"), each.get("config"), known, where, hint) for each in given)


def _read_callback(name: Any, config: Any, known: Mapping[str, type], where: str, hint: str) -> Callback:
    if config is None:
        problem = f"{where}: the callback {name} was not saved: it has no get_config()"
        raise ConfigError(problem, hint=hint)
    cls = known.get(str(name))
    if cls is None or not issubclass(cls, Callback):
        raise ConfigError(
            f"{where}: the callback {name} is of a class that is not known; nothing was imported",
            available=", ".join(known),
            hint=f"if you trust it, import it: allow=[{str(name).rpartition(':')[2]}]",
        )
    try:
        return cls(**config)
    except TypeError as error:
        problem = f"{where}: the callback {name} does not take its configuration: {getattr(error, 'problem', error)}"
        raise ConfigError(problem, hint="let get_config() give the arguments of the class") from error
