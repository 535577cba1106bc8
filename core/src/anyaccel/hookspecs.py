"""The hooks that plugins implement, in the order of their calls.

A plugin is a module named by an entry point of the group `anyaccel`; it imports its framework only inside functions.
It decorates functions of these names with `anyaccel.hookimpl`; each takes any of the hook's arguments, and may raise.
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
    """The plugin's Backend objects. Called once, when the plugin is loaded; must not import the framework."""


@hookspec
def policies() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """The plugin's placement policies by name; a policy is used only by phases with `policy="NAME"`.

    A policy is called with `nodes` (a tuple of `anyaccel.graph.PolicyNode`) and returns a mapping from labels to
    devices for the nodes that it wants to place.
    """


@hookspec
def phase_start(phase: Any, run: Any) -> None:
    """A phase begins; nothing is planned or moved yet. `run` is the same object in all hooks of one execution."""


@hookspec
def before_placement(phase: Any, plan: Any, run: Any) -> None:
    """The plan is made and nothing has moved: the place to prepare a device, or to stop the phase by raising."""


@hookspec
def after_placement(phase: Any, plan: Any, run: Any) -> None:
    """Every model is on its device."""


@hookspec
def after_loading(phase: Any, plan: Any, run: Any) -> None:
    """The data are loaded and the programs are built."""


@hookspec
def epoch_start(run: Any) -> None:
    """An epoch begins; `run.epoch` counts from 0 within the run."""


@hookspec
def step_end(run: Any) -> None:
    """A training step, `run.step` of its epoch, is done. Called again if it is repeated after memory ran out."""


@hookspec
def steps_done(run: Any, steps: Any) -> None:
    """One or many steps of one call, a FinishedSteps, are done; unlike `step_end` it leaves many in one call."""


@hookspec
def epoch_end(run: Any) -> None:
    """An epoch is done; `run.history` has its losses, and those of the validation if there is one."""


@hookspec
def phase_end(phase: Any, plan: Any, run: Any, error: BaseException | None) -> None:
    """A phase has ended. Called for every phase that started; every implementation is called, even if one raises.

    `plan` is None if it ended before planning; `error` is the exception that ended it, or None; an EvalPhase's result
    is `run.evaluation`. An exception of one becomes a note on `error`, or is raised after all have been called.
    """


_NAMES = "phase_start before_placement after_placement after_loading epoch_start step_end"
HOOKS = (*_NAMES.split(), "steps_done", "epoch_end", "phase_end")
