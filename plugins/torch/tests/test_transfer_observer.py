"""Kernels around torch's own, over devices that every torch has: `meta` for copies, and the CPU for what waits.

Neither is observed in use: they stand for accelerators, whose kernels are found by the same key of another name.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from anyaccel.adapter.transfer_observer import TransferEvent
from anyaccel_torch.transfer_observer import observed, unobserved

NUMBERS = ((torch.bool, True), (torch.int64, 2**53 + 1), (torch.float64, 0.1), (torch.complex128, 1 + 2j))

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch gives no kernels")


def test_copies_are_told_with_their_bytes() -> None:
    told: list[TransferEvent] = []
    with observed(["meta"], told.append):
        torch.ones(3).to("meta")
        torch.nn.Linear(3, 2).to("meta")
        torch.ones(3, dtype=torch.float64).to("meta", torch.float32)
        torch.empty(3, device="meta").to("meta")
    assert [(each.kind, str(each.target), each.nbytes) for each in told] == [
        ("host to device", "meta:0", nbytes) for nbytes in (12, 24, 8, 12)
    ]
    assert all(each.waits for each in told)


def test_other_threads_are_told() -> None:
    told: list[TransferEvent] = []
    with observed(["meta"], told.append):
        thread = threading.Thread(target=lambda: torch.ones(3).to("meta"))
        thread.start()
        thread.join()
    assert len(told) == 1


def test_a_refusal_reaches_the_caller_and_nothing_is_left() -> None:
    def refuse(event: TransferEvent) -> None:
        raise PermissionError(event.kind)

    with pytest.raises(PermissionError, match="host to device"), observed(["meta"], refuse):
        torch.ones(3).to("meta")
    assert torch.ones(3).to("meta").device.type == "meta"


def test_reads_and_waits_are_those_of_the_profiler() -> None:
    """As the profiler counts the operators; one that is made of others is told once."""
    x = torch.arange(6.0)
    told: list[TransferEvent] = []

    def work() -> None:
        x[x > 2]
        x.nonzero()
        x.masked_select(x > 1)
        torch.equal(x, x)
        torch.unique(x)
        x.repeat_interleave(torch.tensor([1, 2, 1, 1, 1, 1]))
        x.repeat_interleave(torch.tensor([1, 2, 1, 1, 1, 1]), output_size=7)
        if x[1] > 0:
            x[2].item()

    with observed(["cpu"], told.append), profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    counts = {each.key.removeprefix("aten::"): each.count for each in profiled.key_averages()}
    ours = Counter(each.operation for each in told)
    assert ours["nonzero"] == 2 == counts["nonzero"]
    assert (
        ours["_local_scalar_dense"] == 2 == counts["_local_scalar_dense"] - 3
    )  # three are inside operators told above
    assert (ours["masked_select"], ours["equal"], ours["_unique2"]) == (1, 1, 1)
    assert ours["repeat_interleave.Tensor"] == 1
    with observed(["meta"], told.append):
        before = len(told)
        work()
    assert len(told) == before


def test_numbers_that_are_copied_into_a_tensor_keep_their_values() -> None:
    """torch gives a number to such a kernel as a number, and takes back only a tensor."""
    with observed(["cpu"], lambda event: None):
        copied = [torch.zeros(2, dtype=dtype).copy_(number) for dtype, number in NUMBERS]  # type: ignore[arg-type]
    assert [each.tolist() for each in copied] == [[number, number] for _, number in NUMBERS]


def test_functions_that_wait_are_told_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", own := lambda device=None: None)
    told: list[TransferEvent] = []
    with observed(["meta"], told.append):
        torch.accelerator.synchronize("meta:1")
    assert [(each.kind, str(each.source), each.operation) for each in told] == [("wait", "meta:1", "synchronize")]
    assert torch.accelerator.synchronize is own


def test_what_cannot_be_seen_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not unobserved([]) and not unobserved(["cuda", "xpu", "mps"])
    assert unobserved(["vulkan"]) == ["transfers of torch's vulkan devices are not reported"]
    monkeypatch.delattr(torch.library, "get_kernel")
    (text,) = unobserved(["cuda"])
    assert text.startswith("transfers of cuda are reported since torch 2.9, but this is ")
    told: list[TransferEvent] = []
    with observed(["meta"], told.append):
        torch.ones(3).to("meta")
    assert not told
