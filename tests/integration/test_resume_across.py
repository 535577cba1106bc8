"""A run that one framework or device has begun goes on with another: the losses are those of the first, undisturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from .resumed import AT, train

PAIRS = [("torch", "jax"), ("torch", "tensorflow"), ("jax", "torch"), ("tensorflow", "jax"), ("numpy", "torch")]


def assert_goes_on(framework: str, folder: Path, whole: list[float], was: str) -> None:
    """Losses are within 1e-5 of those of the run that was not broken off, and the change of framework is told."""
    losses, results = train(framework, "cpu", folder)
    assert len(whole) == 50
    np.testing.assert_allclose(losses, whole[AT:], rtol=0.0, atol=1e-5)
    assert max(whole) - min(whole) > 0.1  # it has learned
    told = results.events[0].message
    assert (f"'net' was {was} and is now {framework}" in told) == (was != framework), told


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_another_framework_goes_on(first: str, second: str, three: tuple[str, str, str], tmp_path: Path) -> None:
    """The graph is made anew by the recipe of the other framework; Adam's state, steps and the schedule go on."""
    assert set(three)
    whole, _ = train(first, "cpu")
    train(first, "cpu", tmp_path, AT)
    assert_goes_on(second, tmp_path, whole, first)


def test_a_device_that_is_not_there_any_more(three: tuple[str, str, str], tmp_path: Path) -> None:
    """Another process has begun on the second of two devices; this one has none, and goes on on the CPU."""
    for second in ("jax", "torch"):
        folder = tmp_path / second
        command = [sys.executable, "-m", "integration.resumed", "torch", "sim:1", str(folder)]
        env = {**os.environ, "ANYACCEL_TORCH_SIMULATE": "2"}
        cwd = Path(__file__).parents[1]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)
        assert ended.returncode == 0, ended.stderr[-2000:]
        whole = json.loads(ended.stdout.splitlines()[-1])
        anew = pytest.warns(RuntimeWarning, match="start again within epoch 1: .* other devices: sim/1 differ")
        with anew if second == "torch" else nullcontext():
            assert_goes_on(second, folder, whole, "torch")
