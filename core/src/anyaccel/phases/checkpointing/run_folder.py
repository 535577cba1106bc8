"""Folders of checkpoints, one folder each; and that of a phase, with the file `latest`, for one process at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from anyaccel import saved_folder
from anyaccel.errors import ConfigError, PhaseError, StateError
from anyaccel.phases.checkpointing.position import PART, Position

LATEST = "latest"
_LOCK = ".lock"
_NAME = re.compile(r"epoch-[0-9]{6,}-step-[0-9]{9,}")


class CheckpointFolder:
    """A folder of checkpoints; each checkpoint is a folder in it.

    Args:
        folder: A path or a URL.
        name: Pattern of the names of checkpoints; the numbers in them define the order.

    Attributes:
        path: Path of the folder, as text.
    """

    def __init__(self, folder: str | os.PathLike[str], name: re.Pattern[str]) -> None:
        self._storage, self._name = saved_folder.storage_of(folder), name
        self.path = self._storage.name

    def names(self) -> list[str]:
        """Return the complete checkpoints, oldest first: a folder becomes one by its manifest, which is written
        last.
        """
        folders = filter(self._name.fullmatch, self._storage.names() or ())
        complete = [name for name in folders if self._storage.subfolder(name).size(saved_folder.MANIFEST) is not None]
        return sorted(complete, key=lambda name: [int(part) for part in re.findall("[0-9]+", name)])

    def newest_by(self, read: Callable[[saved_folder.Storage], Any]) -> tuple[str, Any, list[str]] | None:
        """Name and content of the newest checkpoint that can be read, and why newer ones could not; None if empty.

        Raises:
            StateError: there are checkpoints, and none can be read.
            ConfigError: the newest was written by a newer version.
        """
        failures: list[str] = []
        names = self.names()
        for name in reversed(names):
            try:
                return name, read(self._storage.subfolder(name)), failures
            except (StateError, ConfigError) as error:
                if saved_folder.is_newer(self._storage.subfolder(name)):
                    raise
                failures.append(error.problem)
        if failures:
            problem = f"no checkpoint in {self.path!r} can be read: {failures[0]}"
            raise StateError(problem, available=", ".join(names), hint="start again in another folder")
        return None

    def _place_of(self, name: str) -> saved_folder.Storage:
        """Return where a checkpoint is written.

        A damaged one there is removed: a run that resumed from the checkpoint before it reaches this position again.
        """
        folder = self._storage.subfolder(name)
        if saved_folder.is_damaged(folder):
            folder.remove_folder()
        return folder

    def _keep(self, kept: Container[str]) -> None:
        """Remove all other checkpoints, and parts of such."""
        for name in self._storage.names() or ():
            if self._name.fullmatch(name) and name not in kept:
                folder = self._storage.subfolder(name)
                with suppress(OSError):  # without its manifest it is no checkpoint any more, should the rest stay
                    folder.remove(saved_folder.MANIFEST)
                folder.remove_folder()


class RunFolder(CheckpointFolder):
    """The folder of a Checkpoint.

    Args:
        folder: A path or a URL; `lock` creates it if necessary.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder, _NAME)
        self._unlock: Callable[[], object] | None = None

    def lock(self) -> None:
        """Make the folder and keep other processes from writing into it, until `unlock` or the end of this one.

        Stores that are named by a URL have no locks.

        Raises:
            PhaseError: another run writes into it, or it cannot be written to.
        """
        try:
            self._storage.create_folder()
            self._unlock = self._storage.lock(_LOCK)
        except OSError as error:
            problem = f"checkpoints cannot be written to {self.path!r}: {error}"
            raise PhaseError(problem, hint="choose a writable folder") from error
        if self._unlock is None:
            raise PhaseError(
                f"another run writes its checkpoints to {self.path!r}",
                hint="wait until it has ended, or use a separate folder for each run",
            )
        if self._storage.replaces_at_once:  # where there are locks, nobody else writes: the rest is of killed processes
            self._storage.remove_temporary(re.compile(LATEST))
            self._keep(self.names())

    def unlock(self) -> None:
        """Let other processes write into it; a second call is ignored."""
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()

    def write(
        self,
        position: Position,
        parts: Mapping[str, Any],
        state: Mapping[str, np.ndarray],
        keep: int,
        versions: Mapping[str, str],
        pause: Callable[[], object] | None = None,
    ) -> None:
        """Write a checkpoint, name it in `latest`, and remove old ones.

        Args:
            position: Position of the phase.
            parts: More plain data for the manifest.
            state: State of the graph.
            keep: Number of newest checkpoints to keep, in addition to the one with the lowest score.
            versions: Versions of the frameworks that produced them.
            pause: Function called after each MB that is written, if given.

        Raises:
            OSError: it cannot be written; the existing content stays.
            StateError: the state has arrays that cannot be written.
        """
        position_parts, arrays = position.to_parts()
        folder, newest = self._place_of(position.name), position.name
        saved_folder.write(folder, {**parts, PART: position_parts}, state, arrays, pause=pause, versions=versions)
        self._storage.publish(LATEST, f"{newest}\n".encode())
        names = [name for name in self.names() if name != newest]
        kept, lowest = {newest, *names[max(len(names) - keep + 1, 0) :]}, None
        for name in (*names, newest):
            with suppress(ConfigError):
                score = saved_folder.part(self._storage.subfolder(name), PART).get("score")
                if isinstance(score, (int, float)) and (lowest is None or score < lowest[0]):  # the earliest of equals
                    lowest = score, name
        self._keep(kept if lowest is None else {*kept, lowest[1]})

    def newest(self) -> tuple[Position, dict[str, np.ndarray], list[str]] | None:
        """Return position and state of the newest readable checkpoint, and why newer ones are unreadable; None if
        empty.

        Raises:
            StateError: there are checkpoints, and none can be read.
            ConfigError: the newest was written by a newer version.
        """
        newest = self.newest_by(read)
        return None if newest is None else (*newest[1], newest[2])


def read(folder: str | os.PathLike[str] | saved_folder.Storage) -> tuple[Position, dict[str, np.ndarray]]:
    """Return position and state of the graph of one checkpoint, after checking every byte.

    The state may be on a private mapping of the files: copy it at once.

    Raises:
        ConfigError: no checkpoint, or one of a newer version.
        StateError: a file was changed or is incomplete.
    """
    manifest, arrays = saved_folder.read(folder, PART, "run")
    _, state = saved_folder.read(folder, PART, mapped=True)
    return Position.from_parts(manifest[PART], arrays), state
