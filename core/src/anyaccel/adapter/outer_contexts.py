"""Capability `outer_contexts`: contexts that the caller has entered, such as `torch.no_grad`, and their effect on a
phase.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

from anyaccel.backend import Backend
from anyaccel.capability import Capability

ThreadContexts: TypeAlias = "tuple[Callable[[], AbstractContextManager[object]], ...]"

_IN_THREADS: ContextVar[ThreadContexts] = ContextVar("anyaccel_thread_contexts", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterContexts:
    """Contexts around a phase that do not apply inside it.

    Attributes:
        set_aside: Descriptions of contexts that do not apply inside, with the behavior of the phase instead.
        casts: By kind of device, a context that sets the precision, as written, and the closest `precision` of a phase.
            A phase without a precision is refused.
        in_threads: Function that creates a context that applies the settings of the phase's thread to a worker thread.
    """

    set_aside: tuple[str, ...] = ()
    casts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    in_threads: Callable[[], AbstractContextManager[object]] = nullcontext


class LeavesContexts(Capability):
    """Capability: contexts of the framework that the caller has entered do not apply inside a phase."""

    @abstractmethod
    def leave_contexts(self) -> AbstractContextManager[OuterContexts]:
        """Leave contexts that would change the values of a phase or stop it, during a block; yield those contexts.

        Contexts that set how numbers are computed, or which are checked, stay: the user asked for them.

        Raises:
            PhaseError: no phase can run there, for example in a function that is traced.
        """


@contextmanager
def left_contexts(backends: Iterable[Backend]) -> Iterator[Mapping[Backend, OuterContexts]]:
    """Leave the caller's contexts of these backends inside this context; yield the contexts that were left, by backend.

    Inside, threads that enter `in_thread(thread_contexts())` have the settings of this thread.

    Raises:
        PhaseError: see `LeavesContexts.leave_contexts`.
    """
    with ExitStack() as entered:
        left: dict[Backend, OuterContexts] = {}
        in_threads = list(_IN_THREADS.get())
        for backend in dict.fromkeys(backends):
            if (leaves := backend.capability(LeavesContexts)) is not None:
                left[backend] = entered.enter_context(leaves.leave_contexts())
                in_threads.append(left[backend].in_threads)
        token = _IN_THREADS.set(tuple(in_threads))
        try:
            yield left
        finally:
            _IN_THREADS.reset(token)


def thread_contexts() -> ThreadContexts:
    """Return the contexts that a thread started now must enter."""
    return _IN_THREADS.get()


@contextmanager
def in_thread(contexts: ThreadContexts) -> Iterator[None]:
    """Enter the contexts that `thread_contexts` returned in the thread that started this one."""
    with ExitStack() as entered:
        for context in contexts:
            entered.enter_context(context())
        yield
