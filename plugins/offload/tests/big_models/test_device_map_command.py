"""`anyaccel device-map` for modules of torch: plans without memory, in the order of computation, and exit statuses."""

from __future__ import annotations

import json
import resource
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from anyaccel.cli.main import group

MODULE = """
from torch import nn

print("made by hand")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4096, 32000, bias=False)
        layer = lambda: nn.Sequential(nn.Linear(4096, 16384), nn.ReLU(), nn.Linear(16384, 4096))
        self.layers = nn.ModuleList(layer() for _ in range(100))
        self.embed = nn.Embedding(32000, 4096)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def build():
    return Net()
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(MODULE)
    return f"{tmp_path / 'net.py'}:build"


def test_a_model_of_51_gib_is_planned_without_memory_in_the_order_of_computation(module: str) -> None:
    options = ["--on", "2x 24GB, cpu 64GB", "--input", "int64[1,8]", "--json"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Click 8.1 mixes both outputs unless it is told not to, and 8.2 cannot be told.
    settings: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    result = CliRunner(**settings).invoke(group, ["device-map", module, *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    names = [block["name"] for block in found["plan"]["blocks"]]
    assert (names[0], names[1], names[-1]) == ("embed", "layers.0.0", "head")
    assert {block["device"] for block in found["plan"]["blocks"] if block["tier"]} == {"gpu:0", "gpu:1"}
    assert all(nbytes <= 24e9 for nbytes in found["plan"]["device_bytes"].values())
    assert sum(block["nbytes"] for block in found["plan"]["blocks"]) == 4 * (
        2 * 32000 * 4096 + 100 * (2 * 4096 * 16384 + 16384 + 4096)
    )
    assert found["plan"]["seconds"] == max(found["plan"]["copy_seconds"], found["plan"]["compute_seconds"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB, of 51 GiB


def test_the_table_and_the_status_of_what_does_not_fit(module: str) -> None:
    result = CliRunner().invoke(group, ["device-map", module, "--offload", "no", "--on", "2x 24GB"])
    assert result.exit_code == 1
    shown = " ".join(result.output.split())
    assert "the model does not fit: its 202 blocks need 51.0 GiB" in shown
    assert "running" in shown and shown.index("made by hand") < shown.index("the model")
    result = CliRunner().invoke(group, ["device-map", module, "--on", "3x 24GB", "--training"])
    assert result.exit_code == 0 and "host memory" in result.stdout
    assert "blocks are in registration order" in " ".join(result.stdout.split())
