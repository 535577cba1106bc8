"""Leftovers: threads, child processes, shared memory, and temporary and open files of this process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# multiprocessing's own, which serve the next loader; and torch's compiler keeps its processes for the next compilation.
LASTING = ("forkserver", "resource_tracker", "compile_worker")
# That of tqdm, which torch's compiler uses; a C compiler that this kills leaves its temporary file; and its cache.
LASTING_THREADS, LASTING_FILES = ("tqdm_monitor", "sender"), re.compile(r"cc\w+\.s|pymp-.*|torchinductor_.*")


def leftovers() -> set[str]:
    """What this process has now. All that is in the folder for temporary files counts."""
    gc.collect()
    threads = {f"thread {each.name} {each.ident}" for each in threading.enumerate() if each.name not in LASTING_THREADS}
    return threads | {f"process {each}" for each in _children(os.getpid())} | _shared_memory() | _temporary()


def left_behind(before: set[str], patience: float) -> set[str]:
    """What is there that was not there before, when it has had `patience` seconds to end."""
    deadline = time.monotonic() + patience
    while (left := leftovers() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def open_files() -> int:
    """How many files, pipes and sockets this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def _children(process: int) -> Iterator[str]:
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        for child in _read(tasks).split():
            command = _read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")
            if any(name in command for name in LASTING):
                if "compile_worker" not in command:
                    yield from _children(int(child))  # the workers are the children of the forkserver
            elif command:
                yield f"{child} {command}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # it has ended
        return ""


def name_semaphores() -> None:
    """Let semaphores of multiprocessing have the number of this process in their names, in its children too."""
    multiprocessing.current_process()._config["semprefix"] = f"/mp_{os.getpid()}"  # noqa: SLF001


def _shared_memory() -> set[str]:
    """Without what another living process has named by its number, and semaphores of others, which have no number."""
    return {str(path) for path in Path("/dev/shm").iterdir() if not _is_of_another(path.name)}


def _is_of_another(name: str) -> bool:
    if name.startswith("sem.mp-"):
        return True
    numbers = [int(part) for part in re.split(r"[_.-]", name) if part.isdigit()]
    return any(number != os.getpid() and Path(f"/proc/{number}").exists() for number in numbers)


def _temporary() -> set[str]:
    folder = Path(tempfile.gettempdir())
    return {str(path) for path in folder.rglob("*") if not LASTING_FILES.fullmatch(path.relative_to(folder).parts[0])}
