"""The kit over JAX compiles equal programs once."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import jax
from pathlib import Path
from anyaccel_jax.conformance import FOLDER, compilation_cache_in

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
before = dict(jax.config.values)
jax.jit(lambda x: x * 2)(1.0)
folder = Path({folder!r})
with compilation_cache_in(folder):
    for _ in range(2):
        jax.jit(lambda x: x + 1)(1.0)
    inside = getattr(jax.config, FOLDER)
after = dict(jax.config.values)
count = len(list(folder.glob("*"))) if folder.exists() else 0
jax.jit(lambda x: x + 3)(1.0)
print(inside, len(hits), count > 0, len(list(folder.glob("*"))) == count, before == after)
"""


def run(folder: str, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", CODE.format(folder=folder)]
    child = subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, check=True)
    return child.stdout.split()


def test_equal_programs_are_compiled_once_and_settings_come_back(tmp_path) -> None:
    folder = str(tmp_path / "compiled")
    assert run(folder) == [folder, "1", "True", "True", "True"]


def test_a_folder_of_the_user_is_kept(tmp_path) -> None:
    own, folder = str(tmp_path / "own"), str(tmp_path / "compiled")
    inside, _, is_used, *_ = run(folder, JAX_COMPILATION_CACHE_DIR=own)
    assert (inside, is_used) == (own, "False")
