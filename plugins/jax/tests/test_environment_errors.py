"""JAX's cache of compiled functions that cannot be read or written is no error of a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import anyaccel as aa
from flax import linen


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(10)(x.reshape(len(x), -1))


fit = aa.fit(Net(), aa.data.digits(), loss="cross_entropy", epochs=1, progress="none")
print("trained", fit.results.loss)
"""


def run(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **variables,
    }
    command = [sys.executable, *options, "-c", SCRIPT]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        (["-W", "error"], {}, "UserWarning: Error reading persistent compilation cache entry"),
        ([], {"JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1"}, "NotADirectoryError: [Errno 20]"),
    ],
    ids=["warning", "error"],
)
def test_an_error_of_the_cache_keeps_its_message(
    tmp_path: Path, options: list[str], variables: dict[str, str], message: str
) -> None:
    (tmp_path / "file").touch()
    ended = run(tmp_path / "file/cache", *options, **variables)
    assert message in ended.stderr
    assert "raised while building node 'model'" in ended.stderr
    assert "ShapeError" not in ended.stderr


def test_training_goes_on_where_jax_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run(tmp_path / "file/cache")
    assert ended.stdout.startswith("trained"), ended.stderr
