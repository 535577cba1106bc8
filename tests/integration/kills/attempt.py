"""Attempt: one process that trains until it is killed or comes to its end, and a log of what it has done."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.phases.checkpointing import checkpointer, run_folder

from .loops import Loop


def digest(results: Any, graph: aa.ModelGraph) -> str:
    """Of all values of a graph and all figures of its epochs, to the bit."""
    sums = hashlib.sha256()
    for epoch in results.epochs:
        sums.update(repr((epoch.number, epoch.loss, epoch.losses, epoch.steps, epoch.validation)).encode())
    for name, array in sorted(graph.state().items()):
        sums.update(f"{name} {array.dtype} {array.shape}".encode())
        sums.update(np.ascontiguousarray(array).tobytes())
    return sums.hexdigest()


def train(loop: Loop, folder: Path | None, note: Callable[[str], None]) -> str:
    """Train, from the newest checkpoint on: losses, and a digest of all. `note` is told of steps and checkpoints."""
    after_step, write = checkpointer.Checkpointer.after_step, run_folder.RunFolder.write

    def noted_step(self: Any, *args: Any) -> None:
        note(f"step {self._run.epoch} {self._run.step}")
        time.sleep(loop.pause)
        after_step(self, *args)

    def noted_write(self: Any, position: Any, *args: Any) -> Any:
        note(f"begin {position.name}")
        path = write(self, position, *args)
        note(f"end {position.name}")
        return path

    checkpointer.Checkpointer.after_step = noted_step  # type: ignore[method-assign]
    run_folder.RunFolder.write = noted_write  # type: ignore[method-assign]
    graph = loop.graph()
    resume = "never" if folder is None else "auto"
    results = aa.Experiment(graph, progress="none").run_phase(loop.phase(folder), resume=resume)
    note("done")
    return json.dumps([results.loss.tolist(), digest(results, graph)])


def fork(loop: Loop, run: Path) -> int:
    """The id of a process that trains, with its checkpoints in `run`.

    It logs what it does there, and at its end writes `out`: the digest of what it gives, or why it failed.
    """
    log, out, modules = run / "log", run / "out", run / "modules"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of frameworks that were imported, and have not begun anything
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="(tensorflow|keras|jax|torch|flax)")
        stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        text = train(loop, run / "checkpoints", lambda line: os.write(stream, f"{line}\n".encode()) and None)
        modules.write_text("\n".join(sys.modules))
        out.write_text(text)
        status = 0
    except BaseException:
        out.write_text("".join(traceback.format_exception(*sys.exc_info())))
    finally:
        os._exit(status)
