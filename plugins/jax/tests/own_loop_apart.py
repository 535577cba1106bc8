"""Processes of a loop of JAX of which the last does something else: FOLDER, and cases with commas between.

All processes go on after a case whose error all of them have; each writes the texts to the folder. The last case may
end them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

import anyaccel as aa
from anyaccel.errors import AnyaccelError

Loop: Any = aa.Loop
ROWS = np.random.default_rng(0).normal(size=(108, 5)).astype(np.float32)
ENDING = ("raises", "killed", "alone", "hangs", "leaves")


class Rows:
    """Batches of 18 rows, of which the last process may have others."""

    def __init__(self, case: str, is_last: bool, length: int | None = 6) -> None:
        self._case, self._is_last, self._length = case, is_last, length

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("a stream")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        for number, first in enumerate(range(0, 108, 18)):
            batch, is_other = ROWS[first : first + 18], self._is_last and number == 3
            if self._case == "content" and self._is_last:
                batch = ROWS[::-1][first : first + 18]
            if self._case == "fewer" and is_other:
                batch = batch[:12]
            if self._case == "dtype" and is_other:
                batch = batch.astype(np.int32)
            if self._case == "stream" and is_other:
                return
            yield {"x": batch, "y": batch[:, 0]} if self._case == "structure" and is_other else batch


def trained(case: str, folder: Path, length: int | None = 6) -> None:
    loop = Loop("cpu", framework="jax")
    rank = loop.process_index
    is_last = rank == loop.num_processes - 1
    params, loader = loop.prepare({"w": jnp.zeros(5)}, Rows(case, is_last, length))
    grads_of = loop.value_and_grad(lambda params, x: jnp.mean((x @ params["w"] - x.sum(axis=1)) ** 2))

    @loop.compile
    def step(params: Any, x: Any) -> Any:
        value, grads = grads_of(params, x["x"] if isinstance(x, dict) else x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    for number, x in enumerate(loader):
        if number == 2 and is_last:
            if case == "raises":
                raise ValueError("in the loss")
            if case == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if case == "hangs":
                time.sleep(600)
        if number == 2 and case == "alone":
            if rank == 0:
                loop.save(folder / "alone")
            time.sleep(3)  # so that the first process is the first whose waiting ends
        params, value = step(params, x)
        float(value)
        if number == 2 and is_last and case == "leaves":
            break
    if case == "leaves" and is_last:
        loop.any(True)
    if case == "foreign":
        loop.save(folder / "foreign")


def foreign(folder: Path) -> None:
    """Two runs save into one folder."""
    trained("foreign", folder)
    trained("foreign", folder)


def calls(folder: Path) -> None:
    """The last process adds up, the others ask."""
    loop = Loop("cpu", framework="jax")
    if loop.process_index < loop.num_processes - 1:
        loop.any(False)
    else:
        loop.reduce(1.0, "sum")


def twice(folder: Path) -> None:
    """A state that is prepared twice would be saved twice, and only one of them is the newest."""
    loop = Loop("cpu", framework="jax")
    loop.prepare(loop.prepare({"w": jnp.zeros(5)}))


def unplaced(folder: Path) -> None:
    """`prepare` alone joins nothing."""
    aa.prepare(Rows("", False))


def sizes(folder: Path) -> None:
    """A search for a batch size would wait for a process that is out of memory."""
    Loop("cpu", framework="jax").find_batch_size(lambda size: size)


def stream(folder: Path) -> None:
    trained("stream", folder, length=None)


OTHERS = {case.__name__: case for case in (foreign, calls, twice, unplaced, sizes, stream)}

if __name__ == "__main__":
    folder, told = Path(sys.argv[1]), {}
    warnings.simplefilter("ignore", RuntimeWarning)
    rank = Loop("cpu", framework="jax").process_index
    for case in sys.argv[2].split(","):
        try:
            OTHERS[case](folder) if case in OTHERS else trained(case, folder)
            told[case] = "no error"
        except AnyaccelError as error:
            if case in ENDING:
                raise
            told[case] = f"{type(error).__name__}: {error}"
        (folder / f"{rank}.json").write_text(json.dumps(told))
