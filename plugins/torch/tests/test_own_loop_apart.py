"""Processes of a loop of one's own that do not do the same: an error that says what, soon, and no wrong number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes_apart import check_end

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
SCRIPT = Path(__file__).with_name("own_loop_apart.py")
ERRORS = {
    "weights": r"different Sequential models: '0\.weight' of process 1 differs from process 0",
    "norm": r"BatchNorm1d normalizes over the rows of a batch.*Loop\(sync_batchnorm=True\)",
    "length": r"different numbers of batches in the processes: 4, 6",
    "stream": r"a stream, has ended in process 1 after 4 batches; it continues in process 0",
    "stream of other rows": r"batch 0 of .*, a stream, has different numbers of rows in the processes: 4, 6",
    "split by hand": r"the data set of .* in process 1 differs from that in process 0.*split by hand",
    "own order": r"the order of rows of .* in process 1 differs from that in process 0",
    "other batches": r"the first batch of .* in process 1 differs from that in process 0",
    "calls": r"in different calls of the loop: process 0 in loop\.any\(\), process 1 in loop\.reduce\(\)",
    "hangs": r"replica 0 of 2 could not .*: replica 1 |Timed out waiting|replica 0 of 2 could not",
    "by hand": r"none of the 1 rows of batch 2 of .*Hint: gather the results, each row once",
    "plain": r"optimizer\.step\(\) was called without gradients from loop\.backward\(\)",
    "raises": r"ValueError: in the loss",
    "killed": r"replica 1 ended",
    "alone": r"replica 0 of 2 tried to call loop\.save\(\), but replica 1 did not within 5 seconds",
}


SAMPLE = ("length", "by hand", "killed")
"""Of which each starts two processes; `whole` runs all."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SAMPLE else pytest.mark.whole) for case in ERRORS]
)
def test_all_end_soon_with_an_error_that_says_why(case: str, tmp_path: Path) -> None:
    timeout = "5" if case in ("alone", "hangs") else "60"
    check_end(SCRIPT, case, str(tmp_path / "a"), error=ERRORS[case], timeout=timeout, seconds=150)
    assert not (tmp_path / "a").exists()
