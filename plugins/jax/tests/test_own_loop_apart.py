"""Processes of a loop of JAX that do not do the same: an error that says what and who, soon, and no wrong number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from processes_apart import check_end, expected, results_of

SCRIPT = Path(__file__).with_name("own_loop_apart.py")
IN_ALL = {
    "content": r"DataError: the first batch of .* in process LAST differs from that in process 0.*the same batches",
    "fewer": r"DataError: the batches of .* in process LAST had other rows or shapes in this epoch than in process 0",
    "dtype": r"DataError: the batches of .* in process LAST had other rows or shapes",
    "structure": r"DataError: the batches of .* in process LAST had other rows or shapes",
    "stream": r"a stream, has ended in process LAST after 3 batches; it continues in process 0",
    "foreign": r"StateError: .*has checkpoints of another run",
    "calls": r"FrameworkError: the processes are in different calls of the loop: process 0 in loop\.any\(\), "
    r"(.*, )?process LAST in loop\.reduce\(\).*if loop\.is_main_process:",
    "twice": r"ConfigError: this dict is prepared already.*only once",
    "unplaced": r"ConfigError: prepare\(\) in one of SIZE processes: each would train alone.*aa\.Loop\(\)",
    "sizes": r"ConfigError: find_batch_size\(\) in several processes of jax.*Loop\(accumulate=2\)",
}
"""By case, the error that all processes have; they go on."""
ENDS = {
    "raises": r"ValueError: in the loss.* replica LAST ended with exit status 1",
    "killed": "replica LAST ended with signal 9",
    "alone": r"replica 0 of SIZE tried to call loop\.save\(\), but (replica 1|replicas 1, 2) did not within 8 seconds",
    "hangs": r"FrameworkError: replica \d of SIZE could not compute a step: .*, about replica LAST;",
    "leaves": r"replica \d of SIZE could not compute a step: .*, about replica LAST;"
    r"|replica LAST of SIZE could not gather values: replicas? 0(, 1)? ended, or did not answer within 8 seconds",
}
"""By case, what is printed where all processes end."""


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.whole)])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return results_of(SCRIPT, tmp_path_factory.mktemp("apart"), IN_ALL, request.param)


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_ALL)
def test_all_processes_have_an_error_and_go_on(told: list[dict[str, Any]], case: str) -> None:
    for one in told:
        assert re.search(expected(IN_ALL[case], len(told)), one[case], re.DOTALL), one[case]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "case"),
    [
        pytest.param(size, case, marks=() if (size, case) == (3, "alone") else pytest.mark.whole)
        for size in (2, 3)
        for case in ENDS
    ],
)
def test_all_end_soon(size: int, case: str, tmp_path: Path) -> None:
    timeout = "8" if case in ("alone", "hangs", "leaves") else "60"
    check_end(SCRIPT, str(tmp_path), case, error=ENDS[case], size=size, timeout=timeout, seconds=300)
    assert not (tmp_path / "alone").exists()
