"""A model that transformers divides among processes by the plan that it brings trains as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .conftest import ALL, library

torch = pytest.importorskip("torch")
transformers = library("transformers")
SCRIPT = Path(__file__).with_name("parallel_plan_script.py")
pytestmark = [
    pytest.mark.skipif(not (ALL or os.environ.get("ANYACCEL_TEST_FULL")), reason="three processes import transformers"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]


def test_a_plan_that_a_model_brings_trains_as_in_one_process(tmp_path: Path) -> None:
    """Clipped losses and values of two processes are those of one, and each keeps about half of the model."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=62,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    for launcher in ([], ["-m", "anyaccel", "run", "--replicas", "2"]):
        command = [sys.executable, *launcher, str(SCRIPT), str(tmp_path / "llama"), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    alone, *two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "2-0", "2-1"))
    for each in two:
        np.testing.assert_allclose(each["losses"], alone["losses"], rtol=1e-6)
        assert each["values"] == pytest.approx(alone["values"], rel=1e-4)
        assert each["local"] < 0.6 * alone["local"]
