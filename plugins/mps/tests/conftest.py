"""Fixtures. No test here needs a Mac: each says what stands in for the Apple GPU.

- `cpu_backend` is the backend with torch's CPU as its device: real tensors and values, but no Metal.
- `metal` records the calls of `torch.mps` that would go to Metal, and answers them.
- `published` is the table of operators in torch's wheel (torchgen's native_functions.yaml), which says what is built
  for MPS. The dispatcher of a Mac, which is queried there, has a few more registrations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen

from anyaccel.adapter.transfer_observer import ObservesTransfers, Record
from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_mps import MpsBackend
from anyaccel_mps.operator_support import OperatorSupport

MPS = Device("mps")
GIB = 2**30


def cpu_backend_class() -> type[MpsBackend]:
    """The class; defined in a function as the kit imports the module of a backend, which must not import torch."""

    class CpuBackend(MpsBackend):
        """Lists mps:0 and computes on the CPU; queries the CPU's operators in place of those of MPS."""

        capabilities = {**MpsBackend.capabilities, ObservesTransfers: NoTransfers}

        def devices(self) -> list[Device]:
            return [MPS]

        def device_string(self, device: Device) -> str:
            return "cpu"

        def device_of(self, obj: Any) -> Device | None:
            return None if super().device_of(obj) is None else MPS

        def operator_support(self) -> OperatorSupport | None:
            return OperatorSupport("CPU")

    return CpuBackend


class NoTransfers(ObservesTransfers):
    """Nothing is copied where the CPU stands in."""

    def observe_transfers(self, record: Record) -> AbstractContextManager[None]:
        raise NotImplementedError

    def unobserved_transfers(self) -> list[str]:
        return ["nothing is copied where the CPU stands in"]


class PublishedSupport(OperatorSupport):
    """Answers for MPS from the table in torch's wheel, for the rest as the dispatcher of this process."""

    def __init__(self) -> None:
        super().__init__()
        text = Path(torchgen.__file__).parent.joinpath("packaged/ATen/native/native_functions.yaml").read_text()
        blocks = re.split(r"(?m)^- func: ", text)[1:]
        built = {_name(block): "MPS" in _keys(block) for block in blocks}
        delegates = {_name(block): delegate for block in blocks if (delegate := _delegate(block))}
        self.built = {f"aten::{name}" for name in built if built[name] or built.get(delegates.get(name, ""))}
        self.cpu_fallbacks: set[str] = set()

    def has(self, name: str, key: str) -> bool:
        return name in self.built if key == self.key else super().has(name, key)

    def registered(self, name: str) -> str:
        """As a Mac's dispatcher writes it; the path is that of torch's own source."""
        file = "mps/MPSFallback.mm" if name in self.cpu_fallbacks else "RegisterMPS_0.cpp"
        return f"MPS: registered at /pytorch/aten/src/ATen/{file}:76 [ boxed ]"


def _name(block: str) -> str:
    return block.partition("(")[0].strip()


def _keys(block: str) -> set[str]:
    """Dispatch keys that a function has kernels for."""
    match = re.search(r"(?m)^  dispatch:\n((?:    .*\n)+)", block)
    lines = match.group(1).splitlines() if match else []
    return {key.strip() for line in lines for key in line.partition("#")[0].rpartition(":")[0].split(",")}


def _delegate(block: str) -> str:
    match = re.search(r"(?m)^  structured_delegate: (\S+)", block)
    return match.group(1) if match else ""


@pytest.fixture(scope="session")
def published() -> PublishedSupport:
    return PublishedSupport()


@pytest.fixture(scope="session")
def cpu_class() -> type[MpsBackend]:
    return cpu_backend_class()


@pytest.fixture
def cpu_backend(cpu_class: type[MpsBackend]) -> MpsBackend:
    return cpu_class()


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those functions of torch.mps that were called, in order; sizes are those of a Mac with 16 GiB."""
    called: list[str] = []

    def recorded(name: str, answer: Any) -> Callable[[], Any]:
        def call() -> Any:
            called.append(name)
            return answer

        return call

    answers = {
        "synchronize": None,
        "empty_cache": None,
        "recommended_max_memory": 11 * GIB,
        "driver_allocated_memory": 3 * GIB,
        "current_allocated_memory": 2 * GIB,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.mps, name, recorded(name, answer))
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M2")
    return called


@pytest.fixture
def segment_of() -> Callable[..., Segment]:
    """A segment `x -> net -> loss against y` on mps:0."""
    return make_segment


def make_segment(
    model: Any, *, loss: Any = "mse", features: tuple[int, ...] = (4,), target: tuple[int, ...] = (1,), **changes: Any
) -> Segment:
    settings: dict[str, Any] = {
        "label": "s",
        "operations": (Operation("net", model, ("x",), ("y",), MPS),),
        "inputs": {"x": (TensorSpec(features, "float32"), MPS), "t": (TensorSpec(target, "float32"), MPS)},
        "outputs": ("y",),
        "losses": (LossTerm("l", "net", Loss(loss), ("y", "t"), MPS),),
        "groups": (ParameterGroup("g", Optimizer("adam", lr=0.1), ("net",)),),
    }
    return Segment(**{**settings, **changes})
