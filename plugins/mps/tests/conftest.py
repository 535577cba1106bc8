"""What the tests share. No test here needs a Mac: what stands in for the Apple GPU is named in each.

- `pretend` is the backend with torch's CPU as its device: real tensors and values, but no Metal.
- `metal` records the calls of `torch.mps` that would go to Metal, and answers them.
- `published` is the table of operators that torch's own wheel carries (torchgen's native_functions.yaml), which says
  what is built for MPS. The dispatcher of a Mac, which is asked there, has a few registrations more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen

from anyaccel.device import Device
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_mps import MpsBackend
from anyaccel_mps.operator_support import Operators

MPS = Device("mps")
GIB = 2**30


def pretended() -> type[MpsBackend]:
    """The class; made here because this module imports torch, which that of a backend must not."""

    class Pretend(MpsBackend):
        """Lists mps:0 and computes on the CPU; asks for the CPU's operators in the place of MPS's."""

        def devices(self) -> list[Device]:
            return [MPS]

        def device_string(self, device: Device) -> str:
            return "cpu"

        def device_of(self, obj: Any) -> Device | None:
            return None if super().device_of(obj) is None else MPS

        def operators(self) -> Operators | None:
            return Operators("CPU")

    return Pretend


class Published(Operators):
    """Answers for MPS from the table in torch's wheel, for the rest as the dispatcher of this process."""

    def __init__(self) -> None:
        super().__init__()
        text = Path(torchgen.__file__).parent.joinpath("packaged/ATen/native/native_functions.yaml").read_text()
        blocks = re.split(r"(?m)^- func: ", text)[1:]
        built = {_name(block): "MPS" in _keys(block) for block in blocks}
        delegates = {_name(block): found for block in blocks if (found := _delegate(block))}
        self.built = {f"aten::{name}" for name in built if built[name] or built.get(delegates.get(name, ""))}
        self.stand_ins: set[str] = set()

    def has(self, name: str, key: str) -> bool:
        return name in self.built if key == self.key else super().has(name, key)

    def registered(self, name: str) -> str:
        """As a Mac's dispatcher writes it; the path is that of torch's own source."""
        file = "mps/MPSFallback.mm" if name in self.stand_ins else "RegisterMPS_0.cpp"
        return f"MPS: registered at /pytorch/aten/src/ATen/{file}:76 [ boxed ]"


def _name(block: str) -> str:
    return block.partition("(")[0].strip()


def _keys(block: str) -> set[str]:
    """Dispatch keys that a function has kernels for."""
    found = re.search(r"(?m)^  dispatch:\n((?:    .*\n)+)", block)
    lines = found.group(1).splitlines() if found else []
    return {key.strip() for line in lines for key in line.partition("#")[0].rpartition(":")[0].split(",")}


def _delegate(block: str) -> str:
    found = re.search(r"(?m)^  structured_delegate: (\S+)", block)
    return found.group(1) if found else ""


@pytest.fixture(scope="session")
def published() -> Published:
    return Published()


@pytest.fixture(scope="session")
def pretending() -> type[MpsBackend]:
    return pretended()


@pytest.fixture
def pretend(pretending: type[MpsBackend]) -> MpsBackend:
    return pretending()


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
    given: dict[str, Any] = {
        "label": "s",
        "operations": (Operation("net", model, ("x",), ("y",), MPS),),
        "inputs": {"x": (TensorSpec(features, "float32"), MPS), "t": (TensorSpec(target, "float32"), MPS)},
        "outputs": ("y",),
        "losses": (LossTerm("l", "net", Loss(loss), ("y", "t"), MPS),),
        "groups": (ParameterGroup("g", Optimizer("adam", lr=0.1), ("net",)),),
    }
    return Segment(**{**given, **changes})
