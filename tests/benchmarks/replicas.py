"""Replicas of torch beside DistributedDataParallel in a loop by hand, in the same processes, one after the other.

    anyaccel run --replicas 2 tests/benchmarks/replicas.py
    OMP_NUM_THREADS=1 anyaccel run --replicas 2 tests/benchmarks/replicas.py sizes
    anyaccel run --replicas 2 tests/benchmarks/replicas.py large
    anyaccel run --replicas 2 tests/benchmarks/replicas.py deep
    anyaccel run --replicas 2 tests/benchmarks/replicas.py deep 200

Prints a step's seconds of wall and of processors, and their ratios, the median of interleaved rounds. `sizes` has 0.1,
2, 25 and 100 MB of gradients, with an SGD; those above 25 MB are exchanged within the backward pass. `large` is a model
of 25 million parameters, exchanged so, and beside it all in one message after the pass; `deep` has 27 million in layers
of equal size. A number SIMULATES a network of so many megabytes a second: each message is held back, in a thread that
sleeps, by its size.
"""

from __future__ import annotations

import math
import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

import anyaccel as aa
from anyaccel_distributed import Replicate
from anyaccel_torch import TorchBackend


@dataclass(frozen=True)
class Case:
    """A perceptron, and how it is measured."""

    width: int
    hidden: int
    batch: int
    rounds: int = 7
    steps: int = 60
    depth: int = 3
    """Layers."""
    optimizer: str = "adam"

    def __str__(self) -> str:
        return f"{self.width}" + f"-{self.hidden}" * (self.depth - 1) + f"-1, batch {self.batch}"


SMALL = [Case(64, 128, 256, steps=300), Case(256, 512, 256), Case(1024, 1024, 256)]
SIZES = [
    Case(64, 128, 256, rounds=21, steps=300, optimizer="sgd"),
    Case(512, 512, 256, rounds=5, steps=60, optimizer="sgd"),
    Case(1280, 1280, 64, rounds=5, steps=8, depth=5, optimizer="sgd"),
    Case(1600, 1600, 64, rounds=5, steps=4, depth=11, optimizer="sgd"),
]
LARGER = {
    "large": Case(2048, 4096, 64, rounds=4, steps=3),
    "deep": Case(1664, 1664, 128, rounds=3, steps=10, depth=11),
}
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@dataclass(frozen=True)
class Seconds:
    """Of an epoch: by the clock, and of this process's threads."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Seconds:
        """Those that have passed."""
        return cls(time.perf_counter(), time.process_time())

    def passed(self) -> Seconds:
        """Those since then."""
        now = self.now()
        return Seconds(now.wall - self.wall, now.processor - self.processor)


def least(epochs: list[Seconds]) -> Seconds:
    """Of the fastest."""
    return Seconds(min(epoch.wall for epoch in epochs), min(epoch.processor for epoch in epochs))


class Clock(aa.Callback):
    """Takes the seconds of epochs."""

    def __init__(self) -> None:
        self.epochs: list[Seconds] = []
        self.began = Seconds.now()

    def epoch_start(self) -> None:  # type: ignore[override]
        """An epoch starts."""
        self.began = Seconds.now()

    def epoch_end(self) -> None:  # type: ignore[override]
        """It is done."""
        self.epochs.append(self.began.passed())


class Held:
    """A message that is held back."""

    def __init__(self) -> None:
        self.future: Any = torch.futures.Future()

    def wait(self) -> None:
        """Until it is there."""
        self.future.wait()

    def get_future(self) -> Any:
        """As of torch's."""
        return self.future


