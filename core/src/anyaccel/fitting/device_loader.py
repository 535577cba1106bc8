"""DeviceLoader: a loader whose batches are on a device, read and copied ahead of their use."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.data.streaming.off_main_thread import call_off_main_thread
from anyaccel.data.streaming.random_states import watched_rng
from anyaccel.phases.loading.prefetch import prefetch
from anyaccel.phases.loading.source_randomness import SourceRandomness, warn_of_seed

_END = object()


class DeviceLoader:
    """Iterates over a loader in a background thread, one batch ahead, and moves each batch to a device.

    Whatever else it is asked for (`dataset`, `sampler`, `batch_size`) is that of the loader. `prepare` makes it.

    Args:
        loader: a DataLoader, or anything else that can be iterated over, again for each epoch.
        accelerator: where the batches go.
        framework: what NumPy arrays in batches become tensors of; None leaves them arrays.
    """

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
            batch = next(batches, _END)

    def _open_watched(self) -> tuple[Iterator[Any], Any]:
        with watched_rng() as passed:
            opened = self._open()
        self._in_turn = passed()
        return opened

    def _open(self) -> tuple[Iterator[Any], Any]:
        batches = iter(self.loader)
        return batches, next(batches, _END)

    def _moved(self, batch: Any) -> Any:
        return self.accelerator.move(batch, framework=self.framework)

    def _read_ahead(self, opened: tuple[Iterator[Any], Any] | None) -> Generator[Any]:
        """Batches on the device, for `prefetch`.

        A loop waits for its first batch, which is drawn as in a loop by hand. The others are read while the model
        computes, and draw from a stream of their own: which thread comes first to the global one is chance.
        """
        batches, batch = opened or self._open()
        del opened
        randomness = self._randomness = self._randomness.next(None)
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
