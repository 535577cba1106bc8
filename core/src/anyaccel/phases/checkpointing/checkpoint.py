"""Checkpoint: where and how often a training phase writes its state, to resume from it later."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from anyaccel import arguments, saved_folder
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import PhaseError
from anyaccel.graph.weight_loading import Change, Names
from anyaccel.phases.callbacks import mode_of
from anyaccel.suggestions import did_you_mean

_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_WHERE = "Checkpoint: "
_WANTED = "'epoch', a number of steps, or a duration such as '10min'"
ON_FAILURE = ("warn", "stop")


@constructor_hints
class Checkpoint:
    """Write checkpoints during a TrainPhase, so that another process can resume the run.

    `TrainPhase(..., checkpoint=Checkpoint("runs/a", every="10min"))` writes them, and `run_phase(phase, resume="auto")`
    resumes from the last complete one. A checkpoint is also written at the end, when the run is interrupted, and when
    the process receives SIGTERM. Training waits only for a copy of its state in memory, not for the disk.

    Args:
        folder: Folder for this phase alone; it is created if it does not exist. Or a URL that fsspec opens. A relative
            path is below the working folder at the time the Checkpoint was created, even if the script changes folder
            later. Each checkpoint is a folder in it. `ModelGraph.load` also reads it, with the values after the last
            step, unless a node has an optimizer of a framework. The file `latest` holds the name of the newest one.
        every: `"epoch"`; or a number of optimizer steps, counted over the whole run; or a duration: a timedelta, or
            text such as `"30s"`, `"10min"` and `"2h"`. If one is scheduled while another is still being written, it is
            written late.
        keep: Number of newest checkpoints to keep.
        keep_best: Name of a value of an epoch, such as `"val_loss"`. The checkpoint of the best epoch is kept, too. An
            epoch with a NaN value is never the best.
        mode: `"min"` or `"max"`: which values of `keep_best` are better. `"auto"` knows this for losses and for metrics
            by name. For a custom metric, set it: `Checkpoint("runs/a", keep_best="val_profit", mode="max")`.
        on_failure: What to do if a checkpoint cannot be written (a full disk): `"warn"` continues training; `"stop"`
            raises the error after a step.
        wait: Whether training waits until each checkpoint is written. Then a process that is killed loses at most the
            steps of one interval; otherwise it also loses the steps done while a checkpoint was being written.
        names: For resuming in another framework: the name in the model for each name in a checkpoint, as in
            `ModelGraph.load_weights`. A dict of the names that differ, or a function; None drops an array. Only nodes
            whose framework changed since the checkpoint are mapped.
        change: For resuming in another framework: a function of the name in the model and the array of the checkpoint.
            It returns the array with the axes in the model's order.

    Attributes:
        location: The absolute folder of the checkpoints, or their URL.

    Raises:
        PhaseError: a setting out of range.

    Example:
        >>> import anyaccel as aa
        >>> checkpoint = aa.Checkpoint("runs/a", every=100, keep=3, keep_best="val_loss")
        >>> phase = aa.TrainPhase("train", data="train", validation="val", checkpoint=checkpoint)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: str | int | timedelta = "epoch",
        keep: int = 3,
        keep_best: str | None = None,
        mode: str = "auto",
        on_failure: str = "warn",
        wait: bool = False,
        names: Names = None,
        change: Change | None = None,
    ) -> None:
        wanted = "the name of a folder"
        is_name = lambda it: isinstance(it, (str, os.PathLike)) and str(it)  # noqa: E731
        name = arguments.check(PhaseError, _WHERE, "folder", folder, is_name, wanted, "'runs/a'")
        self.folder: Path | str = name if saved_folder.is_url(name) else Path(name)
        self.location: Path | str = self.folder.absolute() if isinstance(self.folder, Path) else self.folder
        self.every = every
        self.every_n_steps, self.every_seconds = interval(every)
        self.keep = arguments.integer(PhaseError, _WHERE, "keep", keep, 1, 3)
        self.keep_best = keep_best
        if keep_best is not None:
            wanted = "the name of a value of an epoch"
            self.keep_best = arguments.text(PhaseError, _WHERE, "keep_best", keep_best, wanted, "'val_loss'")
        self.mode = mode_of(keep_best or "", mode, _WHERE)
        if keep_best is None and mode != "auto":
            problem = f"{_WHERE}mode={mode!r} applies to keep_best, but keep_best is not set"
            raise PhaseError(problem, hint=f"write keep_best='val_accuracy', mode={mode!r}")
        if on_failure not in ON_FAILURE:
            hint = did_you_mean(on_failure, ON_FAILURE, "use one of these")
            problem = f"{_WHERE}unknown on_failure={shown(on_failure)}"
            raise PhaseError(problem, available=", ".join(map(repr, ON_FAILURE)), hint=hint)
        self.on_failure = on_failure
        self.wait = arguments.flag(PhaseError, _WHERE, "wait", wait)
        is_names = lambda it: it is None or callable(it) or isinstance(it, Mapping)  # noqa: E731
        wanted, example = "a dict or a function", "{'IN THE CHECKPOINT': 'IN THE MODEL'}"
        self.names = arguments.check(PhaseError, _WHERE, "names", names, is_names, wanted, example)
        is_change, example = lambda it: it is None or callable(it), "lambda name, array: array"
        self.change = arguments.check(PhaseError, _WHERE, "change", change, is_change, "a function", example)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as plain data, without `names` and `change`; a timedelta becomes text."""
        every = f"{self.every_seconds}s" if isinstance(self.every, timedelta) else self.every
        kept = {"keep": self.keep, "keep_best": self.keep_best, "on_failure": self.on_failure, "wait": self.wait}
        return {"folder": str(self.folder), "every": every, **kept, "mode": self.mode or "auto"}

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.folder)!r}, every={self.every!r})"


def interval(every: Any) -> tuple[int | None, float | None]:
    """Return the steps and seconds between checkpoints; both are None for checkpoints after epochs."""
    if isinstance(every, str) and every == "epoch":
        return None, None
    if arguments.is_integer(every):
        return arguments.integer(PhaseError, _WHERE, "every", every, 1, 500), None
    match = _DURATION.fullmatch(every) if isinstance(every, str) else None
    seconds = float(match[1]) * _SECONDS.get(match[2], 0.0) if match else 0.0
    seconds = every.total_seconds() if isinstance(every, timedelta) else seconds
    if seconds <= 0.0:
        raise PhaseError(f"{_WHERE}every={shown(every)} is not {_WANTED}", hint="write every='10min'")
    return None, seconds
