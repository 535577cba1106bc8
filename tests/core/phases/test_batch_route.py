"""The route of a batch: few modules from the runner to the program, always downward, none entered a second time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from anyaccel import AppliedLoss
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph
from anyaccel.phases import EvalPhase, TrainPhase

PHASES = "anyaccel.phases."
ORDER = (
    "runner",
    "bound_phase",
    "prepare",
    "plan_request",
    "train_phase",
    "eval_phase",
    "row_alignment",
    "process_groups",
    "loop_factory",
    "train_loop",
    "outer_contexts",
    "step_listeners",
    "checkpointing",
    "evaluation",
    "compile_policy",
    "profile",
    "step_pacing",
    "oom_recovery",
    "oom_report",
    "nan_check",
    "loop_extension",
    "loss_accumulator",
    "executor.pipeline",
    "process_group",
    "step_checks",
    "executor.cross_segment",
    "executor.clipping",
    "executor.loss_scaling",
    "executor.transfers",
    "executor.stage",
    "learners",
    "probability_check",
    "loading.residency",
    "loading.source_loader",
    "loading.streaming",
    "loading.loader",
    "loading.host_columns",
    "loading.input_data",
    "loading.epoch_plan",
    "loading.prefetch",
    "traceback_cleanup",
    "hooks",
    "running",
    "run",
    "run_stats",
    "measured_work",
    "progress",
    "samplers",
    "settings",
    "plateau",
    "callbacks",
)
"""Modules of phases, the highest first: each calls only modules behind it."""
PARTS = {"progress", "checkpointing"}
"""Packages that have one place in this order."""
OBSERVERS = {
    "interrupts",
    "hooks",
    "run",
    "results",
    "progress",
    "process_group",
    "loop_extension",
    "nan_check",
}
"""Are told of an epoch, and hand on no batch."""
BELOW = (
    "adapter",
    "numpy_backend",
    "precision",
    "backend",
    "call_hints",
    "device",
    "formulas",
    "host_memory",
    "program",
    "registry",
    "rng",
    "segment",
    "specs",
    "user_level",
)
"""The kernel, and the program with what computes for it."""


def name_of(frame: FrameType) -> str:
    """The module of a frame within phases or core; `""` for one that is not anyaccel's."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.removeprefix(PHASES) if module.startswith(PHASES) else module.removeprefix("anyaccel.")


def is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("anyaccel.")


def rank(module: str) -> int:
    package = module.partition(".")[0]
    name = package if package in PARTS else module
    assert name in ORDER, f"{name} has no place in this order"
    return ORDER.index(name)


def is_one_part(caller: str, called: str) -> bool:
    return caller.partition(".")[0] == called.partition(".")[0] in PARTS


@dataclass
class Route:
    """What was called while a phase ran in the main thread."""

    calls: set[tuple[str, str]] = field(default_factory=set)
    """Modules of phases that call each other: caller and called."""
    reentered: set[tuple[str, ...]] = field(default_factory=set)
    """Stacks of modules of phases in which one stands twice, with others in between."""
    epoch: set[str] = field(default_factory=set)
    """All modules of anyaccel that an epoch enters."""


@contextmanager
def traced() -> Iterator[Route]:
    route, epochs = Route(), [0]

    def see(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_qualname == "TrainLoop._epoch":
            epochs[0] += {"call": 1, "return": -1}.get(event, 0)
        if event == "call" and is_ours(frame):
            if epochs[0]:
                route.epoch.add(name_of(frame))
            if str(frame.f_globals["__name__"]).startswith(PHASES) and frame.f_code.co_name != "<module>":
                note(frame)

    def note(frame: FrameType) -> None:
        stack = stack_of(frame)
        route.calls.update(zip(stack[1:2], stack[:1], strict=False))
        if len(set(stack)) < len(stack):
            route.reentered.add(tuple(stack))

    sys.setprofile(see)
    try:
        yield route
    finally:
        sys.setprofile(None)


def stack_of(frame: FrameType | None) -> list[str]:
    """The modules of phases from a frame up to the runner; neighbours that are the same count once."""
    stack: list[str] = []
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(PHASES) and (not stack or stack[-1] != name_of(frame)):
            stack.append(name_of(frame))
        frame = frame.f_back
    return stack


def run(graph: ModelGraph, **settings: Any) -> Route:
    phase = TrainPhase("t", data="train", losses=[AppliedLoss("mse", on="net")], batch_size=4, epochs=3, **settings)
    experiment = Experiment("e", graph, progress="none")
    with traced() as route:
        experiment.run_phase(phase)
    return route


RESIDENCIES = pytest.mark.parametrize("residency", ["resident", "streamed"])


@RESIDENCIES
def test_an_epoch_visits_at_most_16_modules_above_the_program(residency: str, line: Callable[..., ModelGraph]) -> None:
    visited = {name for name in run(line(), residency=residency).epoch if name.partition(".")[0] not in BELOW}
    visited = {name for name in visited if name.partition(".")[0] not in OBSERVERS}
    assert {"train_loop", "executor.pipeline", "loading.epoch_plan", "loading.loader"} <= visited
    assert ("loading.streaming" in visited) == (residency == "streamed")
    assert len(visited) <= 16, sorted(visited)


@RESIDENCIES
def test_modules_of_a_phase_call_only_those_below_them(residency: str, line: Callable[..., ModelGraph]) -> None:
    route = run(line(), residency=residency, validation=EvalPhase("check", data="val", metrics=["mse"]))
    upward = {
        (caller, called)
        for caller, called in route.calls
        if rank(caller) >= rank(called) and not is_one_part(caller, called)
    }
    assert len(route.calls) > 30 and not upward


@RESIDENCIES
def test_no_module_of_a_phase_is_entered_again_by_what_it_calls(
    residency: str, line: Callable[..., ModelGraph]
) -> None:
    validation = EvalPhase("check", data="val", metrics=["mse"])
    assert run(line(), residency=residency, validation=validation).reentered == set()
