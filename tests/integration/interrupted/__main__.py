"""Interrupts a phase of a mode COUNT times; `FAULT` plants what a test of these tests must see."""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import traceback
from collections import Counter
from contextlib import nullcontext
from typing import Any

import anyaccel as aa

from .faults import FAULTS
from .instants import Sender, Stages
from .leftovers import left_behind, leftovers, name_semaphores, open_files
from .modes import MODES, RATE, Mode

PATIENCE = 60.0
"""Seconds that threads and processes have to end, and an exception to come."""


class Told(aa.Callback):
    """Keeps the run of a phase, which tells how many steps it has done."""

    def __init__(self) -> None:
        self.run: Any = None

    def phase_start(self, phase: aa.Phase, run: Any) -> None:
        """See `Callback`."""
        self.run = run

    def steps(self) -> int:
        """How many steps the run has done; it is told once."""
        run, self.run = self.run, None
        if run is None:  # interrupted before it began
            return 0
        unfinished = run.step if run.looping and run.epoch == len(run.history) else 0
        return sum(epoch.steps for epoch in run.history) + unfinished


def counts(graph: aa.ModelGraph) -> set[int]:
    """How many steps every parameter and every optimizer of a graph has seen."""
    moved = {
        float(-number / RATE)
        for name, array in graph.state().items()
        if "/parameters/" in name
        for number in array.flat
    }
    assert all(count.is_integer() for count in moved), moved
    return {int(count) for count in moved} | {state.step for state in graph.optimizer_states.values()}


class Interrupted:
    """The phases of a mode, which are interrupted one after the other."""

    def __init__(self, mode: Mode, seed: int, patience: float = PATIENCE) -> None:
        self._mode, self._patience = mode, patience
        self._draw, self._stages, self._told = random.Random(seed), Stages(), Told()
        self._graph = mode.graph()
        self._experiment = aa.Experiment("e", self._graph, callbacks=[self._told], progress="none")
        self.total = 0
        self._raises = False
        self.seen: Counter[str] = Counter()
        """At which stages a signal came."""
        self.raised_elsewhere: list[str] = []

    def whole(self, epochs: int = 1) -> None:
        """A phase to its end."""
        self._experiment.run_phase(self._mode.phase(epochs))
        self.check("a phase to its end")

    def time(self) -> None:
        """Note how long the stages of a phase last."""
        self._stages.aim("", 0, 0.0, lambda seconds: None, lambda: None)
        self.whole(2)

    def check(self, when: str) -> None:
        """Check that all values are of the step that was told."""
        self.total += self._told.steps()
        assert counts(self._graph) == {self.total}, f"{when}: steps {counts(self._graph)}, told {self.total}"

    def interrupt(self, number: int, before: set[str]) -> None:
        """A phase that is interrupted, at an instant within a stage, each in its turn, or at any."""
        stages = [*sorted(self._stages.seconds), ""]
        stage, draw = stages[number % len(stages)], self._draw
        calls = draw.choice([1, 1, 2, 5]) if stage in ("training", "validating", "between epochs") else 1
        first = signal.SIGTERM if number % 4 == 3 else signal.SIGINT
        n_signals = draw.randint(1, self._mode.signals)
        sender = Sender(
            self._stages,
            limit=self._patience if stage else draw.uniform(0.0, self._mode.seconds),
            signals=[first, *[signal.SIGINT] * (n_signals - 1)],
            gaps=[draw.uniform(0.0, 1.0) for _ in range(n_signals - 1)],
            patience=self._patience,
            why_lost=lambda: "\n".join(self.raised_elsewhere),
        )
        self._stages.aim(stage, calls, draw.random(), sender.later, sender.now)
        self._catch(sender, epochs=2 if stage == "ending" else 10**6)
        self.seen[sender.stage] += 1
        self.after(f"interrupt {number}, while {sender.stage}", before, n_signals)

    def _catch(self, sender: Sender, epochs: int) -> None:
        phase = self._mode.phase(epochs)
        sender.start()
        self._raises = True
        try:
            try:
                self._experiment.run_phase(phase)
                sender.raised.wait(2 * self._patience)  # where the phase came to its end before
            finally:
                self._raises = False
        except (KeyboardInterrupt, SystemExit) as error:
            self._raises = False
            traceback.clear_frames(error.__traceback__)
        sender.raised.set()
        sender.join()

    def handle(self, number: int, frame: object) -> None:
        """Handler of signals. One that comes when the phase has ended by another raises nothing."""
        if self._raises:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(number)

    def after(self, when: str, before: set[str], n_signals: int) -> None:
        """Check what a phase has left."""
        left = left_behind(before, self._patience)
        assert not left, f"{when} left {sorted(left)}"
        assert not self.raised_elsewhere, f"{when}: {self.raised_elsewhere}"
        if n_signals == 1:
            self.check(when)
        else:  # a step may have been broken off, as a note on the error says
            self._graph.load_state(self._mode.graph().state())
            self.total = 0 * self._told.steps()

    def watch(self) -> None:
        """Handle signals; and note errors that Python only prints."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle)
        sys.unraisablehook = self._note
        threading.excepthook = self._note

    def _note(self, error: Any) -> None:
        where = getattr(error, "thread", None) or f"{error.err_msg} {error.object}"
        trace = "".join(traceback.format_tb(error.exc_traceback))
        self.raised_elsewhere.append(f"{where}: {error.exc_value!r}\n{trace}")


def main(name: str, count: int, seed: int, fault: str = "") -> None:
    """Interrupt a phase of a mode `count` times."""
    name_semaphores()
    sys.setswitchinterval(1e-5)  # the thread that sends signals must not wait until a stage is over
    phases = Interrupted(MODES[name], seed, patience=PATIENCE if not fault else 1.0)
    phases.watch()
    phases.whole()
    phases.whole()  # and once more, as what is loaded lazily is loaded now
    phases.time()
    before, n_open = leftovers(), open_files()
    assert not any("anyaccel" in each for each in before if each.startswith("thread")), before
    with FAULTS[fault][0]() if fault else nullcontext():
        for number in range(count):
            phases.interrupt(number, before)
    phases.whole()
    more = open_files() - n_open
    assert more < 5 + count // 10, f"{more} files are left open"
    print(
        json.dumps({"interrupts": count, "steps": phases.total, "more open files": more, "stages": dict(phases.seen)})
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
