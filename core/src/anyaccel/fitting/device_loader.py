"""DeviceLoader: a loader whose batches are on a device, read and copied ahead of their use."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.phases.loading.prefetch import prefetch
from anyaccel.phases.loading.source_randomness import SourceRandomness

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

    def __repr__(self) -> str:
        return f"DeviceLoader({self.loader!r}, {self.accelerator})"

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while an object of it is copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        with closing(prefetch(self._batches)) as batches:
            yield from batches

    def _batches(self) -> Generator[Any]:
        """Batches on the device, for `prefetch`.

        A loop waits for its first batch, which is drawn as in a loop by hand. The others are read while the model
        computes, and draw from a stream of their own: which thread comes first to the global one is chance.
        """
        batches = iter(self.loader)
        batch = next(batches, _END)
        randomness = self._randomness = self._randomness.next(None)
        with randomness.drawing():
            pass  # from here on
        while batch is not _END:
            yield self.accelerator.move(batch, framework=self.framework)
            del batch  # it must not outlive the next
            with randomness.drawing():
                batch = next(batches, _END)
