"""prepare: place models, optimizers and loaders on a device for your own training loop; and DeviceLoader."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
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
    """Place models, optimizers and loaders on a device for your own training loop.

    ```python
    net, optimizer, loader = aa.prepare(net, optimizer, loader)
    for x, y in loader: ...
    ```

    Args:
        objects: Models and optimizers of one framework or several, in any order, each model before its optimizer; and
            loaders or other iterables of batches.
        accelerator: An Accelerator, a Device, or text such as `"gpu:0"`. `"auto"` is the best device that all of these
            frameworks can use.

    Returns:
        The prepared objects in the same order; a single object is returned alone. **Use the result**: an object may
        have been replaced. Each loader becomes a DeviceLoader, which reads and copies one batch ahead.

    Raises:
        DataError: No object was passed, or an object contains nothing to place.
        NoBackendError: No plugin runs the framework of an object.
        ConfigError: A launcher has started several processes; use `Loop`, which splits the work among them.
        AnyaccelError: The device does not exist, or does not take an object. If this is known in advance, nothing is
            placed.
    """
    if not objects:
        raise DataError("prepare() received no arguments", hint="write prepare(net, optimizer, loader)")
    place = launched()
    if place is not None:
        raise ConfigError(
            f"prepare() in one of {place.size} processes: each would train alone on all rows",
            hint="write loop = aa.Loop(), and loop.prepare(...): see the guide 'Keep your own loop'",
        )
    loaders = [is_loader(item) for item in objects]
    placed = [item for item, loads in zip(objects, loaders, strict=True) if not loads]
    frameworks = sorted({framework for item in placed for framework in _frameworks(item)})
    is_auto = isinstance(accelerator, str) and accelerator == AUTO
    wanted = Accelerator(best_common_device(frameworks)) if is_auto else Accelerator.of(accelerator)
    where = wanted.on_one_device(*frameworks)
    for framework in frameworks:
        where.check(framework)
    only = frameworks[0] if len(frameworks) == 1 else None
    prepared = tuple(
        DeviceLoader(item, where, only) if loads else where.place(item)
        for item, loads in zip(objects, loaders, strict=True)
    )
    return prepared[0] if len(prepared) == 1 else prepared


def is_loader(candidate: Any) -> bool:
    """Return whether an object is an iterable of batches: it is neither callable, as models are, nor a tensor."""
    if isinstance(candidate, (Mapping, list, tuple, str, bytes)) or callable(candidate):
        return False
    return hasattr(candidate, "__iter__") and not hasattr(candidate, "shape")


def _frameworks(prepared: Any) -> set[str]:
    """Return the frameworks of a model or optimizer, or of a container of them."""
    registered = registry()
    objects = [leaf for leaf in leaves(prepared, registered.owners) if not isinstance(leaf, SCALARS)]
    if not objects:
        raise DataError(
            f"prepare() cannot prepare {shown(prepared)}",
            available="models, optimizers and loaders of installed plugins",
            hint="write prepare(net, optimizer, loader)",
        )
    return {registered.owner(leaf) for leaf in objects}


# -- DeviceLoader: a loader whose batches are on a device, read and copied ahead of their use --------------------------


_END = object()


class DeviceLoader:
    """A loader that reads one batch ahead in a background thread, and moves each batch to a device.

    Other attributes, such as `dataset`, `sampler` and `batch_size`, are read from the loader. `prepare` creates it.

    Args:
        loader: A DataLoader, or any iterable that can be iterated over again for each epoch.
        accelerator: Device of the batches.
        framework: Framework whose tensors NumPy arrays in batches become; None leaves them as arrays.
    """

    END: ClassVar[Any] = _END
    """Returned by a loader's iterator after the last batch."""

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
        if self._in_turn is None:  # a loop waits for its first batch, so that nothing else draws at the same time
            opened = call_off_main_thread(self._open_watched)
        if not self._in_turn:
            with closing(prefetch(partial(self._read_ahead, opened))) as moved:
                yield from moved
            return
        batches, batch = opened or self._open()
        stream = self._stream_in_turn()
        while batch is not _END:
            yield self._moved(batch)
            if stream is None:
                batch = next(batches, _END)
            else:
                with stream.drawing():
                    batch = next(batches, _END)

    def _stream_in_turn(self) -> SourceRandomness | None:
        """Return the random numbers for reading an epoch's later batches between steps; None: those of the loop."""
        return None

    def _open_watched(self) -> tuple[Iterator[Any], Any]:
        with watched_rng() as passed:
            opened = self._open()
        self._in_turn = passed()
        return opened

    def _open(self) -> tuple[Iterator[Any], Any]:
        batches = iter(self.loader)
        return batches, next(batches, _END)

    def _stream_key(self) -> int | None:
        """Return the key of the random numbers of an epoch's later batches; None uses the global generators."""
        return None

    def _moved(self, batch: Any) -> Any:
        return self.accelerator.move(batch, framework=self.framework)

    def _read_ahead(self, opened: tuple[Iterator[Any], Any] | None) -> Generator[Any]:
        """Yield batches on the device, for `prefetch`.

        A loop waits for its first batch, which draws from the global generators as without `prefetch`. The other
        batches are read while the model computes, and draw from a separate stream: two threads use the global
        generators in random order.
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
