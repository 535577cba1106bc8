"""Loaders and their workers: how many workers help, when they are safe with loaded frameworks, and which rows are
dropped.
"""

from __future__ import annotations

import sys
from typing import Any

from anyaccel.arguments import is_integer, shown
from anyaccel.call_hints import call_hints
from anyaccel.errors import SourceError
from anyaccel.host_memory import usable_cores
from anyaccel.registry import registry

MOST_WORKERS = 8
"""The most workers that are suggested for one device: more seldom read faster, and each takes memory."""
ENDED_HINT = (
    "the worker was killed, often because memory ran out, or it exited: use fewer workers, or num_workers=0 "
    "to read in this process"
)
_EPOCH_OWNERS = ("", "sampler", "batch_sampler", "dataset")


@call_hints
def suggested_num_workers(devices: int = 1, cores: int | None = None) -> int:
    """Suggest the number of data loader workers for each device: one core is left to the loop, the others are split
    evenly.

    The result is `max(1, min((cores - 1) // devices, 8))`; on one core it is 0, which reads in the loop itself.

    Args:
        devices: Number of devices that are fed at the same time, each by separate workers.
        cores: Number of cores that this process may use; counted if None.

    Raises:
        SourceError: fewer than one device or core.

    Example:
        >>> import anyaccel as aa
        >>> aa.suggested_num_workers(devices=2, cores=9)
        4
    """
    cores = usable_cores() if cores is None else cores
    for name, count in (("devices", devices), ("cores", cores)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            problem = f"suggested_num_workers: {name} must be a whole number of 1 or more, got {shown(count)}"
            raise SourceError(problem, hint=f"write {name}=1")
    return 0 if cores == 1 else max(1, min((cores - 1) // devices, MOST_WORKERS))


def workers_of(source: Any) -> int:
    """Return the number of worker processes of a loader, 0 for sources without workers."""
    count = getattr(source, "num_workers", 0)
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


def worker_notes(label: str, source: Any) -> tuple[str, ...]:
    """Return notes for the user about the workers of a loader."""
    count, cores = workers_of(source), usable_cores()
    if count <= cores:
        return ()
    suggested = suggested_num_workers()
    return (f"source {label!r} has {count} workers on {cores} cores; {suggested} are recommended for each device",)


def check_fork(label: str, source: Any) -> None:
    """Check that the workers of a loader are not forks of a process whose frameworks run threads."""
    if not workers_of(source):
        return
    import multiprocessing  # loaded only for sources with workers

    context = getattr(source, "multiprocessing_context", None)
    if context is None:
        # Without allow_none, asking would settle the method for the rest of the process.
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    else:
        method = context if isinstance(context, str) else context.get_start_method()
    if method != "fork":
        return
    threaded = sorted(
        backend.framework
        for backend in registry().backends_in_use
        if not backend.fork_safe and any(root in sys.modules for root in backend.import_roots[:1])
    )
    if threaded:
        raise SourceError(
            f"the {workers_of(source)} workers of source {label!r} would be forked while these run: "
            f"{' and '.join(threaded)}",
            cause="their threads are not copied into a fork, which may wait forever for a lock held by one of them",
            hint="create the loader with multiprocessing_context='forkserver' (or 'spawn'), or with num_workers=0",
        )


def check_no_share(label: str, source: Any) -> None:
    """Check that a loader reads all rows, and not only the part of one process among several.

    Samplers and data sets with `num_replicas` and `rank` (`DistributedSampler`), or `num_processes` and
    `process_index`, read a part if the number is more than one.
    """
    wrapped = [getattr(source, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    for part in [*wrapped, *(getattr(part, name, None) for part in wrapped for name in ("sampler", "batch_sampler"))]:
        for count, index in (("num_replicas", "rank"), ("num_processes", "process_index")):
            n_parts: Any = getattr(part, count, None)
            position = getattr(part, index, None)
            if is_integer(n_parts) and is_integer(position) and n_parts > 1:
                raise SourceError(
                    f"the loader of source {label!r} reads 1 of {n_parts} parts of its rows: {type(part).__name__} "
                    f"with {count}={n_parts}, {index}={position}",
                    cause="anyaccel splits each batch over the processes, so the loader must return all rows",
                    hint="create the loader without it (no DistributedSampler); to read one part "
                    "on purpose, pass a function: lambda: loader",
                )


def dropped_rows(source: Any) -> int:
    """Return how many rows a loader drops from an epoch because its last batch would be smaller (`drop_last=True`)."""
    batches: Any = getattr(source, "batch_sampler", None)
    size: Any = getattr(batches, "batch_size", None)
    if not getattr(batches, "drop_last", False) or not is_integer(size):
        return 0
    try:
        return int(len(batches.sampler) % size)
    except (AttributeError, TypeError):
        return 0


def worker_ended(error: Exception) -> bool:
    """Return whether an error of torch's loader means that a worker process has ended, and not that its code raised."""
    text = str(error)
    if isinstance(error, (ConnectionError, EOFError)):  # what it had sent is fetched from the process
        return not text.startswith("Caught ")
    return text.startswith("DataLoader worker (pid") and ("exited unexpectedly" in text or "killed by signal" in text)


def set_epoch(source: Any, epoch: int) -> None:
    """Call `set_epoch` of a loader, its samplers and its data set, if they have it."""
    for name in _EPOCH_OWNERS:
        part = getattr(source, name, None) if name else source
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)  # type: ignore[union-attr]
