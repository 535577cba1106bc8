"""Processes of a loop of JAX that do not do the same: an error that says what and who, soon, and no wrong number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from processes_apart import check_end, results_of

SCRIPT = Path(__file__).with_name("own_loop_apart.py")
IN_ALL = {
    "content": r"DataError: the first batch of .* in process 1 differs from that in process 0.*return the same batches",
    "fewer": r"DataError: the batches of .* in process 1 had other rows or shapes in this epoch than in process 0",
    "dtype": r"DataError: the batches of .* in process 1 had other rows or shapes",
    "structure": r"DataError: the batches of .* in process 1 had other rows or shapes",
    "stream": r"a stream, has ended in process 1 after 3 batches; it continues in process 0",
    "foreign": r"StateError: .*has checkpoints of another run",
    "calls": r"FrameworkError: the processes are in different calls of the loop: process 0 in loop\.any\(\), "
    r"process 1 in loop\.reduce\(\).*if loop\.is_main_process:",
    "twice": r"ConfigError: this dict is prepared already.*only once",
    "unplaced": r"ConfigError: prepare\(\) in one of 2 processes: each would train alone.*aa\.Loop\(\)",
    "sizes": r"ConfigError: find_batch_size\(\) in several processes of jax.*Loop\(accumulate=2\)",
}
"""By case, the error that all processes have; they go on."""
ENDS = {
    "raises": "ValueError: in the loss",
    "killed": "replica 1 ended with signal 9",
    "alone": r"replica 0 of 2 tried to call loop\.save\(\), but replica 1 did not within 8 seconds",
    "hangs": r"FrameworkError: replica 0 of 2 could not compute a step: .*",
    "leaves": r"replica 0 of 2 could not gather values: replica 1 has ended, or did not answer within 8 seconds",
}
"""By case, what is printed where all processes end."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return results_of(SCRIPT, tmp_path_factory.mktemp("apart"), IN_ALL)


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_ALL)
def test_all_processes_have_an_error_and_go_on(told: list[dict[str, Any]], case: str) -> None:
    for one in told:
        assert re.search(IN_ALL[case], one[case], re.DOTALL), one[case]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == "alone" else pytest.mark.whole) for case in ENDS]
)
def test_all_end_soon(case: str, tmp_path: Path) -> None:
    timeout = "8" if case in ("alone", "hangs", "leaves") else "60"
    check_end(SCRIPT, str(tmp_path), case, error=ENDS[case], timeout=timeout, seconds=300)
    assert not (tmp_path / "alone").exists()
