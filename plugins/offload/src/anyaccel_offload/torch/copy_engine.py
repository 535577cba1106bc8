"""Copies of weights to the compute device, on a separate stream or thread, overlapped with the computation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyaccel_offload.torch.host_buffers import BufferPool, PinnedMemory
from anyaccel_offload.torch.weight_sources import Part, PinnedPart
from anyaccel_torch.error_translation import translate_errors

INLINE = 2**18
"""Maximum bytes of a copy in the calling thread, as another thread would cost more."""
_CHUNK = 2**25
"""Bytes of each of the two pinned buffers for copies from other memory and files to an accelerator."""


@dataclass(eq=False)
class Arrival:
    """A copy of a block's weights, in progress or finished.

    Attributes:
        flat: Bytes of all its tensors on the device.
        event: Event of the copy stream; None if there is no stream, or the event is not known yet.
        pending: Future of the copy thread; None if the caller has copied.
    """

    flat: Tensor
    event: Any = None
    pending: Future[Any] | None = None
    done: bool = False
    compute: Any = field(default=None, repr=False)

    def wait(self) -> None:
        """Make later computations on the current stream wait for the copy.

        Raises:
            StateError: The weights could not be read.
        """
        if self.pending is not None:
            self.event = self.pending.result() or self.event
            self.pending = None
        if self.event is not None:
            self.compute().wait_event(self.event)
        self.done = True

    def abandon(self) -> None:
        """Discard a copy, even in progress: its memory is not reused before the copy has ended."""
        if self.pending is not None and not self.pending.cancel():
            self.pending.exception()
        if not self.done and self.event is not None:
            self.compute().wait_event(self.event)


class CopyEngine:
    """Copies to one device.

    Args:
        device: Compute device.
        pinned: Pinned memory, for copies from other memory and files.
        pool: Pool of host memory if the device is the CPU.
        slots: Number of blocks that there is memory for. The gradients of all but one can be copied while others
            compute.
    """

    def __init__(self, device: torch.device, pinned: PinnedMemory, pool: BufferPool, slots: int = 2) -> None:
        self.device, self._pinned, self._pool, self._slots = device, pinned, pool, slots
        module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._module = module
        self.has_streams = all(hasattr(module, name) for name in ("Stream", "Event", "current_stream"))
        self._into: Any = module.Stream(device) if self.has_streams else None
        self._out: Any = module.Stream(device) if self.has_streams else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="anyaccel-weights")
        self._ring: list[tuple[Tensor, Any]] = []
        self._leaving: list[tuple[Any, Sequence[Tensor]]] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the thread; copies that have not begun are dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def start(self, parts: Sequence[Part], nbytes: int) -> Arrival:
        """Begin to copy parts into new memory; never wait for them if a stream or thread can copy."""
        with torch.inference_mode(False), torch.no_grad():
            flat = self._pool.lease(nbytes) if self._module is None else self._empty(nbytes)
            if all(isinstance(part, PinnedPart) for part in parts) and self.has_streams:
                self._into.wait_event(self._current().record_event())
                with self._module.stream(self._into):
                    _copy_all(parts, flat, True)
                return Arrival(flat, self._into.record_event(), compute=self._current)
            ready = self._current().record_event() if self.has_streams else None
            if nbytes <= INLINE:
                return Arrival(flat, self._by_chunks(parts, flat, ready), compute=self._current)
            return Arrival(
                flat, pending=self._thread.submit(self._by_chunks, parts, flat, ready), compute=self._current
            )

    def to_host(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], object]]:
        """Return copies in host memory, pinned while the budget lasts, and a function that waits for them."""
        made = [self._pinned.empty_like(tensor) for tensor in tensors]
        if not self.has_streams:
            for host, tensor in zip(made, tensors, strict=True):
                host.copy_(tensor)
            return made, lambda: None
        computing = self._current()
        self._out.wait_event(computing.record_event())
        with self._module.stream(self._out):
            for host, tensor in zip(made, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
        event = self._out.record_event()
        with self._lock:
            self._leaving.append((event, tensors))
            if len(self._leaving) >= self._slots:  # the memory of the previous copy is free once that copy has ended
                computing.wait_event(self._leaving.pop(0)[0])
        return made, lambda: self._left(event)  # it holds no tensor: it is called when the backward pass ends

    def _left(self, event: Any) -> None:
        """Wait for copies to the host, and release their source memory."""
        event.synchronize()
        with self._lock:
            self._leaving = [entry for entry in self._leaving if entry[0] is not event]

    def _current(self) -> Any:
        return self._module.current_stream(self.device)

    def _empty(self, nbytes: int) -> Tensor:
        with translate_errors(f"{nbytes} bytes of weights on {self.device}"):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _by_chunks(self, parts: Sequence[Part], flat: Tensor, ready: Any) -> Any:
        """Copy from files and any memory, in the copy thread or directly."""
        with torch.inference_mode(False), torch.no_grad():
            if not self.has_streams:
                _copy_all(parts, flat, False)
                return None
            self._into.wait_event(ready)
            with self._module.stream(self._into):
                for part in parts:
                    self._chunked(part, flat)
            return self._into.record_event()

    def _chunked(self, part: Part, flat: Tensor) -> None:
        """Copy one part through the ring of pinned buffers, if its bytes are those on the device."""
        if not part.is_plain:
            part.copy_into(flat, False)
            return
        first, size = part.extent.offset, part.extent.nbytes
        for begin in range(0, size, _CHUNK):
            count = min(_CHUNK, size - begin)
            if len(self._ring) < 2:
                buffer, event = self._pinned.staging(_CHUNK), None
            else:
                buffer, event = self._ring.pop(0)
            if event is not None:
                event.synchronize()
            part.read_bytes(begin, buffer[:count])
            flat[first + begin : first + begin + count].copy_(buffer[:count], non_blocking=True)
            self._ring.append((buffer, self._into.record_event()))


def _copy_all(parts: Sequence[Part], flat: Tensor, non_blocking: bool) -> None:
    for part in parts:
        part.copy_into(flat, non_blocking)
