"""Copies of weights to the device that computes: on a stream or a thread of their own, beside the compute."""

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
"""Bytes up to which a copy is made at once, as another thread would cost more."""
_CHUNK = 2**25
"""Bytes of each of the two page-locked buffers through which other memory and files are copied to an accelerator."""


@dataclass(eq=False)
class Arrival:
    """A copy of a block's weights, on its way or there.

    Attributes:
        flat: the bytes of all its tensors on the device.
        event: of the copying stream; None where there is none, or it is not known yet.
        pending: of the copying thread; None where the caller has copied.
    """

    flat: Tensor
    event: Any = None
    pending: Future[Any] | None = None
    done: bool = False
    compute: Any = field(default=None, repr=False)

    def wait(self) -> None:
        """What is computed from now on, on the current stream, comes after the copy.

        Raises:
            StateError: the weights could not be read.
        """
        if self.pending is not None:
            self.event = self.pending.result() or self.event
            self.pending = None
        if self.event is not None:
            self.compute().wait_event(self.event)
        self.done = True

    def abandon(self) -> None:
        """Forget a copy, also one on its way: its memory is not given to others before it has ended."""
        if self.pending is not None and not self.pending.cancel():
            self.pending.exception()
        if not self.done and self.event is not None:
            self.compute().wait_event(self.event)


class CopyEngine:
    """Copies to one device.

    Args:
        device: that computes.
        pinned: page-locked memory, for copies from other memory and files.
        pool: of host memory, where the device is the CPU.
        slots: for how many blocks there is memory: the gradients of all but one may be leaving while others compute.
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
        """End the thread; copies that are not begun are dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def start(self, parts: Sequence[Part], nbytes: int) -> Arrival:
        """Begin to copy parts into new memory; never waits for them where a stream or thread can copy."""
        with torch.inference_mode(False), torch.no_grad():
            flat = self._pool.lease(nbytes) if self._module is None else self._empty(nbytes)
            if all(isinstance(part, PinnedPart) for part in parts) and self.has_streams:
                return Arrival(flat, self._on_stream(lambda: _copy_all(parts, flat, True)), compute=self._current)
            ready = self._current().record_event() if self.has_streams else None
            if nbytes <= INLINE:
                return Arrival(flat, self._by_chunks(parts, flat, ready), compute=self._current)
            return Arrival(
                flat, pending=self._thread.submit(self._by_chunks, parts, flat, ready), compute=self._current
            )

    def to_host(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], object]]:
        """Copies in host memory, page-locked as far as it lasts, and a function that waits for them."""
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
            if len(self._leaving) >= self._slots:  # the memory of the one before is free once its copy is over
                computing.wait_event(self._leaving.pop(0)[0])
        return made, lambda: self._left(event)  # which holds no tensor: it is called when the backward pass ends

    def _left(self, event: Any) -> None:
        """Wait for copies to the host, and give back the memory that they were made from."""
        event.synchronize()
        with self._lock:
            self._leaving = [entry for entry in self._leaving if entry[0] is not event]

    def _current(self) -> Any:
        return self._module.current_stream(self.device)

    def _empty(self, nbytes: int) -> Tensor:
        with translate_errors(f"{nbytes} bytes of weights on {self.device}"):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _on_stream(self, work: Callable[[], object]) -> Any:
        """The event after some copies on the copying stream, which come after all that computes until now."""
        self._into.wait_event(self._current().record_event())
        with self._module.stream(self._into):
            work()
        return self._into.record_event()

    def _by_chunks(self, parts: Sequence[Part], flat: Tensor, ready: Any) -> Any:
        """Copy from files and any memory; in the copying thread, or at once."""
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
        """Copy one part through the ring of page-locked buffers, if its bytes are those on the device."""
        if not part.is_plain:
            part.copy_into(flat, False)
            return
        first, size = part.extent.offset, part.extent.nbytes
        for begin in range(0, size, _CHUNK):
            count = min(_CHUNK, size - begin)
            buffer, event = self._next_buffer()
            if event is not None:
                event.synchronize()
            part.read_bytes(begin, buffer[:count])
            flat[first + begin : first + begin + count].copy_(buffer[:count], non_blocking=True)
            self._ring.append((buffer, self._into.record_event()))

    def _next_buffer(self) -> tuple[Tensor, Any]:
        if len(self._ring) < 2:
            return self._pinned.staging(_CHUNK), None
        return self._ring.pop(0)


def _copy_all(parts: Sequence[Part], flat: Tensor, non_blocking: bool) -> None:
    for part in parts:
        part.copy_into(flat, non_blocking)
