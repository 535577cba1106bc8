"""Iterators of batches: how a user's source is opened anew for every epoch."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from anyaccel.data.streaming.dataloader_workers import check_fork, set_epoch
from anyaccel.data.streaming.not_a_source import data_hint
from anyaccel.data.streaming.source_errors import failed
from anyaccel.errors import SourceError

_INFINITE = -1  # what cardinality() gives for a data set without an end


@dataclass(frozen=True, slots=True)
class IteratorFactory:
    """Opens a source for an epoch.

    Attributes:
        label: of the source.
        open: from the number of an epoch to an iterable of batches.
        once: the source is an iterator, which is read once and is not ours to close.
    """

    label: str
    open: Callable[[int], Any]
    once: bool = False

    def iterator(self, epoch: int) -> Iterator[Any]:
        """An iterator of the batches of an epoch."""
        try:
            iterable = self.open(epoch)
            iterator = None if data_hint(iterable) else self._started(iterable, epoch)
        except SourceError:
            raise
        except Exception as error:
            raise failed(f"source {self.label!r} cannot be opened for epoch {epoch}", error) from error
        if iterator is None:
            raise SourceError(
                f"the function of source {self.label!r} gave a {type(iterable).__name__}, not an iterable of batches",
                cause="it is called once for every epoch",
                hint="yield batches, or return a list of them",
            )
        return iterator

    def _started(self, iterable: Any, epoch: int) -> Iterator[Any] | None:
        if self.once:
            return cast("Iterator[Any]", iterable)
        check_fork(self.label, iterable)
        set_epoch(iterable, epoch)
        return iter(iterable) if hasattr(iterable, "__iter__") else None


def iterator_factory(label: str, source: Any) -> IteratorFactory:
    """How a source is opened."""
    hint = data_hint(source)
    if hint:
        kind = type(source).__name__
        raise SourceError(f"the {kind} given as source {label!r} is data, not a source of batches", hint=hint)
    if isinstance(source, type):
        return IteratorFactory(label, _function(label, source))
    if hasattr(source, "__next__"):
        return IteratorFactory(label, lambda epoch: source, once=True)
    if hasattr(source, "__iter__"):
        return IteratorFactory(label, lambda epoch: source)
    if callable(source):
        return IteratorFactory(label, _function(label, source))
    if hasattr(source, "__getitem__"):
        raise SourceError(
            f"the {type(source).__name__} of source {label!r} gives rows by number, not batches",
            hint="write MapSource(label, dataset, features=[...]) in place of IterableSource; the phase's sampler then "
            "orders and batches its rows",
        )
    raise SourceError(
        f"a {type(source).__name__} is not a source of batches for {label!r}",
        available="loaders, data sets, lists of batches, functions without arguments that return an iterable",
        hint="write a function that yields batches",
    )


def length_of(source: Any) -> int | None:
    """How many batches a source says it gives, None if it does not know."""
    if not hasattr(source, "__len__"):
        return None
    try:
        return len(source)
    except TypeError:
        return None


def never_ends(source: Any) -> bool:
    """Whether a source is known to have no end: `itertools.count`, `cycle` and `repeat`, and those that say so."""
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
    except (TypeError, ValueError):  # built-in functions may have no signature
        return lambda epoch: source()
    empty, variadic = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [each.name for each in parameters if each.default is empty and each.kind not in variadic]
    if any(each.name == "epoch" and each.kind is not inspect.Parameter.POSITIONAL_ONLY for each in parameters):
        required = [name for name in required if name != "epoch"]
        call: Callable[[int], Any] = lambda epoch: source(epoch=epoch)  # noqa: E731
    else:
        call = lambda epoch: source()  # noqa: E731
    if required:
        raise SourceError(
            f"the function of source {label!r} needs {', '.join(required)}",
            cause="it is called without arguments, or with the number of the epoch as `epoch`",
            hint="write lambda: make_batches(...) with the arguments inside",
        )
    return call
