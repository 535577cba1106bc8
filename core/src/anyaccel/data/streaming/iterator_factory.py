"""Opening: what a user gave as a source of batches, opened anew for every epoch."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from anyaccel.data.streaming.dataloader_workers import check_fork, set_epoch
from anyaccel.data.streaming.not_a_source import instead_of
from anyaccel.data.streaming.source_errors import failed
from anyaccel.errors import SourceError

_INFINITE = -1  # what TensorFlow's cardinality() says of a data set without an end


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens a source for an epoch.

    Attributes:
        label: of the source.
        open: gives an iterator of batches for the number of an epoch.
        once: the source is an iterator, which is read once and is not ours to close.
    """

    label: str
    open: Callable[[int], Any]
    once: bool = False

    def opened(self, epoch: int) -> Iterator[Any]:
        """An iterator of batches.

        Raises:
            SourceError: the source cannot be opened, or gives no iterable.
        """
        try:
            made = self.open(epoch)
            iterator = None if instead_of(made) else self._begun(made, epoch)
        except SourceError:
            raise
        except Exception as error:
            raise failed(f"source {self.label!r} cannot be opened for epoch {epoch}", error) from error
        if iterator is None:
            raise SourceError(
                f"the function of source {self.label!r} gave a {type(made).__name__}",
                available="it is called once for every epoch and gives an iterable of batches",
                hint="yield batches, or return a list of them",
            )
        return iterator

    def _begun(self, made: Any, epoch: int) -> Iterator[Any] | None:
        if self.once:
            return cast("Iterator[Any]", made)
        check_fork(self.label, made)
        set_epoch(made, epoch)
        return iter(made) if hasattr(made, "__iter__") else None


def opener(label: str, source: Any) -> Opener:
    """How a source is opened.

    Raises:
        SourceError: it is no source of batches.
    """
    remedy = instead_of(source)
    if remedy:
        what = type(source).__name__
        raise SourceError(f"the {what} given as source {label!r} is data, not a source of batches", hint=remedy)
    if isinstance(source, type):
        return Opener(label, _function(label, source))
    if hasattr(source, "__next__"):
        return Opener(label, lambda epoch: source, once=True)
    if hasattr(source, "__iter__"):
        return Opener(label, lambda epoch: source)
    if callable(source):
        return Opener(label, _function(label, source))
    if hasattr(source, "__getitem__"):
        raise SourceError(
            f"the {type(source).__name__} of source {label!r} gives rows by number, not batches",
            hint="write MapSource(label, dataset, features=[...]) in place of IterableSource, and leave order and batches to us",
        )
    raise SourceError(
        f"a {type(source).__name__} is no source of batches for {label!r}",
        available="loaders, data sets, lists of batches, and functions that give an iterable of batches",
        hint="write a function that yields batches",
    )


def length_of(source: Any) -> int | None:
    """How many batches a source says it gives, None where it does not know.

    Raises:
        Exception: whatever its `__len__` raises, but for TypeError, which means that it does not know.
    """
    if not hasattr(source, "__len__"):
        return None
    try:
        return len(source)
    except TypeError:
        return None


def never_ends(source: Any) -> bool:
    """Whether a source is known to have no end: `itertools.count`, `cycle` and `repeat`, and what says so itself."""
    if isinstance(source, (itertools.count, itertools.cycle)):
        return True
    if isinstance(source, itertools.repeat):
        return operator.length_hint(source, _INFINITE) == _INFINITE
    cardinality = getattr(source, "cardinality", None)
    if not callable(cardinality) or isinstance(source, type):
        return False
    try:
        return int(cardinality()) == _INFINITE
    except (TypeError, ValueError):
        return False


def _function(label: str, source: Callable[..., Any]) -> Callable[[int], Any]:
    """A function called for each epoch, with its number if it has a parameter `epoch`."""
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):  # built-in ones tell nothing of themselves
        return lambda epoch: source()
    empty, kinds = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one.name for one in parameters if one.default is empty and one.kind not in kinds]
    if any(one.name == "epoch" and one.kind is not inspect.Parameter.POSITIONAL_ONLY for one in parameters):
        needed = [name for name in needed if name != "epoch"]
        call: Callable[[int], Any] = lambda epoch: source(epoch=epoch)  # noqa: E731
    else:
        call = lambda epoch: source()  # noqa: E731
    if needed:
        raise SourceError(
            f"the function of source {label!r} needs {', '.join(needed)}",
            available="it is called without arguments, or with the number of the epoch as `epoch`",
            hint="write lambda: make_batches(...) with the arguments inside",
        )
    return call
