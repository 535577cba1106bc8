"""Names that the plugin contract had before 0.1, and the check that no plugin's class still defines one.

Such a class would otherwise fail later with an AttributeError, or silently lose a method that has a default.
"""

from __future__ import annotations

from typing import Any

from anyaccel.errors import PluginError

_OLD_AND_NEW = {
    "Backend": "why_not unavailable_reason, roots import_roots, forks fork_safe",
    "Exchange": "take from_host_owned, adopt from_dlpack, rows gather_rows, buffer staging_buffer, send copy_async",
    "Compute": "mixes batch_coupling, writes mutates_inputs, refuses unsupported_reason, layout data_format",
    "Program": "reduce map_gradients, apply optimizer_step, discard zero_grad, publish sync_models, release close, "
    "states optimizer_states",
    "MultiStepProgram": "steps train_steps, in_parts supports_microbatching, offer estimate_compile",
}
RENAMED = {name: dict(pair.split() for pair in text.split(", ")) for name, text in _OLD_AND_NEW.items()}
RENAMED_CLASSES = {"Stepping": "MultiStepProgram", "Offer": "CompileEstimate", "Sent": "AsyncCopy"}
_CONTRACT = ("anyaccel.backend", "anyaccel.program")


class ContractClass:
    """Base of the contract's classes: defining a subclass with an old name and without the new one is a PluginError."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = [base for base in cls.__mro__ if base.__module__ not in _CONTRACT]
        defined = {name for base in own for name in vars(base)}
        contract = [base.__name__ for base in cls.__mro__ if base.__module__ in _CONTRACT]
        renamed = {old: new for name in contract for old, new in RENAMED.get(name, {}).items()}
        stale = [f"{old} -> {new}" for old, new in renamed.items() if old in defined and new not in defined]
        if stale:
            name = f"{cls.__module__}.{cls.__qualname__}"
            problem = f"{name} uses renamed names of the plugin contract: {', '.join(stale)}"
            raise PluginError(problem, hint="rename them, or update the plugin")


def renamed_class(error: ImportError) -> str:
    """`old -> new` if an import failed because a class of the contract was renamed, else `""`."""
    if not str(error.name).startswith("anyaccel"):
        return ""
    return next((f"{old} -> {new}" for old, new in RENAMED_CLASSES.items() if f"{old!r}" in str(error)), "")
