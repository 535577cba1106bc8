"""From the start of a program to its first training step."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any


class Beginning:
    """What happens once in a process: imports, then everything up to the end of the first step.

    Args:
        modules: what is imported first.
        begin: makes and runs the first step; is called after the imports.
    """

    def __init__(self, modules: Sequence[str], begin: Callable[[], object]) -> None:
        self._modules, self._begin = modules, begin
        self._parts: dict[str, float] = {}

    def __call__(self) -> float:
        """Seconds from here to the end of the first step."""
        began = time.perf_counter()
        for module in self._modules:
            importlib.import_module(module)
        imported = time.perf_counter()
        self._begin()
        ended = time.perf_counter()
        self._parts = {"imports": imported - began, "first_step": ended - imported}
        return ended - began

    def told(self) -> dict[str, Any]:
        """Seconds of the imports and of the rest."""
        return self._parts


def by_hand(name: str) -> Beginning:
    """Import torch, make tensors and a model, and take one step."""

    def begin() -> None:
        from loops.in_torch import columns, made
        from loops.workloads import workload

        work = workload(name, 1)
        model, optimizer, loss_of = made(work)
        x, y = columns(work)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return Beginning(["torch"], begin)


def ours(name: str, *, framework: str, **settings: Any) -> Beginning:
    """Import anyaccel and a framework, make a graph, and run a phase of one step."""

    def begin() -> None:
        from loops.ours import experiment_of, phase_of
        from loops.workloads import workload

        work = workload(name, 1)
        experiment = experiment_of(work, [framework])
        experiment.run_phase(phase_of(experiment, work, 1, **settings))

    return Beginning(["anyaccel", framework], begin)


def only_import(modules: Sequence[str]) -> Beginning:
    """Imports alone."""
    return Beginning(modules, lambda: None)


def command(*, words: Sequence[str]) -> Callable[[], float]:
    """A command of anyaccel's, in a process of its own."""
    import subprocess
    import sys

    def turn() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "anyaccel", *words], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    return turn
