"""Checkpoints of loops: a folder each, which is complete or absent; when they are written, and which are kept."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import saved_folder
from anyaccel.errors import ConfigError, StateError
from anyaccel.phases.checkpointing.checkpoint import interval
from anyaccel.phases.checkpointing.checkpointer import BackgroundWriter
from anyaccel.phases.checkpointing.run_folder import CheckpointFolder
from anyaccel.printable import printable
from anyaccel.user_level import user_level
from anyaccel_distributed.own_loop.plain_state import decoded, encoded
from anyaccel_distributed.own_loop.processes import LoopProcesses

PART = "own_loop"
_NAME = re.compile(r"step-[0-9]{9,}-epoch-[0-9]{6,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCheckpoint:
    """The position of a loop, and the state of its prepared objects.

    Attributes:
        run: Name of the run, which resumed runs inherit.
        framework: Framework of the loop.
        step, epoch: Step and epoch of the loop.
        random: Random states of each process.
        loaders: State of each prepared loader.
        state: Nested dicts, lists and tuples of arrays and plain values.
    """

    run: str
    framework: str
    step: int
    epoch: int
    random: Sequence[Mapping[str, Any]]
    loaders: Sequence[Mapping[str, Any]]
    state: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"step-{self.step:09d}-epoch-{self.epoch:06d}"

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return plain data, ready for JSON, and arrays by name.

        Raises:
            StateError: The state holds something that only pickle could write.
        """
        arrays: dict[str, np.ndarray] = {}
        parts = {
            "run": self.run,
            "framework": self.framework,
            "step": self.step,
            "epoch": self.epoch,
            "random": encoded(list(self.random), "random", arrays),
            "loaders": encoded(list(self.loaders), "loaders", arrays),
            "state": encoded(self.state, "", arrays),
        }
        return parts, arrays

    @classmethod
    def from_parts(cls, parts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> LoopCheckpoint:
        """Rebuild the checkpoint from the output of `to_parts`.

        Raises:
            StateError: The output is malformed.
        """
        try:
            return cls(
                run=str(parts["run"]),
                framework=str(parts["framework"]),
                step=int(parts["step"]),
                epoch=int(parts["epoch"]),
                random=decoded(parts["random"], arrays),
                loaders=decoded(parts["loaders"], arrays),
                state=decoded(parts["state"], arrays),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            problem = f"the checkpoint of a loop is malformed: {type(error).__name__}: {error}"
            raise StateError(problem, hint="use another checkpoint of the folder") from error


class LoopFolder(CheckpointFolder):
    """The folder of a run with its checkpoints.

    Args:
        folder: A path or a URL.
        processes: Processes of the loop; the first one reads the existing checkpoints, and writes.
    """

    def __init__(self, folder: str | os.PathLike[str], processes: LoopProcesses) -> None:
        super().__init__(folder, _NAME)
        self._processes, self._writer = processes, BackgroundWriter()

    def write(self, checkpoint: LoopCheckpoint, keep: int) -> None:
        """Write a checkpoint in a thread, and remove those that are not kept.

        Raises:
            StateError: The folder belongs to another run.
            OSError: The previous checkpoint could not be written.
        """
        with _told_to_all(self._processes, "write a checkpoint"):
            if self._processes.rank > 0:
                return
            names = self.names()
            for name in reversed(names):
                with suppress(ConfigError, KeyError):  # damaged; the previous checkpoint names the run
                    _check_run(self._storage.subfolder(name), checkpoint, name, self.path)
                    break
            parts, arrays = checkpoint.to_parts()
            arrays = self._writer.copies(arrays.items())  # the loop continues during this

            def write(pause: Callable[[], object] | None) -> None:
                saved_folder.write(self._place_of(checkpoint.name), {PART: parts}, arrays, pause=pause)
                self._keep(set(self.names()[-keep:]))

            self._writer.start(write)

    def close(self) -> None:
        """Wait until all writing has ended."""
        self._writer.close()

    def write_itself(self, checkpoint: LoopCheckpoint) -> None:
        """Write one checkpoint as the folder itself, and wait.

        Raises:
            StateError: The folder belongs to another run, or the state cannot be written.
            OSError: The folder cannot be written to.
        """
        with _told_to_all(self._processes, "save"):
            if self._processes.rank == 0:
                if saved_folder.is_saved(self._storage):
                    _check_run(self._storage, checkpoint, "a checkpoint", self.path)
                parts, arrays = checkpoint.to_parts()
                saved_folder.write(self._storage, {PART: parts}, arrays)

    def newest(self, framework: str) -> LoopCheckpoint | None:
        """Return the checkpoint in the folder itself, or the newest readable one below it, or None.

        Raises:
            StateError: No checkpoint can be read, or it belongs to another framework.
        """
        result: LoopCheckpoint | None = None
        name: str | None = None
        with _told_to_all(self._processes, "load"):
            if self._processes.rank == 0 and saved_folder.is_saved(self._storage):
                name, result = "", _read(self._storage)
            elif self._processes.rank == 0 and (newest := self.newest_by(_read)) is not None:
                name, result, failures = newest
                for failure in failures:
                    warnings.warn(
                        printable(f"a newer checkpoint is skipped, and the run resumes from {name}: {failure}"),
                        RuntimeWarning,
                        stacklevel=user_level(),
                    )
        name = self._processes.gather_plain(name, "loading")[0]
        if name is None:
            return None
        checkpoint = result if result is not None else _read(self._storage.subfolder(name) if name else self._storage)
        if checkpoint.framework != framework:
            raise StateError(
                f"the checkpoint belongs to a {checkpoint.framework} loop, but this is a {framework} loop",
                hint=f"resume with Loop(framework={checkpoint.framework!r})",
            )
        return checkpoint


def check_counts(state: Mapping[str, Sequence[Any]], **prepared: Sequence[Any]) -> None:
    """Check that a checkpoint has as many objects of each kind as are prepared.

    Raises:
        StateError: It has not.
    """
    for kind, objects in prepared.items():
        if len(state[kind]) != len(objects):
            raise StateError(
                f"the checkpoint has {len(state[kind])} {kind}, but this loop has {len(objects)}",
                hint="prepare the same objects as in the run that wrote the checkpoint, in the same order",
            )


def check_same(kind: str, verb: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Check that the arrays of an object, and of what a checkpoint has for it, have the same names and descriptions.

    Args:
        kind: Kind of the object, such as `"model"`.
        verb: Words between a name and a description, such as `"has shape"`.
        ours, theirs: Descriptions by name, in the loop and in the checkpoint; None is not compared.

    Raises:
        StateError: They differ; the message has the first name that does.
    """
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in theirs or name not in ours:
            where = "this loop's" if name in ours else "the checkpoint's"
            difference = f"is only in {where} {kind}"
        elif None not in (ours[name], theirs[name]) and ours[name] != theirs[name]:
            difference = f"{verb} {theirs[name]} there, but {ours[name]} here"
        else:
            continue
        raise StateError(
            f"the checkpoint belongs to another {kind}: {name!r} {difference}",
            hint=f"create the same {kind} as in the run that wrote the checkpoint",
        )


def _read(storage: saved_folder.Storage) -> LoopCheckpoint:
    manifest, arrays = saved_folder.read(storage, PART)
    return LoopCheckpoint.from_parts(manifest[PART], arrays)


def _check_run(storage: saved_folder.Storage, checkpoint: LoopCheckpoint, name: str, path: str) -> None:
    if saved_folder.part(storage, PART)["run"] != checkpoint.run:
        raise StateError(
            f"{path!r} has checkpoints of another run",
            cause=name,
            hint="resume from them: loop.load(FOLDER); or save into another folder",
        )


@contextmanager
def _told_to_all(processes: LoopProcesses, what: str) -> Iterator[None]:
    """Run a block in the first process while all wait; an error in it is raised in all of them.

    Raises:
        StateError: Raised in the other processes.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    told = processes.gather_plain("" if problem is None else str(problem), f"at the end of: {what}")[0]
    if problem is not None:
        raise problem
    if told:
        raise StateError(f"the first process could not {what}: {told}", hint="see its error")


class Saving:
    """The schedule of checkpoints.

    Args:
        folder: Folder of the run.
        every: `"epoch"`, a number of updates, or a duration.
        keep: Number of checkpoints to keep.
        step: Number of finished updates.

    Attributes:
        folder, keep: As passed.
        is_overdue: Whether a checkpoint was scheduled within an update, and is written after it.
    """

    def __init__(self, folder: LoopFolder, every: Any, keep: int, step: int) -> None:
        self.folder, self.keep = folder, keep
        self._n_steps, self._seconds = interval(every)
        self._last_step, self._last_time = step, time.monotonic()
        self.is_overdue = False

    def is_due(self, step: int, gather: Callable[[Any], list[Any]]) -> bool:
        """Return whether to write a checkpoint after an update within an epoch; equal in all processes."""
        if self.is_overdue:
            due = True
        elif self._n_steps is not None:
            due = step - self._last_step >= self._n_steps
        else:
            due = False
            if self._seconds is not None and step > self._last_step:
                due = gather(time.monotonic() - self._last_time >= self._seconds)[0]
        self.is_overdue = False
        if due:
            self._last_step, self._last_time = step, time.monotonic()
        return due

    def after_epoch(self, *, is_last: bool) -> bool:
        """Return whether to write a checkpoint after an epoch; always true after the last."""
        return is_last or (self._n_steps is None and self._seconds is None)