class SlowLink:
    """A network that takes one message after another; simulated by a thread that sleeps."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.messages: queue.SimpleQueue[tuple[Any, int, Any]] = queue.SimpleQueue()
        self.allreduce = vars(torch.distributed.ProcessGroup)["allreduce"]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        """Hold each message back when it is there."""
        while True:
            work, nbytes, future = self.messages.get()
            work.wait()
            time.sleep(nbytes / self.rate)
            future.set_result(work.result())

    def send(self, group: Any, tensors: list[torch.Tensor], *rest: Any) -> Held:
        """As `ProcessGroup.allreduce`; the result can be waited for."""
        held = Held()
        work = self.allreduce.__get__(group)(tensors, *rest)
        self.messages.put((work, tensors[0].nbytes, held.future))
        return held

    def install(self) -> None:
        """Let all sums of gradients go this way."""
        torch.distributed.ProcessGroup.allreduce = lambda group, *args: self.send(group, *args)  # type: ignore[method-assign,assignment]

    def hook(self, _, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations as text
        """A communication hook of DistributedDataParallel."""
        sent = self.send(torch.distributed.group.WORLD, [bucket.buffer().div_(SIZE)])
        return sent.get_future().then(lambda future: future.value()[0])


def model_of(case: Case) -> torch.nn.Module:
    """A perceptron."""
    torch.manual_seed(0)
    widths = [case.width, *[case.hidden] * (case.depth - 1)]
    hidden = [[torch.nn.Linear(n, m), torch.nn.ReLU()] for n, m in pairwise(widths)]
    return torch.nn.Sequential(*chain.from_iterable(hidden), torch.nn.Linear(case.hidden, 1))


def replicas(case: Case, x: np.ndarray, y: np.ndarray, bucket_bytes: float | None = None) -> Callable[[], Seconds]:
    """Trains, and gives the seconds of the fastest epoch; in buckets of this size, or that of the default."""
    rows = aa.FeatureSet.from_dict("d", {"x": x, "y": y}, features=["x"], target=["y"])
    graph = aa.ModelGraph(
        [aa.ModelNode("net", model_of(case), rows.reference())], aa.Optimizer(case.optimizer, lr=1e-3)
    )
    experiment, losses = aa.Experiment(graph), [aa.AppliedLoss("mse", on="net")]
    sampler = aa.SimpleSampler(case.batch, shuffle=True)

    def run() -> Seconds:
        clock = Clock()
        phase = aa.TrainPhase("train", data=rows, losses=losses, sampler=sampler, epochs=3, callbacks=[clock])
        group: Any = TorchBackend().required(Replicate).replica_group(RANK, SIZE)
        default = group.bucket_bytes
        group.bucket_bytes = default if bucket_bytes is None else bucket_bytes
        experiment.run_phase(phase)
        group.bucket_bytes = default
        return least(clock.epochs[1:])

    return run


def by_hand(
    case: Case, x: np.ndarray, y: np.ndarray, link: SlowLink | None, *, fused: bool = True
) -> Callable[[], Seconds]:
    """The same loop with DistributedDataParallel and an optimizer of torch."""
    model = DistributedDataParallel(model_of(case))
    if link is not None:
        model.register_comm_hook(None, link.hook)
    kind = torch.optim.Adam if case.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3, fused=fused or None)
    inputs, targets, part = torch.from_numpy(x), torch.from_numpy(y), case.batch // SIZE
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))  # as the phase does

    def epoch() -> Seconds:
        torch.distributed.barrier()
        began = Seconds.now()
        for start in range(RANK * part, len(x), case.batch):
            optimizer.zero_grad()
            rows = order[start : start + part]
            outputs = model(inputs.index_select(0, rows))
            torch.nn.functional.mse_loss(outputs, targets.index_select(0, rows)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return began.passed()

    return lambda: least([epoch(), epoch()])


def compare(case: Case, *, beside_whole: bool = False, rate: float | None = None) -> None:
    """Measure one model."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(case.batch * case.steps, n)).astype(np.float32) for n in (case.width, 1))
    ways = {"anyaccel": replicas(case, x, y)}
    if beside_whole:
        ways["all in one message"] = replicas(case, x, y, math.inf)
    for way in ways.values():
        way()  # joins the replicas
    link = None if rate is None else SlowLink(rate)
    if link is not None:
        link.install()
    ways["by hand"] = by_hand(case, x, y, link)
    ways["by hand, not fused"] = by_hand(case, x, y, link, fused=False)
    seconds: dict[str, list[Seconds]] = {name: [] for name in ways}
    for _ in range(case.rounds):
        for name, way in ways.items():
            seconds[name].append(way())
    if RANK:
        return
    on = "" if rate is None else f", SIMULATED network of {rate / 1e6:.0f} MB/s"
    megabytes = 4e-6 * sum(parameter.numel() for parameter in model_of(case).parameters())
    print(f"{case}, {megabytes:.1f} MB{on}")
    by_hand_seconds = seconds["by hand"]
    for name, values in seconds.items():
        parts = []
        for clock in ("wall", "processor"):
            taken, others = ([getattr(value, clock) for value in way] for way in (values, by_hand_seconds))
            ratio = statistics.median(a / b for a, b in zip(taken, others, strict=True))
            parts.append(f"{clock} {1e6 * statistics.median(taken) / case.steps:.0f} us, {ratio:.3f} of by hand")
        print(f"  {name}: {'; '.join(parts)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["sizes"]:
        for size in SIZES:
            compare(size)
    elif len(sys.argv) > 1:
        compare(LARGER[sys.argv[1]], beside_whole=True, rate=1e6 * float(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        for small in SMALL:
            compare(small)
