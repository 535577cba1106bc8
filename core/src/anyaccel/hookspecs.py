"""The moments at which plugins are called, in the order of their calls. This file is the manual of hooks.

A plugin is a plain module that an entry point of the group `anyaccel` names; it imports its framework only inside
functions. It writes `from anyaccel.hookspecs import hookimpl` and decorates functions of the names below, each with
those of the arguments that it wants. Exceptions propagate; no hook changes anything by what it returns, but for
`backends` and `policies`, which offer objects and are called once, when the plugin is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pluggy

PROJECT = "anyaccel"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def backends() -> Iterable[Any]:  # type: ignore[empty-body]
    """CompileEstimate Backend objects. Called once, when the plugin is loaded; must not import the framework."""


@hookspec
def policies() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Offer placement policies by name; installing one changes nothing until a phase says `policy="NAME"`.

    A policy is called with `nodes` (a tuple of `anyaccel.graph.PolicyNode`) and returns a mapping from labels to
    devices for those nodes that it wants to place.
    """


@hookspec
def phase_start(phase: Any, run: Any) -> None:
    """A phase begins; nothing has been decided or moved. `run` is the same object in all moments of an execution."""


@hookspec
def before_placement(phase: Any, plan: Any, run: Any) -> None:
    """The plan is made and nothing has moved: the last moment to prepare a device, or to refuse by raising."""


@hookspec
def after_placement(phase: Any, plan: Any, run: Any) -> None:
    """Every model is where the plan says."""


@hookspec
def after_loading(phase: Any, plan: Any, run: Any) -> None:
    """The data are where the plan says, and the programs are built."""


@hookspec
def epoch_start(run: Any) -> None:
    """An epoch begins; `run.epoch` counts from 0 within the run."""


@hookspec
def step_end(run: Any) -> None:
    """A training step is done; `run.step` counts from 0 within the epoch. Costs nothing where nobody implements it.

    Steps that are done once more after memory ran out are told once more.
    """


@hookspec
def epoch_end(run: Any) -> None:
    """An epoch is done: its losses, and those of the validation if there is one, stand in `run.history`."""


@hookspec
def phase_end(phase: Any, plan: Any, run: Any, error: BaseException | None) -> None:
    """A phase has ended. Called for every phase that started, each implementation on its own.

    `plan` is None if the phase ended before there was one; `error` is what ended it, or None. What an EvalPhase gave
    stands in `run.evaluation`. What an implementation raises becomes a note on `error`, or is raised after all have
    been called.
    """


HOOKS = (
    "phase_start",
    "before_placement",
    "after_placement",
    "after_loading",
    "epoch_start",
    "step_end",
    "epoch_end",
    "phase_end",
)
