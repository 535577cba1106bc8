"""Capability `outer_contexts`: what contexts that the caller has entered mean for a phase, such as `torch.no_grad`."""

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
    """Contexts around a phase, which does without them.

    Attributes:
        set_aside: those that do not hold inside, in words, each with what the phase does instead.
        casts: by kind of device, a context that says in which precision is computed, as it was written, and the
            `precision` of a phase that comes nearest. A phase that states no precision is refused.
        in_threads: makes a context in which a thread that works for the phase has the settings of the phase's.
    """

    set_aside: tuple[str, ...] = ()
    casts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    in_threads: Callable[[], AbstractContextManager[object]] = nullcontext


class LeavesContexts(Capability):
    """Capability: contexts of the framework that the caller has entered do not reach into a phase."""

    @abstractmethod
    def leave_contexts(self) -> AbstractContextManager[OuterContexts]:
        """A context without those that would keep a phase from its values, or from running; gives what was there.

        What says how numbers are computed, or which are checked, stays: it is the user's wish.

        Raises:
            PhaseError: no phase can run there, as in a function that is traced.
        """


@contextmanager
def left_contexts(backends: Iterable[Backend]) -> Iterator[Mapping[Backend, OuterContexts]]:
    """A context without those of the caller that these backends leave; gives what was there, by backend.

    Inside, threads that enter `in_thread(thread_contexts())` have the settings of this one.

    Raises:
        PhaseError: as `LeavesContexts.leave_contexts`.
    """
    with ExitStack() as entered:
        left: dict[Backend, OuterContexts] = {}
        for backend in dict.fromkeys(backends):
            if (leaves := backend.capability(LeavesContexts)) is not None:
                left[backend] = entered.enter_context(leaves.leave_contexts())
        token = _IN_THREADS.set((*_IN_THREADS.get(), *(contexts.in_threads for contexts in left.values())))
        try:
            yield left
        finally:
            _IN_THREADS.reset(token)


def thread_contexts() -> ThreadContexts:
    """What a thread that is started now has to enter."""
    return _IN_THREADS.get()


@contextmanager
def in_thread(contexts: ThreadContexts) -> Iterator[None]:
    """The context of a thread, from what `thread_contexts` gave in the thread that started it."""
    with ExitStack() as entered:
        for context in contexts:
            entered.enter_context(context())
        yield
