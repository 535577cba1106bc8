"""FrameworkSettings: a callback that sets global settings of frameworks while a phase runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from anyaccel import arguments
from anyaccel.adapter.framework_settings import HasSettings
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import PhaseError
from anyaccel.phases.callbacks import Callback
from anyaccel.suggestions import did_you_mean

if TYPE_CHECKING:
    from anyaccel.graph import Plan
    from anyaccel.phases.run import Run

_HOLDING = threading.RLock()  # they are of the whole process; phases inside of each other end in order
_EXAMPLE = "{'FRAMEWORK.SETTING': True}"


@constructor_hints
class FrameworkSettings(Callback):
    """Set global settings of frameworks, by their own names, from before placement to the end of the phase.

    The previous values are restored at the end, even after an error. For the matrix multiplication precision, use the
    phase's `matmul_precision` instead.

    Args:
        values: Values by full name, such as `{"torch.backends.cudnn.benchmark": True}`.

    Raises:
        PhaseError: not a mapping of names; or, before anything moves: no framework of the graph has the setting, it
            cannot have this value, or a phase in another thread uses such settings.

    Example:
        >>> import anyaccel as aa
        >>> settings = aa.FrameworkSettings({"torch.backends.cudnn.benchmark": True})
        >>> phase = aa.TrainPhase("train", data="train", callbacks=[settings])
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        where = "FrameworkSettings: "
        self.values = arguments.mapping(PhaseError, where, "values", values, _EXAMPLE)
        if not self.values or not all(isinstance(name, str) for name in self.values):
            raise PhaseError(f"{where}values has no names of settings: {shown(values)}", hint=f"write {_EXAMPLE}")
        self._held: dict[int, ExitStack] = {}  # by run: phases may run inside of each other

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as plain data."""
        return {"values": dict(self.values)}

    def before_placement(self, phase: Any, plan: Plan, run: Run) -> None:
        """Check that the frameworks of the plan have these settings, and set them."""
        backends = {assignment.framework: assignment.backend for assignment in plan.assignments}
        capabilities = list(filter(None, (backend.capability(HasSettings) for backend in backends.values())))
        allowed = {name: values for settings in capabilities for name, values in settings.settings().items()}
        for name, value in self.values.items():
            if name not in allowed:
                raise PhaseError(
                    f"phase {phase.label!r}: no framework of its graph has the setting {name!r}",
                    available=", ".join(allowed),
                    hint=did_you_mean(name, allowed, "leave it out, or set it yourself"),
                )
            if not any(type(candidate) is type(value) and candidate == value for candidate in allowed[name]):
                available, problem = ", ".join(map(repr, allowed[name])), f"{name} cannot be {shown(value)}"
                raise PhaseError(f"phase {phase.label!r}: {problem}", available=available, hint="use one of these")
        self.phase_end(phase, plan, run, None)  # a FitPhase may have several plans
        if not _HOLDING.acquire(blocking=False):
            raise PhaseError(
                f"phase {phase.label!r} has FrameworkSettings, but a phase in another thread has them too",
                cause="settings apply to the whole process",
                hint="run the phases one at a time, or set the values yourself before both",
            )
        held = self._held[id(run)] = ExitStack()
        held.callback(_HOLDING.release)
        for settings in capabilities:
            values = {name: value for name, value in self.values.items() if name in settings.settings()}
            held.enter_context(settings.with_settings(values))

    def phase_end(self, phase: Any, plan: Plan | None, run: Run, error: BaseException | None) -> None:
        """Restore the previous values."""
        held = self._held.pop(id(run), None)
        if held is not None:
            held.close()
