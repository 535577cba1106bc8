"""The parent's side of a child process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from harness.worker import START

FOLDER = Path(__file__).parents[1]


def threads(count: int) -> dict[str, str]:
    """The environment by which every framework computes with this many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")  # the last is read by JAX
    ours = {name: str(count) for name in (*names, "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")}
    return {**ours, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow", "PYTHONWARNINGS": "ignore"}


class Process:
    """A child that makes loops and runs them when asked; see `harness.worker`.

    Args:
        environment: what differs from this process's environment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._child = subprocess.Popen(
            [sys.executable, "-c", START, str(FOLDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, **asked: Any) -> dict[str, Any]:
        """What the child answers; `failed` with what it wrote to standard error if it has ended."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._child.stdin.write(json.dumps(asked) + "\n")
            self._child.stdin.flush()
        line = self._child.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._errors.seek(0)
        return {"failed": f"the process ended with {self._child.wait()}\n{self._errors.read()[-4000:].decode()}"}

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._errors.close()
