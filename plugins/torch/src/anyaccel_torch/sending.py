"""Copies to an accelerator beside what it computes, on a stream of their own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from anyaccel.backend import Sent

if TYPE_CHECKING:
    import torch


def can_send_aside(host: torch.Tensor, target: torch.device) -> bool:
    """Whether a tensor lies in page-locked memory, and the device has streams."""
    import torch

    return host.is_pinned() and hasattr(torch.get_device_module(target), "Stream")


def sent_aside(host: torch.Tensor, target: torch.device) -> Sent:
    """A tensor of page-locked memory on its way to `target`.

    The memory of the copy belongs to the stream that copies. So the stream that computes is noted with it: torch lets
    nobody have that memory before it has done with it, though the tensor may be gone by then.
    """
    import torch

    module = torch.get_device_module(target)
    aside = _stream(target)
    with module.stream(aside):
        tensor = host.to(target, non_blocking=True)
        copied = aside.record_event()

    def arrive() -> None:
        computing = module.current_stream(target)
        computing.wait_event(copied)
        tensor.record_stream(computing)

    return Sent(tensor, arrive, copied.synchronize)


@cache
def _stream(target: torch.device) -> Any:
    """The stream that copies to a device; one is enough, as its copies go over one wire."""
    import torch

    return torch.get_device_module(target).Stream(target)
