"""prepare: models, optimizers and loaders of a training loop of one's own, on a device; and DeviceLoader."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, ClassVar

from anyaccel.accelerator import SCALARS, Accelerator
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints
from anyaccel.containers import leaves
from anyaccel.data.streaming.off_main_thread import call_off_main_thread
from anyaccel.data.streaming.random_states import watched_rng
from anyaccel.errors import ConfigError, DataError
from anyaccel.launched import launched
from anyaccel.phases.bound_phase import best_common_device
from anyaccel.phases.loading.prefetch import prefetch
from anyaccel.phases.loading.source_loader import SourceRandomness, warn_of_seed
from anyaccel.phases.settings import AUTO
from anyaccel.registry import registry


@call_hints
def prepare(*objects: Any, accelerator: Any = AUTO) -> Any:
    """Models, optimizers and loaders for a training loop of your own: placed, and fed ahead.

    ```python
    net, optimizer, loader = aa.prepare(net, optimizer, loader)
    for x, y in loader: ...
    ```

    Args:
        objects: models and optimizers of one framework or several, in any order, a model before its optimizer; and
            loaders or other iterables of batches.
        accelerator: `"auto"` is the best device on which all of these frameworks run; else an Accelerator, a Device, or
            text such as `"gpu:0"`.

    Returns:
        the objects in the same order, one alone as it is: what was placed (**use the result**), and a DeviceLoader in
        place of each loader, which reads and copies one batch ahead.

    Raises:
        DataError: no object, or one in which there is nothing to place.
        NoBackendError: no plugin runs the framework of an object.
        ConfigError: a launcher has started several processes; `Loop` shares the work among them.
        AnyaccelError: the device is not there, or does not take an object; nothing is placed if that is known before.
    """
    if not objects:
        raise DataError("prepare() was given nothing", hint="write prepare(net, optimizer, loader)")
    place = launched()
    if place is not None:
        raise ConfigError(
            f"prepare() in one of {place.size} processes, each of which would train alone on all rows",
            hint="write loop = aa.Loop(), and loop.prepare(...): see the page 'Keep your own loop'",
        )
    loaders = [_is_loader(each) for each in objects]
    placed = [each for each, loads in zip(objects, loaders, strict=True) if not loads]
    frameworks = sorted({framework for each in placed for framework in _frameworks(each)})
    is_auto = isinstance(accelerator, str) and accelerator == AUTO
    wanted = Accelerator(best_common_device(frameworks)) if is_auto else Accelerator.of(accelerator)
    where = wanted.on_one_device(*frameworks)
    for framework in frameworks:
        where.check(framework)
    only = frameworks[0] if len(frameworks) == 1 else None
    prepared = tuple(
        DeviceLoader(each, where, only) if loads else where.place(each)
        for each, loads in zip(objects, loaders, strict=True)
    )
    return prepared[0] if len(prepared) == 1 else prepared


def _is_loader(given: Any) -> bool:
    """Whether an object gives batches: it can be iterated over, and is neither called, as models are, nor a tensor."""
    if isinstance(given, (Mapping, list, tuple, str, bytes)) or callable(given):
        return False
    return hasattr(given, "__iter__") and not hasattr(given, "shape")


def _frameworks(given: Any) -> set[str]:
    """The frameworks of a model or optimizer, or of a container of such."""
    known = registry()
    objects = [leaf for leaf in leaves(given, known.owners) if not isinstance(leaf, SCALARS)]
    if not objects:
        raise DataError(
            f"prepare() cannot prepare {shown(given)}",
            available="models, optimizers and loaders of installed plugins",
            hint="write prepare(net, optimizer, loader)",
        )
    return {known.owner(leaf) for leaf in objects}


# -- DeviceLoader: a loader whose batches are on a device, read and copied ahead of their use --------------------------


_END = object()


class DeviceLoader:
    """Iterates over a loader in a background thread, one batch ahead, and moves each batch to a device.

    Whatever else it is asked for (`dataset`, `sampler`, `batch_size`) is that of the loader. `prepare` makes it.

    Args:
        loader: a DataLoader, or anything else that can be iterated over, again for each epoch.
        accelerator: where the batches go.
        framework: what NumPy arrays in batches become tensors of; None leaves them arrays.
    """

    END: ClassVar[Any] = _END
    """Given by a loader's iterator in place of a batch that it has not."""

    def __init__(self, loader: Any, accelerator: Accelerator, framework: str | None = None) -> None:
        self.loader, self.accelerator, self.framework = loader, accelerator, framework
        self._randomness = SourceRandomness(None)
        self._in_turn: bool | None = None  # whether each batch is read in the loop's own thread

    def __repr__(self) -> str:
        return f"DeviceLoader({self.loader!r}, {self.accelerator})"

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while an object of it is copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        opened = None
        if self._in_turn is None:  # a loop waits for its first batch, so that nothing else draws meanwhile
            opened = call_off_main_thread(self._open_watched)
        if not self._in_turn:
            with closing(prefetch(partial(self._read_ahead, opened))) as moved:
                yield from moved
            return
        batches, batch = opened or self._open()
        while batch is not _END:
            yield self._moved(batch)
            with self._drawing_in_turn():
                batch = next(batches, _END)

    def _drawing_in_turn(self) -> AbstractContextManager[Any]:
        """Around what reads a batch between two steps."""
        return nullcontext()

    def _open_watched(self) -> tuple[Iterator[Any], Any]:
        with watched_rng() as passed:
            opened = self._open()
        self._in_turn = passed()
        return opened

    def _open(self) -> tuple[Iterator[Any], Any]:
        batches = iter(self.loader)
        return batches, next(batches, _END)

    def _stream_key(self) -> int | None:
        """From which the random numbers of an epoch's further batches follow; None takes those that are there."""
        return None

    def _moved(self, batch: Any) -> Any:
        return self.accelerator.move(batch, framework=self.framework)

    def _read_ahead(self, opened: tuple[Iterator[Any], Any] | None) -> Generator[Any]:
        """Batches on the device, for `prefetch`.

        A loop waits for its first batch, which is drawn as in a loop by hand. The others are read while the model
        computes, and draw from a stream of their own: which thread comes first to the global one is chance.
        """
        batches, batch = opened or self._open()
        del opened
        randomness = self._randomness = self._randomness.next(self._stream_key())
        with randomness.drawing():
            pass  # from here on
        while batch is not _END:
            yield self._moved(batch)
            del batch  # it must not outlive the next
            with randomness.drawing():
                batch = next(batches, _END)
            if randomness.passed and not self._in_turn:
                self._in_turn = True
                warn_of_seed(f"{self!r}")
