"""Calling the moments of a phase: plugins first, then the phase's callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pluggy

from anyaccel.phases.callbacks import Callback


class Moments:
    """The listeners of one phase."""

    def __init__(self, hooks: pluggy.PluginManager, callbacks: Iterable[Callback]) -> None:
        self._hooks = hooks
        self._callbacks = tuple(callbacks)
        self.step_listeners: tuple[Callable[..., Any], ...] = self._listening("step_end")
        """What wants to see every step; the loop asks once."""

    def call(self, moment: str, **arguments: Any) -> None:
        """Call one moment; the first exception ends it and propagates."""
        getattr(self._hooks.hook, moment)(**arguments)
        for callback in self._callbacks:
            getattr(callback, moment)(**arguments)

    def phase_end(self, error: BaseException | None, **arguments: Any) -> None:
        """Call `phase_end` of everybody, each on its own; failures are noted on `error`, else raised at the end."""
        failures = [failure for function in self._ends(error, arguments) if (failure := _failure(function)) is not None]
        if not failures:
            return
        first = error if error is not None else failures[0]
        for failure in failures:
            if failure is not first:
                first.add_note(f"phase_end also failed: {type(failure).__name__}: {failure}")
        if error is None:
            raise first

    def _ends(self, error: BaseException | None, arguments: dict[str, Any]) -> list[Callable[[], Any]]:
        known = {**arguments, "error": error}
        impls = reversed(self._hooks.hook.phase_end.get_hookimpls())
        ends = [partial(impl.function, **{name: known[name] for name in impl.argnames}) for impl in impls]
        return [*ends, *(partial(callback.phase_end, **known) for callback in self._callbacks)]

    def _listening(self, moment: str) -> tuple[Callable[..., Any], ...]:
        base = getattr(Callback, moment)
        listeners = [getattr(one, moment) for one in self._callbacks if getattr(type(one), moment) is not base]
        hook = getattr(self._hooks.hook, moment)
        return ((hook,) if hook.get_hookimpls() else ()) + tuple(listeners)


def _failure(function: Callable[[], Any]) -> BaseException | None:
    try:
        function()
    except Exception as failure:  # one listener must not keep the others from their last call
        return failure
    return None
