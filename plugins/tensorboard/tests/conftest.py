"""Fixtures: the NumPy backend with this plugin and no other, small phases, and TensorBoard's own reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import anyaccel as aa
import anyaccel_tensorboard
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.plugin_testing import entry
from anyaccel.registry import Registry
from anyaccel_tensorboard import log_to
from anyaccel_tensorboard.tracking import VARIABLE, switch


class Oops(Exception):
    """Raised by tests."""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The process's registry replaced by one with this plugin; logging is off."""
    made = Registry(NumpyBackend, lambda: [entry("tensorboard", anyaccel_tensorboard)])
    monkeypatch.setattr("anyaccel.registry._registry", [made])
    monkeypatch.setattr(switch, "_calls", [])
    for name in ("ANYACCEL_PLUGINS", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder to log to, which is missing yet."""
    return tmp_path / "runs"


@pytest.fixture
def logged(runs: Path) -> Iterator[Path]:
    """Everything is logged to `runs`."""
    with log_to(runs):
        yield runs


@pytest.fixture
def data() -> aa.FeatureSet:
    """24 rows of `x` [3], `y` and `z` with the splits `train` (16 rows) and `val` (8 rows)."""
    x = np.random.default_rng(0).normal(size=(24, 3))
    made = aa.FeatureSet.from_dict("data", {"x": x, "y": x.sum(1), "z": x[:, 0]}, ["x"], ["y", "z"])
    made.add_splits({"train": np.arange(16), "val": np.arange(16, 24)})
    return made


@pytest.fixture
def experiment(data: aa.FeatureSet) -> Callable[..., aa.Experiment]:
    """`experiment("demo", optimizer=...)`: a quiet one over a graph `pair` of two nodes, `one` and `two`."""

    def make(label: str = "demo", optimizer: Any = None, graph: str = "pair", **settings: Any) -> aa.Experiment:
        nodes = [
            aa.ModelNode("one", aa.SequentialMLP(), data.reference(["x"], ["y"])),
            aa.ModelNode("two", aa.SequentialMLP(), data.reference(["x"], ["z"])),
        ]
        made = aa.ModelGraph(nodes, optimizer or aa.Optimizer("adam", lr=0.01), graph)
        return aa.Experiment(label, made, progress="none", **settings)

    return make


LOSSES = (aa.AppliedLoss("mse", on="one", weight=2.0), aa.AppliedLoss("mae", on="two"))


@pytest.fixture
def train() -> Callable[..., aa.TrainPhase]:
    """`train("label", ...)`: three epochs of four steps with two losses."""

    def make(label: str = "train", **settings: Any) -> aa.TrainPhase:
        return aa.TrainPhase(label, **{"data": "train", "losses": LOSSES, "batch_size": 4, "epochs": 3, **settings})

    return make


@pytest.fixture
def evaluate() -> Callable[..., aa.EvalPhase]:
    """`evaluate("label", ...)`: losses and a metric of each node over the split `val`."""

    def make(label: str = "eval", **settings: Any) -> aa.EvalPhase:
        return aa.EvalPhase(label, **{"data": "val", "losses": LOSSES, "metrics": ["r2"], **settings})

    return make


@dataclass(frozen=True)
class LoggedRun:
    """A run as TensorBoard reads it: (steps, values) by tag; the last text by tag, and the steps of all."""

    scalars: dict[str, tuple[list[int], list[float]]]
    texts: dict[str, str]
    text_steps: dict[str, list[int]]

    def under(self, prefix: str) -> list[str]:
        """Tags of scalars that begin so, without that."""
        return [tag.removeprefix(prefix) for tag in self.scalars if tag.startswith(prefix)]


@pytest.fixture
def read() -> Callable[[Path], LoggedRun]:
    """`read(folder)`: the run in a folder, read by TensorBoard."""

    def make(folder: Path) -> LoggedRun:
        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = accumulator.Tags()
        scalars = {tag: accumulator.Scalars(tag) for tag in tags["scalars"]}
        texts = {tag: accumulator.Tensors(tag) for tag in tags["tensors"]}
        assert all(accumulator.SummaryMetadata(tag).plugin_data.plugin_name == "text" for tag in texts)
        return LoggedRun(
            {
                tag: ([event.step for event in events], [event.value for event in events])
                for tag, events in scalars.items()
            },
            {tag: events[-1].tensor_proto.string_val[0].decode() for tag, events in texts.items()},
            {tag: [event.step for event in events] for tag, events in texts.items()},
        )

    return make


@pytest.fixture
def folders() -> Callable[[Path], list[str]]:
    """`folders(runs)`: the runs below a folder, each of which has one file."""

    def find(root: Path) -> list[str]:
        files = [path for path in root.rglob("*") if path.is_file()]
        assert all("tfevents" in path.name for path in files)
        run_dirs = [path.parent.relative_to(root).as_posix() for path in files]
        assert len(set(run_dirs)) == len(run_dirs)
        return sorted(run_dirs)

    return find


def at(moment: str, function: Callable[..., Any]) -> aa.Callback:
    """A callback that calls a function at one moment."""
    return type("At", (aa.Callback,), {moment: staticmethod(function)})()


def open_below(root: Path) -> list[str]:
    """Files below a folder that this process has open; none where the system does not tell."""
    links = Path("/proc/self/fd")
    if not links.is_dir():
        return []
    open_files = []
    for link in links.iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # the one of this very listing
            continue
        if target.startswith(str(root)):
            open_files.append(target)
    return open_files


@pytest.fixture
def still_open() -> Callable[[Path], list[str]]:
    return open_below


@pytest.fixture
def on() -> Callable[..., aa.Callback]:
    return at


@pytest.fixture
def oops() -> type[Exception]:
    return Oops
