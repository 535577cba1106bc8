"""The hooks that plugins implement, in the order of their calls.

A plugin is a module named by an entry point of the group `anyaccel`; it imports its framework only inside functions. It
decorates functions with these names with `anyaccel.hookimpl`. Each function takes any of the hook's arguments, and may
raise. For example::

    @anyaccel.hookimpl
    def epoch_end(run):
        print(run.epoch, run.history[-1].loss)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pluggy

PROJECT = "anyaccel"
CONTRACT = 2
"""The version of the contract of backends and capabilities; a plugin that offers these says it: `contract = 2`."""
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def backends() -> Iterable[Any]:  # type: ignore[empty-body]
    """Return the plugin's Backend objects. Called once, when the plugin is loaded; must not import the framework."""


@hookspec
def policies() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Return the plugin's placement policies by name; a policy is used only by phases with `policy="NAME"`.

    A policy is called with `nodes` (a tuple of `anyaccel.graph.PolicyNode`). It returns a mapping from labels to
    devices for the nodes that it places.
    """


@hookspec
def phase_start(phase: Any, run: Any) -> None:
    """Run code when a phase begins, before planning. `run` is the same object in all hooks of one execution."""


@hookspec
def before_placement(phase: Any, plan: Any, run: Any) -> None:
    """Run code when the plan is made and nothing has moved. Prepare a device here, or raise to stop the phase."""


@hookspec
def after_placement(phase: Any, plan: Any, run: Any) -> None:
    """Run code when every model is on its device."""


@hookspec
def after_loading(phase: Any, plan: Any, run: Any) -> None:
    """Run code when the data are loaded and the programs are built."""


@hookspec
def epoch_start(run: Any) -> None:
    """Run code when an epoch begins; `run.epoch` counts from 0 within the run."""


@hookspec
def step_end(run: Any) -> None:
    """Run code after a training step, number `run.step` of its epoch. Called again if it is repeated after memory ran
    out.
    """


@hookspec
def steps_done(run: Any, steps: Any) -> None:
    """Run code after one or many steps of a single call (a FinishedSteps). Unlike `step_end`, it splits no call."""


@hookspec
def epoch_end(run: Any) -> None:
    """Run code after an epoch; `run.history` has its losses, and those of the validation if there is one."""


@hookspec
def phase_end(phase: Any, plan: Any, run: Any, error: BaseException | None) -> None:
    """Run code after a phase. Called for every phase that started; every implementation is called, even if one raises.

    `plan` is None if the phase ended before planning. `error` is the exception that ended it, or None. The result of an
    EvalPhase is `run.evaluation`. If an implementation raises, its exception becomes a note on `error`, or is raised
    after all have been called.
    """


_NAMES = "phase_start before_placement after_placement after_loading epoch_start step_end"
HOOKS = (*_NAMES.split(), "steps_done", "epoch_end", "phase_end")
