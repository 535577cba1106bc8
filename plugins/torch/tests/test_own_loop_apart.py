"""Processes of a loop of one's own that do not do the same: an error that says what, soon, and no wrong number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes_apart import check_end

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
SCRIPT = Path(__file__).with_name("own_loop_apart.py")
ERRORS = {
    "weights": r"different Sequential models: '0\.weight' of process LAST differs from process 0",
    "frozen weights": r"different Sequential models: '0\.weight' of process LAST differs from process 0",
    "later weights": r"process LAST has other weights of Sequential than process 0; they were changed in one process",
    "rates": r"LAST has other learning rates of SGD than process 0.*schedule\.step\(loop\.reduce\(value\)\)",
    "norm": r"BatchNorm1d normalizes over the rows of a batch.*Loop\(sync_batchnorm=True\)",
    "length": r"different numbers of batches in the processes: 4, (4, )?6",
    "stream": r"a stream, has ended in process LAST after 4 batches; it continues in process 0",
    "stream of other rows": r"batch 1 of .*, a stream, has different numbers of rows in the processes: 4, (4, )?6",
    "split by hand": r"the data set of .* in process LAST differs from that in process 0.*split by hand",
    "own order": r"the order of rows of .* in process LAST differs from that in process 0",
    "other batches": r"the first batch of .* in process LAST differs from that in process 0",
    "calls": r"in different calls of the loop: process 0 in loop\.any\(\), (.*, )?process LAST in loop\.reduce\(\)",
    "hangs": r"of SIZE could not average the gradients: replica LAST ended or did not answer",
    "late": r"of SIZE could not join the others: replica LAST ended or did not answer.*create the loop, in all ",
    "by hand": r"none of the 1 rows of batch 2 of .*Hint: gather the results, each row once",
    "plain": r"optimizer\.step\(\) was called without gradients from loop\.backward\(\)",
    "raises": r"ValueError: in the loss.* replica LAST ended with exit status 1",
    "killed": r"replica LAST ended with signal 9",
    "alone": r"replica 0 of SIZE tried to call loop\.save\(\), but (replica 1|replicas 1, 2) did not within 5 seconds",
}


SAMPLE = ((2, "length"), (2, "by hand"), (3, "killed"))
"""Of which each starts processes; `whole` runs all, in two and in three."""


@pytest.mark.parametrize(
    ("size", "case"),
    [
        pytest.param(size, case, marks=() if (size, case) in SAMPLE else pytest.mark.whole)
        for size in (2, 3)
        for case in ERRORS
    ],
)
def test_all_end_soon_with_an_error_that_says_why(size: int, case: str, tmp_path: Path) -> None:
    timeout = "5" if case in ("alone", "hangs", "late") else "60"
    check_end(SCRIPT, case, str(tmp_path / "a"), error=ERRORS[case], size=size, timeout=timeout, seconds=150)
    assert not (tmp_path / "a").exists()
