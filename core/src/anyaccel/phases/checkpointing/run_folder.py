"""Run folder: the checkpoints of one phase, one folder each, and the file `latest`; for one process at a time."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from anyaccel import saved_folder
from anyaccel.errors import ConfigError, PhaseError, StateError
from anyaccel.phases.checkpointing.position import PART, Position

LATEST = "latest"
_LOCK = ".lock"
_NAME = re.compile(r"epoch-[0-9]{6,}-step-[0-9]{9,}")


class RunFolder:
    """The folder of a Checkpoint.

    Args:
        path: made by `lock` if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()
        self._locked: IO[bytes] | None = None

    def lock(self) -> None:
        """Make the folder and keep other processes from writing into it, until `unlock` or the end of this one.

        Raises:
            PhaseError: another run writes into it, or it cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = (self.path / _LOCK).open("ab")
        except OSError as error:
            problem = f"checkpoints cannot be written to {str(self.path)!r}: {error}"
            raise PhaseError(problem, hint="choose a folder that can be written to") from error
        if not _lock(stream):
            stream.close()
            raise PhaseError(
                f"another run writes its checkpoints into {str(self.path)!r}",
                hint="wait until it has ended, or give each run a folder of its own",
            )
        self._locked = stream

    def unlock(self) -> None:
        """Let other processes write into it; a second call is ignored."""
        stream, self._locked = self._locked, None
        if stream is not None:
            stream.close()

    def names(self) -> list[str]:
        """The complete checkpoints, oldest first: a folder becomes one by its manifest, which is written last."""
        found = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(
            (each.name for each in found if _NAME.fullmatch(each.name) and (each / saved_folder.MANIFEST).is_file()),
            key=lambda name: [int(part) for part in re.findall("[0-9]+", name)],
        )

    def write(self, position: Position, parts: Mapping[str, Any], state: Mapping[str, np.ndarray], keep: int) -> Path:
        """Write a checkpoint, name it in `latest`, and remove those that are not to be kept.

        Args:
            position: where the phase is.
            parts: further plain data for the manifest.
            state: the graph's.
            keep: the newest so many are kept, and the one with the lowest score.

        Raises:
            OSError: it cannot be written; what is there stays.
            StateError: the state has arrays that cannot be written.
        """
        own, arrays = position.to_parts()
        path = self.path / position.name
        saved_folder.write(path, {**parts, PART: own}, state, arrays)
        saved_folder.publish(self.path / LATEST, f"{position.name}\n".encode())
        self._prune(position.name, keep)
        return path

    def _prune(self, newest: str, keep: int) -> None:
        names = [name for name in self.names() if name != newest]
        kept = {newest, *self._best([*names, newest]), *names[max(len(names) - keep + 1, 0) :]}
        for path in list(self.path.iterdir()):
            if _NAME.fullmatch(path.name) and path.name not in kept:
                with suppress(OSError):  # without its manifest it is no checkpoint any more, should the rest stay
                    (path / saved_folder.MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)

    def _best(self, names: list[str]) -> Iterator[str]:
        """The checkpoint with the lowest score, the earliest of equal ones."""
        scores = {}
        for name in names:
            with suppress(ConfigError):
                score = saved_folder.part(self.path / name, PART).get("score")
                if isinstance(score, (int, float)):
                    scores[name] = score
        if scores:
            yield min(scores, key=lambda name: scores[name])

    def newest(self) -> tuple[Position, dict[str, np.ndarray], list[str]] | None:
        """Position and state of the newest checkpoint that can be read, and why newer ones could not; None if empty.

        Raises:
            StateError: there are checkpoints, and none can be read.
            ConfigError: the newest was written by a newer version.
        """
        failures: list[str] = []
        names = self.names()
        for name in reversed(names):
            try:
                position, state = read(self.path / name)
            except StateError as error:
                failures.append(error.problem)
                continue
            return position, state, failures
        if failures:
            problem = f"no checkpoint in {str(self.path)!r} can be read: {failures[0]}"
            raise StateError(problem, available=", ".join(names), hint="start anew in another folder")
        return None


def read(path: Path) -> tuple[Position, dict[str, np.ndarray]]:
    """Position and state of the graph of one checkpoint, of which every byte was checked.

    Raises:
        ConfigError: no checkpoint, or one of a newer version.
        StateError: a file was changed or is incomplete.
    """
    manifest, arrays = saved_folder.read(path, PART, "run")
    _, state = saved_folder.read(path, PART)
    return Position.from_parts(manifest[PART], arrays), state


def _lock(stream: IO[bytes]) -> bool:
    """Lock a file for this process, which the system undoes when it ends; False if another has it."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:  # what Windows says
        return False
    except OSError:  # a file system without locks
        return True
    return True
