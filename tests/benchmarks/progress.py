"""What progress costs: the loop of a TrainPhase that is shown on a terminal, beside the same loop that is not.

MLP 50-16-16-1, Adam, batch 64, on each framework that is installed: as many steps a call as it likes, and one a call,
as where a callback sees every step. The terminal is a pseudo terminal of POSIX, read by another process. Run it
with `nox -s bench`, or `python tests/benchmarks/progress.py [--rounds N] [--seconds S] [--only NAME ...] [--json FILE]`
with `OMP_NUM_THREADS=1`, as threads that wait for each other count as well.

Both loops run in one process in interleaved rounds, and the time of the processor counts, so that what others take of a
busy machine does not. What is spent in drawing is timed by itself, too: it is less than the noise of most loops. The
region is opened and closed once in a phase, however long that is.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import pty
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import anyaccel as aa
from anyaccel.phases import RichProgress
from anyaccel.phases.progress import ThrottledProgress

FEATURES, BATCH, STEPS = 50, 64, 250
PLACES = {
    "numpy": ("anyaccel", "SequentialMLP"),
    "torch": ("anyaccel_torch", "SequentialMLP"),
    "jax": ("anyaccel_jax", "SequentialMLP"),
    "tensorflow": ("anyaccel_tensorflow", "SequentialMLP"),
}


@contextmanager
def terminal() -> Iterator[None]:
    """Standard error is a terminal of 160 columns, which another process reads."""
    screen, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    reader = subprocess.Popen(["cat"], stdin=screen, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before, os.environ["TERM"] = sys.stderr, "xterm-256color"
    sys.stderr = os.fdopen(own, "w", encoding="utf-8")
    os.close(screen)
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before
        reader.wait()


class Timed(RichProgress):
    """Counts calls and drawings, and the seconds of these; opening and closing the region aside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.drawings = 0
        self.seconds = self.once = 0.0

    def advance(self, steps: int) -> None:
        """Count it."""
        self.calls += 1
        super().advance(steps)

    def draw(self) -> None:
        """Time it."""
        began = time.process_time()
        super().draw()
        self.seconds += time.process_time() - began
        self.drawings += 1

    def open(self) -> None:
        """Time it."""
        began = time.process_time()
        super().open()
        self.once += time.process_time() - began

    def close(self) -> None:
        """Time it."""
        began = time.process_time()
        super().close()
        self.once += time.process_time() - began


class EveryStep(aa.Callback):
    """Wants to see every step."""

    def step_end(self, run: Any) -> None:
        """Nothing."""


class Clock(aa.Callback):
    """Looks at the processor's time when the data are there."""

    def after_loading(self) -> None:
        """The loop begins."""
        self.began, self.began_by_the_clock = time.process_time(), time.perf_counter()


class Times(NamedTuple):
    """Of one phase: seconds from its first step to its end, of the processor and by the clock; what `Timed` counts."""

    loop: float
    wall: float
    drawing: float
    once: float
    drawings: int
    calls: int


def advance_ns(count: int = 200_000) -> float:
    """Nanoseconds of one call that draws nothing."""
    progress = ThrottledProgress()
    progress.interval = 1e9  # type: ignore[misc]
    progress.start("", 1, count)
    began = time.process_time()
    for _ in range(count):
        progress.advance(1)
    return (time.process_time() - began) / count * 1e9


def phase_of(framework: str, *, single: bool) -> Callable[[Any, int], Times]:
    """Runs a phase of so many epochs with a progress."""
    x = np.random.default_rng(0).standard_normal((BATCH * STEPS, FEATURES)).astype(np.float32)
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] - x[:, 1:2]}, ["x"], ["y"])
    module, name = PLACES[framework]
    model = getattr(import_module(module), name)(output_shape=(1,), n_layers=3, hidden_dim=16)
    graph = aa.ModelGraph([aa.ModelNode("mlp", model, source.reference())], aa.Optimizer("adam", lr=1e-3))

    def run(progress: Any, epochs: int) -> Times:
        clock = Clock()
        phase = aa.TrainPhase(
            "train",
            data=source,
            sampler=aa.SimpleSampler(BATCH, shuffle=True),
            losses=[aa.AppliedLoss("mse", on="mlp")],
            epochs=epochs,
            callbacks=[clock, EveryStep()] if single else [clock],
        )
        aa.Experiment("cost", graph, progress=progress).run_phase(phase)
        shown = progress if isinstance(progress, Timed) else Timed()
        wall = time.perf_counter() - clock.began_by_the_clock
        return Times(time.process_time() - clock.began, wall, shown.seconds, shown.once, shown.drawings, shown.calls)

    return run


def interleaved(run: Callable[[Any, int], Times], rounds: int, seconds: float) -> dict[str, list[Times]]:
    """Times of rounds that run the phase twice unseen and once shown, each round in another order."""
    run("none", 4)
    epochs = max(round(seconds / max(run("none", 8).loop / 8, 1e-6)), 2)
    names = ["none", "none, again", "shown"]
    times: dict[str, list[Times]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names[number % 3 :] + names[: number % 3]:
            found = run(Timed() if name == "shown" else "none", epochs)
            if number:  # the first round warms up
                times[name].append(found)
    return times


def told(times: dict[str, list[Times]], call_ns: float) -> dict[str, Any]:
    """Medians: the loop, the ratio of the loops round by round, drawings a second, and the share of all progress."""
    base, shown = times["none"], times["shown"]

    def ratio(name: str) -> float:
        return statistics.median(one.loop / other.loop for one, other in zip(times[name], base, strict=True))

    drawn = sum(one.drawing for one in shown) + sum(one.calls for one in shown) * call_ns * 1e-9
    return {
        "loop_s": statistics.median(one.loop for one in base),
        "ratio": ratio("shown"),
        "noise": ratio("none, again"),
        "calls": statistics.median(one.calls for one in shown),
        "drawings_per_s": sum(one.drawings for one in shown) / sum(one.wall for one in shown),
        "drawing_us": sum(one.drawing for one in shown) / max(sum(one.drawings for one in shown), 1) * 1e6,
        "once_ms": statistics.median(one.once for one in shown) * 1e3,
        "percent": drawn / sum(one.loop for one in shown) * 100,
    }


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", "--blocks", type=int, default=9)
    parser.add_argument("--quick", dest="rounds", action="store_const", const=1, help="one round, to see that it runs")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a phase, about")
    parser.add_argument("--only", nargs="*", choices=list(PLACES), default=list(PLACES), help="frameworks")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    call_ns = advance_ns()
    print(f"MLP 50-16-16-1, Adam, batch {BATCH}, {given.rounds} interleaved rounds, processor time")
    print(f"Python {platform.python_version()}; a call that draws nothing: {call_ns:.0f} ns")
    results = []
    for framework in given.only:
        for single in (False, True) if find_spec(PLACES[framework][0]) else ():
            with terminal():
                times = interleaved(phase_of(framework, single=single), given.rounds, given.seconds)
            one = {"framework": framework, "steps_a_call": "1" if single else "many", **told(times, call_ns)}
            results.append(one)
            print(
                f"{framework}, {one['steps_a_call']} steps a call, {one['loop_s']:.2f} s: ratio {one['ratio']:.4f} "
                f"(noise {one['noise']:.4f}); {one['calls']:,.0f} calls, {one['drawings_per_s']:.1f} drawings/s "
                f"of {one['drawing_us']:.0f} us: {one['percent']:.2f} % of the loop; {one['once_ms']:.1f} ms a phase"
            )
    if given.json:
        given.json.write_text(json.dumps({"call_ns": call_ns, "loops": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
