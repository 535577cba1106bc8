"""Calling the moments of a phase: plugins first, then the phase's callbacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
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

    @property
    def may_stop(self) -> bool:
        """Whether a callback hears of epochs or steps, and so may end the run before its last epoch."""
        return any(self._methods(moment) for moment in ("epoch_start", "step_end", "epoch_end"))

    def call(self, moment: str, **arguments: Any) -> None:
        """Call one moment; the first exception ends it and propagates."""
        getattr(self._hooks.hook, moment)(**arguments)
        for callback in self._callbacks:
            _tell(getattr(callback, moment), **arguments)

    def phase_end(self, error: BaseException | None, **arguments: Any) -> None:
        """Call `phase_end` of everybody, each on its own; failures are noted on `error`, else raised at the end.

        An interrupt is raised in any case: a note would hide it from who catches `error`.
        """
        known = {**arguments, "error": error}
        failures = [failure for end in self._ends() if (failure := _failure(partial(end, **known))) is not None]
        stop = next((failure for failure in failures if not isinstance(failure, Exception)), None)
        first = next((one for one in (stop, error, *failures) if one is not None), None)
        if first is None:
            return
        for failure in failures:
            if failure is not first:
                first.add_note(f"phase_end also failed: {type(failure).__name__}: {failure}")
        if first is not error:
            raise first

    def _ends(self) -> Iterator[Callable[..., Any]]:
        plugins = [impl.plugin for impl in reversed(self._hooks.hook.phase_end.get_hookimpls())]
        for plugin in plugins:
            yield self._hooks.subset_hook_caller("phase_end", [other for other in plugins if other is not plugin])
        for callback in self._callbacks:
            yield partial(_tell, callback.phase_end)

    def _listening(self, moment: str) -> tuple[Callable[..., Any], ...]:
        hook = getattr(self._hooks.hook, moment)
        return ((hook,) if hook.get_hookimpls() else ()) + self._methods(moment)

    def _methods(self, moment: str) -> tuple[Callable[..., Any], ...]:
        """Those of the callbacks that are written."""
        base, methods = getattr(Callback, moment), [getattr(callback, moment) for callback in self._callbacks]
        return tuple(method for method in methods if getattr(method, "__func__", None) is not base)


def _tell(method: Callable[..., Any], **arguments: Any) -> None:
    """Call a callback's method with those of the arguments that it names, as hooks are; all if it takes any."""
    if len(arguments) > 1:
        named = inspect.signature(method).parameters.values()
        if all(one.kind is not one.VAR_KEYWORD for one in named):
            arguments = {one.name: arguments[one.name] for one in named if one.name in arguments}
    method(**arguments)


def _failure(function: Callable[[], Any]) -> BaseException | None:
    try:
        function()
    except BaseException as failure:  # neither an error nor an interrupt may keep the others from their last call
        return failure
    return None
