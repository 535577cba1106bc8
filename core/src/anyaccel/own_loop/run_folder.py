"""Checkpoints of loops: one folder each, complete or not there; when they are due; which are kept."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import saved_folder
from anyaccel.errors import ConfigError, StateError
from anyaccel.own_loop.plain_state import decoded, encoded
from anyaccel.phases.checkpointing.checkpoint import interval
from anyaccel.phases.checkpointing.checkpointer import BackgroundWriter

PART = "own_loop"
LATEST = "latest"
_NAME = re.compile(r"step-[0-9]{9,}-epoch-[0-9]{6,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a loop is, and the state of what it has prepared.

    Attributes:
        run: name of the run, which goes over to those that go on from it.
        framework: of the loop.
        step, epoch: of the loop.
        random: random states of each process.
        loaders: of each prepared loader.
        state: nested dicts, lists and tuples of arrays and plain values.
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
        """Plain data, ready for JSON, and arrays by name.

        Raises:
            StateError: the state holds something that only pickle could write.
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
    def from_parts(cls, parts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Position:
        """What `to_parts` gave.

        Raises:
            StateError: it is malformed.
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
            raise StateError(problem, hint="take another checkpoint of the folder") from error


class LoopFolder:
    """The folder of a run: its checkpoints, and the file `latest`.

    Args:
        folder: a path or a URL.

    Attributes:
        path: as given.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = folder
        self._storage = saved_folder.storage_of(folder)
        self._writer = BackgroundWriter()

    def names(self) -> list[str]:
        """The complete checkpoints, oldest first."""
        folders = filter(_NAME.fullmatch, self._storage.names() or ())
        return sorted(name for name in folders if saved_folder.is_saved(self._storage.subfolder(name)))

    def newest(self, broadcast: Callable[[Any], Any] = lambda name: name) -> str | None:
        """Name of the newest one, as the first process sees it; None if there is none."""
        names = self.names()
        name: str | None = broadcast(names[-1] if names else None)
        return name

    def write(self, position: Position, keep: int, writes: bool, gather: Callable[[Any], list[Any]]) -> None:
        """Write a checkpoint in a thread, and remove those that are not to be kept.

        Raises:
            StateError: the folder is of another run.
            OSError: the one before could not be written.
        """
        self._check_run(position, gather)
        if not writes:
            return
        parts, arrays = position.to_parts()
        arrays = {name: np.array(array) for name, array in arrays.items()}  # the loop goes on meanwhile

        def write(pause: Callable[[], object] | None) -> None:
            folder = self._storage.subfolder(position.name)
            if saved_folder.is_damaged(folder):
                folder.remove_folder()
            saved_folder.write(folder, {PART: parts}, arrays, pause=pause)
            self._storage.publish(LATEST, f"{position.name}\n".encode())
            self._prune(keep)

        self._writer.start(write)

    def wait(self) -> None:
        """Until nothing is being written any more."""
        self._writer.wait()

    def _prune(self, keep: int) -> None:
        kept = set(self.names()[-keep:])
        for name in self._storage.names() or ():
            if _NAME.fullmatch(name) and name not in kept:
                folder = self._storage.subfolder(name)
                with suppress(OSError):
                    folder.remove(saved_folder.MANIFEST)
                folder.remove_folder()

    def _check_run(self, position: Position, gather: Callable[[Any], list[Any]]) -> None:
        names = self.names()
        other = ""
        if names:
            with suppress(ConfigError, KeyError):
                run = saved_folder.part(self._storage.subfolder(names[-1]), PART)["run"]
                other = "" if run == position.run else names[-1]
        _raise_other_run(gather(other)[0], self._storage.name)

    @classmethod
    def write_one(
        cls, folder: str | os.PathLike[str], position: Position, writes: bool, gather: Callable[[Any], list[Any]]
    ) -> None:
        """Write one checkpoint as the folder itself, and wait.

        Raises:
            StateError: the folder is of another run; or the state cannot be written.
            OSError: the folder cannot be written to; in all processes.
        """
        problem: BaseException | None = None
        other = ""
        if writes:
            storage = saved_folder.storage_of(folder)
            try:
                if saved_folder.is_saved(storage):
                    run = saved_folder.part(storage, PART)["run"]
                    other = "" if run == position.run else "a checkpoint"
                if not other:
                    parts, arrays = position.to_parts()
                    saved_folder.write(storage, {PART: parts}, arrays)
            except Exception as error:  # told to all, who wait
                problem = error
        told = gather([other, str(problem or "")])[0]
        if problem is not None:
            raise problem
        _raise_other_run(told[0], str(folder))
        if told[1]:
            raise StateError(f"the first process could not save: {told[1]}", hint="see its error")

    @classmethod
    def read(cls, folder: str | os.PathLike[str], framework: str) -> Position:
        """The checkpoint of a folder, or its newest one.

        Raises:
            ConfigError: there is none.
            StateError: it was changed, or is of another framework.
        """
        storage = saved_folder.storage_of(folder)
        if not saved_folder.is_saved(storage):
            names = cls(folder).names()
            if not names:
                raise ConfigError(f"no checkpoint of a loop in {str(folder)!r}", hint="write one: loop.save(FOLDER)")
            storage = storage.subfolder(names[-1])
        manifest, arrays = saved_folder.read(storage, PART)
        position = Position.from_parts(manifest[PART], arrays)
        if position.framework != framework:
            raise StateError(
                f"the checkpoint is of a loop of {position.framework}, and this one is of {framework}",
                hint=f"go on with Loop(framework={position.framework!r})",
            )
        return position


def _raise_other_run(other: str, path: str) -> None:
    if other:
        raise StateError(
            f"{path!r} has checkpoints of another run",
            cause=other,
            hint="go on from them: loop.load(FOLDER); or save into another folder",
        )


class Schedule:
    """When checkpoints are written.

    Args:
        folder: of the run.
        every: `"epoch"`, a number of updates, or a duration.
        keep: how many are kept.
        step: updates that are done.
    """

    def __init__(self, folder: LoopFolder, every: Any, keep: int, step: int) -> None:
        self.folder, self.keep = folder, keep
        self._n_steps, self._seconds = interval(every)
        self._last_step, self._last_time = step, time.monotonic()

    def is_due(self, step: int, gather: Callable[[Any], list[Any]]) -> bool:
        """Whether one is due after an update within an epoch; alike in all processes."""
        due = False
        if self._n_steps is not None:
            due = step - self._last_step >= self._n_steps
        elif self._seconds is not None and step > self._last_step:
            due = gather(time.monotonic() - self._last_time >= self._seconds)[0]
        if due:
            self._last_step, self._last_time = step, time.monotonic()
        return due

    def after_epoch(self, *, is_last: bool) -> bool:
        """Whether one is due after an epoch; always after the last."""
        return is_last or (self._n_steps is None and self._seconds is None)
