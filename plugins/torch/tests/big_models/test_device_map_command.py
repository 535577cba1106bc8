"""`anyaccel device-map` for modules of torch: plans without memory, in the order of computation, and exit statuses."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

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
    result = CliRunner().invoke(group, ["device-map", module, *options])
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
    command = [sys.executable, "-m", "anyaccel", "device-map", module, "--offload", "no", "--on"]
    done = subprocess.run([*command, "2x 24GB"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the model does not fit: its 202 blocks need 51.0 GiB" in done.stdout
    assert "running" in done.stderr and "made by hand" in done.stderr and "made by hand" not in done.stdout
    result = CliRunner().invoke(group, ["device-map", module, "--on", "3x 24GB", "--training"])
    assert result.exit_code == 0 and "host memory" in result.stdout
    assert "blocks are in the order in which they are registered" in " ".join(result.stdout.split())
