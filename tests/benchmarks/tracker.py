"""What a tracker costs: the loop of a TrainPhase that the TensorBoard plugin logs, beside the same loop unlogged.

MLP 50-16-16-1, Adam, batch 64, on torch and on NumPy, with epochs of several lengths. Run it with `nox -s bench`, or
`python tests/benchmarks/tracker.py [--quick] [--cpu] [--json FILE]` where anyaccel-torch and anyaccel-tensorboard
are installed. Both loops run in one process in interleaved blocks, so that the noise of the machine meets both alike.
What the plugin does after an epoch is timed by itself, too: it is less than the noise of most loops. `--cpu` counts the
time of the processor, so that what others take of a busy machine does not count; use it with `OMP_NUM_THREADS=1`, as
threads that wait for each other count as well.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import anyaccel as aa
import anyaccel_torch
from anyaccel.registry import registry
from anyaccel_tensorboard import log_to

FEATURES, BATCH, STEPS = 50, 64, 1600
LENGTHS = (25, 100, 400, 1600)
CLOCK = [time.perf_counter]
MODELS = {"torch": anyaccel_torch.SequentialMLP, "numpy": aa.SequentialMLP}


def now() -> float:
    """Seconds, by the clock that `main` has chosen."""
    return CLOCK[0]()


class Times(NamedTuple):
    """Seconds of one phase: its loop, which is all epochs with what is logged after each; all else; and each log."""

    loop: float
    rest: float
    logs: tuple[float, ...]


class Clock(aa.Callback):
    """Looks at the time when the loop begins and when its last epoch has been told to the plugins, which come first."""

    def after_loading(self) -> None:
        """The loop begins."""
        self.began = self.ended = now()

    def epoch_end(self, run: Any) -> None:
        """The loop may have ended."""
        self.ended = now()


class Watch:
    """A plugin that times what all other plugins do when an epoch has ended."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @aa.hookimpl(wrapper=True)
    def epoch_end(self) -> Generator[None]:
        """Around the others."""
        began = now()
        yield
        self.seconds.append(now() - began)


def phase_of(framework: str, length: int, watch: Watch) -> Callable[[], Times]:
    """Runs a phase of `STEPS` steps in epochs of `length` steps."""
    x = np.random.default_rng(0).standard_normal((BATCH * length, FEATURES)).astype(np.float32)
    source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] - x[:, 1:2]}, ["x"], ["y"])
    source.split_random({"train": 1.0})
    model = MODELS[framework](output_shape=(1,), n_layers=3, hidden_dim=16)
    graph = aa.ModelGraph([aa.ModelNode("mlp", model, source.reference())], aa.Optimizer("adam", lr=1e-3))
    experiment = aa.Experiment(f"{framework}-{length}", graph, progress="none")
    clock = Clock()
    phase = aa.TrainPhase(
        "train",
        data="train",
        sampler=aa.SimpleSampler(BATCH, shuffle=True),
        losses=[aa.AppliedLoss("mse", on="mlp")],
        epochs=STEPS // length,
        callbacks=[clock],
    )

    def run() -> Times:
        watch.seconds.clear()
        began = now()
        experiment.run_phase(phase)
        whole = now() - began
        loop = clock.ended - clock.began
        return Times(loop, whole - loop, tuple(watch.seconds))

    return run


def interleaved(phase: Callable[[], Times], folder: str, count: int) -> dict[str, list[Times]]:
    """Times of `count` rounds that run the phase twice without logging and once with, each round in another order."""
    wheres = {"not logged": None, "not logged, again": None, "logged": folder}
    times: dict[str, list[Times]] = {name: [] for name in wheres}
    for number in range(count + 1):
        names = list(wheres)
        for name in names[number % 3 :] + names[: number % 3]:
            with log_to(wheres[name]):
                found = phase()
            if number:  # the first round warms up
                times[name].append(found)
    return times


def told(times: dict[str, list[Times]], length: int) -> dict[str, Any]:
    """Medians: an epoch, the ratio of the loops round by round, what is done after an epoch and outside of the loop."""
    base, logged = times["not logged"], times["logged"]
    epoch = statistics.median(one.loop for one in base) / (STEPS // length)
    log = statistics.median(seconds for one in logged for seconds in one.logs)

    def ratio(name: str) -> float:
        return statistics.median(one.loop / other.loop for one, other in zip(times[name], base, strict=True))

    return {
        "epoch_ms": epoch * 1e3,
        "ratio": ratio("logged"),
        "noise": ratio("not logged, again"),
        "log_us": log * 1e6,
        "log_percent": log / epoch * 100,
        "phase_ms": statistics.median(one.rest - other.rest for one, other in zip(logged, base, strict=True)) * 1e3,
    }


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--quick", dest="blocks", action="store_const", const=1, help="one round, to see that it runs")
    parser.add_argument("--cpu", action="store_true", help="count the processor's time")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    CLOCK[0] = time.process_time if given.cpu else time.perf_counter
    print(f"MLP 50-16-16-1, Adam, batch {BATCH}, {given.blocks} interleaved rounds of {STEPS} steps")
    print(f"Python {platform.python_version()}, {'processor time' if given.cpu else 'time by the clock'}")
    results, watch = [], Watch()
    registry().register(watch, "watch")
    for framework in MODELS:
        for length in LENGTHS:
            with tempfile.TemporaryDirectory() as folder:
                times = interleaved(phase_of(framework, length, watch), folder, given.blocks)
            one = {"framework": framework, "epoch_steps": length, **told(times, length)}
            results.append(one)
            print(
                f"{framework}, epochs of {length:4d} steps, {one['epoch_ms']:7.2f} ms: ratio {one['ratio']:.4f} "
                f"(noise {one['noise']:.4f}); {one['log_us']:4.0f} us after an epoch, {one['log_percent']:.2f} %; "
                f"{one['phase_ms']:+.1f} ms a phase"
            )
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
