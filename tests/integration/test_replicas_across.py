"""Replicas of several programs: two of torch, which exchange gradients within their passes, around one of JAX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not (find_spec("torch") and find_spec("jax")), reason="needs torch and JAX")

SCRIPT = Path(__file__).with_name("replicas_across_script.py")


def trained(folder: Path, size: int) -> list[dict[str, Any]]:
    """What so many replicas found; the gradients of each program of torch are above a bucket."""
    folder.mkdir()
    launcher = ["-m", "anyaccel", "run", "--replicas", str(size)] if size > 1 else []
    settings = {**os.environ, "ANYACCEL_TORCH_BUCKET_MB": "0.0001", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(SCRIPT), str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=settings)
    assert answer.returncode == 0, answer.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.across
@pytest.mark.slow
def test_two_programs_of_torch_around_jax_have_the_numbers_of_one_process(tmp_path: Path) -> None:
    (alone,) = trained(tmp_path / "one", 1)
    both = trained(tmp_path / "two", 2)
    assert max(alone["wrappers"]) == 0
    for found in both:
        assert found["wrappers"] == [2] * 8  # one for each program, made when the first step is done
        np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-6)
        assert found["weights"] == both[0]["weights"]
        for weights, others in zip(found["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(weights, others, atol=1e-6)
