"""A cache that cannot be written is an error of the system, not one of a model of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa

SCRIPT = """
import anyaccel as aa
from torch import nn
net = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
aa.fit(net, aa.data.digits(), loss="cross_entropy", epochs=1, progress="none")
"""


class Cached(nn.Module):
    """Keeps what it computes in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layer, self.folder = nn.Linear(4, 1), folder

    def forward(self, x: torch.Tensor) -> Any:
        self.folder.mkdir(exist_ok=True)
        return self.layer(x)


def test_a_folder_that_a_model_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    columns = {"x": np.ones((8, 4), "float32"), "y": np.ones((8, 1), "float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    with pytest.raises(NotADirectoryError) as caught:
        aa.fit(Cached(tmp_path / "file/cache"), data, loss="mse", epochs=1)
    assert caught.value.filename == str(tmp_path / "file/cache")
    assert "node 'model'" in caught.value.__notes__[-1]
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    assert aa.fit(Cached(tmp_path / "file/cache"), data, loss="mse", epochs=1).results.loss


def test_torchs_own_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file/cache")}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    assert "NotADirectoryError: [Errno 20]" in ended.stderr.splitlines()[-1]
