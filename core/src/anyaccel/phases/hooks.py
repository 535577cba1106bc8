"""Calls the hooks of a phase: plugins first, then the phase's callbacks."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pluggy

from anyaccel import arguments, interrupts
from anyaccel.errors import PhaseError
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loop_extension import UNLIMITED, LoopExtension
from anyaccel.phases.run import Run


@dataclass(frozen=True, slots=True)
class StepListener:
    """An implementation of `step_end`, called after every n steps of an epoch."""

    call: Callable[..., Any]
    every_n_steps: int


class HookCaller:
    """The plugins and callbacks of one phase.

    Attributes:
        callbacks: The callbacks.
        step_listeners: Implementations of `step_end`.
        has_steps_done_listeners: Whether anybody implements `steps_done`.
        max_call_steps: The most steps of a call such that every listener is notified in time; None without listeners.
        may_stop: Whether a callback sees epochs or steps and may therefore stop the run early.
        reads_models: Whether a custom callback sees epochs, and may look at the models.
    """

    def __init__(self, hooks: pluggy.PluginManager, callbacks: Iterable[Callback]) -> None:
        self._hooks = hooks
        self.callbacks = tuple(callbacks)
        self._intervals = set[int]()
        listeners: list[StepListener] = []
        if hooks.hook.step_end.get_hookimpls():
            listeners.append(StepListener(partial(_call_plugins, hooks.hook.step_end), 1))
            self._intervals.add(1)
        self.has_steps_done_listeners = bool(hooks.hook.steps_done.get_hookimpls())
        self.may_stop = self.reads_models = False
        for callback in self.callbacks:
            for hook in ("step_end", "steps_done", "epoch_start", "epoch_end"):
                method = getattr(callback, hook)
                if getattr(method, "__func__", None) is getattr(Callback, hook):
                    continue
                self.may_stop = True
                if hook == "step_end":
                    where, every = f"callback {type(callback).__name__}: ", getattr(callback, "every_n_steps", 1)
                    every = arguments.integer(PhaseError, where, "every_n_steps", every, 1, 10)
                    if not inspect.signature(method).parameters:  # looked at here, once
                        method = lambda run, method=method: method()  # noqa: E731
                    listeners.append(StepListener(method, every))
                    self._intervals.add(every)
                elif hook == "steps_done":
                    self.has_steps_done_listeners = True
                elif not str(getattr(method, "__module__", "")).startswith("anyaccel."):
                    self.reads_models = True
        self.step_listeners = tuple(listeners)
        self.max_call_steps = min(self._intervals, default=None)

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of everybody; the first exception propagates, with a note if it comes from a plugin."""
        with interrupts.allowed():
            _call_plugins(getattr(self._hooks.hook, hook), **arguments)
            for callback in self.callbacks:
                _call_with_named(getattr(callback, hook), **arguments)
        interrupts.renew()  # hooks may set handlers, and so do the first workers of torch's loaders

    def steps_until_listener(self, step: int) -> int:
        """Return the number of steps from step number `step` of an epoch to the next one with a listener."""
        return min((interval - step % interval for interval in self._intervals), default=UNLIMITED)

    def step_end(self, step: int, **arguments: Any) -> None:
        """Call `step_end` of everybody who listens to this step, which is done."""
        with interrupts.allowed():
            for listener in self.step_listeners:
                if (step + 1) % listener.every_n_steps == 0:
                    listener.call(**arguments)

    def phase_end(self, error: BaseException | None, **arguments: Any) -> None:
        """Call `phase_end` of all listeners, even if one raises.

        Failures become notes on `error`; if it is None, the first failure is raised at the end.

        An interrupt is always raised: code that catches `error` would miss it as a note.
        """
        plugins = [implementation.plugin for implementation in self._hooks.hook.phase_end.get_hookimpls()]
        ends: list[Callable[..., Any]] = []
        for plugin in reversed(plugins):
            one = self._hooks.subset_hook_caller("phase_end", {*plugins} - {plugin})
            ends.append(partial(_call_plugins, one))
        for callback in self.callbacks:
            ends.append(partial(_call_with_named, callback.phase_end))
        failures: list[BaseException] = []
        for end in ends:
            for call in (interrupts.check, partial(end, **arguments, error=error)):
                try:
                    with interrupts.allowed():
                        call()
                except BaseException as raised:  # neither an error nor an interrupt keeps the others from being called
                    failures.append(raised)
        if not failures:
            return
        stop = next((failure for failure in failures if not isinstance(failure, Exception)), error)
        first = failures[0] if stop is None else stop
        for failure in failures:
            if failure is not first:
                origin = "".join(f" ({note})" for note in getattr(failure, "__notes__", ()))
                first.add_note(f"phase_end also failed: {type(failure).__name__}: {failure}{origin}")
        if first is not error:
            raise first


class EpochHooks(LoopExtension):
    """Call the hooks of epochs.

    Args:
        run: Run, passed to the hooks.
        hooks: Plugins and callbacks.
        pipeline: Pipeline, which copies values to the models before a custom callback may read them.
    """

    def __init__(self, run: Run, hooks: HookCaller, pipeline: Pipeline) -> None:
        self._run, self._hooks, self._pipeline = run, hooks, pipeline
        self._reads_models = hooks.reads_models

    def epoch_begins(self) -> None:
        self._hooks.call("epoch_start", run=self._run)

    def epoch_ends(self) -> None:
        if self._reads_models:
            self._pipeline.sync_values()
        self._hooks.call("epoch_end", run=self._run)


def _call_plugins(hook: pluggy.HookCaller, **arguments: Any) -> None:
    """Call a hook of plugins; an exception of one gets a note with the plugin's name."""
    try:
        hook(**arguments)
    except Exception as error:
        implementations = hook.get_hookimpls()
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        passed: list[str] = []
        alike: list[str] = []
        for implementation in implementations:
            function = implementation.function
            code, owner = getattr(function, "__code__", None), getattr(function, "__self__", None)
            for frame in frames:
                if frame.f_code is code:
                    alike.append(implementation.plugin_name)
                    # Trackers share a method, each with an instance of its own. What is read of a frame's variables
                    # is kept in it, so that only those of a method are read.
                    if owner is None or frame.f_locals.get(code.co_varnames[0]) is owner:
                        passed.append(implementation.plugin_name)
                    break
        del frames, frame
        plugins = passed or alike or [implementation.plugin_name for implementation in implementations]
        error.add_note(f"raised in {hook.name} of plugin {', '.join(plugins)}")
        raise


def _call_with_named(method: Callable[..., Any], **arguments: Any) -> None:
    """Call a method with the arguments that its signature names, as pluggy does; with all if it has `**kwargs`."""
    parameters = inspect.signature(method).parameters.values()
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        arguments = {named.name: arguments[named.name] for named in parameters if named.name in arguments}
    method(**arguments)
