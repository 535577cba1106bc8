"""Contestants take turns, round by round, so that the noise of the machine meets all of them."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.figures import Figures
from harness.process import Process, threads


@dataclass(frozen=True, slots=True)
class Contestant:
    """A loop that is measured.

    Args:
        name: as tables show it.
        process: contestants of one word share a process; those of others disturb it no more than other programs do.
        make: `module:function`, called with `settings`; gives a Turn, which returns seconds.
        settings: keywords of the function, plain data.
        environment: what its process finds in the environment, beside the number of threads.
    """

    name: str
    process: str
    make: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def contest(contestants: Iterable[Contestant], rounds: int, count: int = 1, seed: int = 0) -> dict[str, Figures]:
    """Let each take `rounds` turns, after one that does not count; every round in another order.

    Args:
        contestants: who takes part.
        rounds: how many turns of each count.
        count: threads of every framework.
        seed: of the orders.

    Returns:
        figures by name; of those that cannot take part, why.
    """
    figures: dict[str, Figures] = {}
    with ExitStack() as stack:
        processes = _made(contestants, figures, stack, count)
        orders = random.Random(seed)
        for _ in range(rounds):
            for name in orders.sample(sorted(processes), len(processes)):
                if figures[name].missing:
                    continue
                figures[name].take(processes[name].ask(do="run", name=name))
        for name, process in processes.items():
            figures[name].told = process.ask(do="tell", name=name).get("told", {})
    return figures


def _made(
    contestants: Iterable[Contestant], figures: dict[str, Figures], stack: ExitStack, count: int
) -> dict[str, Process]:
    """Processes by contestant, of those that could be made and took their first turn."""
    open_ones: dict[str, Process] = {}
    found = {}
    for one in contestants:
        if one.process not in open_ones:
            environment = {**threads(count), **one.environment}
            open_ones[one.process] = stack.enter_context(Process(environment))
        process = open_ones[one.process]
        figures[one.name] = first = Figures()
        began = time.perf_counter()
        first.check(process.ask(do="make", name=one.name, make=one.make, settings=dict(one.settings)))
        if not first.missing:
            first.check(process.ask(do="run", name=one.name))
        if not first.missing:
            first.first = time.perf_counter() - began
            found[one.name] = process
    return found


def fresh_contest(
    contestants: Iterable[Contestant], rounds: int, count: int = 1, *, emptied: Path | None = None
) -> dict[str, Figures]:
    """As `contest`, but every turn is taken in a fresh process, and none goes before.

    Args:
        contestants: who takes part.
        rounds: how many turns each takes.
        count: threads of every framework.
        emptied: a folder that is emptied before every turn.
    """
    taking_part = {one.name: one for one in contestants}
    figures = {name: Figures() for name in taking_part}
    orders = random.Random(0)
    for _ in range(rounds):
        for name in orders.sample(sorted(taking_part), len(taking_part)):
            if emptied is not None:
                shutil.rmtree(emptied, ignore_errors=True)
            _once(taking_part[name], figures[name], count)
    return figures


def _once(one: Contestant, figures: Figures, count: int) -> None:
    if figures.missing:
        return
    began = time.perf_counter()
    with Process({**threads(count), **one.environment}) as process:
        figures.check(process.ask(do="make", name=one.name, make=one.make, settings=dict(one.settings)))
        if not figures.missing:
            figures.take(process.ask(do="run", name=one.name))
            figures.told = process.ask(do="tell", name=one.name).get("told", {})
    figures.first = time.perf_counter() - began if math.isnan(figures.first) else figures.first
