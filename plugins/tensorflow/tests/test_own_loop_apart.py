"""Processes of a loop of TensorFlow that do not do the same, or of which one is out of memory: errors that say who."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from processes_apart import check_end, expected, results_of

SCRIPT = Path(__file__).with_name("own_loop_apart.py")
_spec: Any = importlib.util.spec_from_file_location("own_loop_script", SCRIPT.with_name("own_loop_script.py"))
script: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

IN_ALL = {
    "content": r"DataError: the data set returns other rows in each process.*without shard\(\)",
    "fewer": r"DataError: the batches of .* in process LAST had other rows or shapes in this epoch than in process 0",
    "dtype": r"DataError: the data set has other elements in process LAST: .*float32.*in the same way in every process",
    "structure": r"DataError: the data set has other elements in process LAST: \{'x'",
    "stream": r"a stream, has ended in process LAST after 3 batches; it continues in process 0",
    "foreign": r"StateError: .*has checkpoints of another run",
    "calls": r"FrameworkError: the processes are in different calls of the loop: process 0 in loop\.any\(\), "
    r"(.*, )?process LAST in loop\.reduce\(\).*if loop\.is_main_process:",
    "unplaced": r"ConfigError: prepare\(\) in one of SIZE processes: each would train alone.*aa\.Loop\(\)",
    "twice": r"ConfigError: SGD received gradients that do not come from loop\.gradient\(\).*once for each update",
    "late": r"ConfigError: find_batch_size\(\) in several processes, but a model was prepared before it.*within the",
}
"""By case, the error that all processes have; they go on."""
MEMORY = ("data", "forward", "backward", "statistics", "step", "end", "save", "all", "eager")
ENDS = {
    "raises": r"ValueError: in the loss.* replica LAST ended with exit status 1",
    "killed": "replica LAST ended with signal 9",
    "alone": r"replica 0 of SIZE tried to call loop\.save\(\), but (replica 1|replicas 1 and 2) did not within 8 ",
    "hangs": r"FrameworkError: replica \d of SIZE could not average the gradients: Collective has timed out.*, "
    r"about replica LAST;",
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
    timeout = "8" if case in ("alone", "hangs") else "60"
    check_end(SCRIPT, str(tmp_path), case, error=ENDS[case], size=size, timeout=timeout, seconds=300)
    assert not (tmp_path / "alone").exists()


# -- out of memory -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 3])
def searched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return results_of(SCRIPT, tmp_path_factory.mktemp("memory"), [*MEMORY, "never"], request.param, "120")


def by_hand() -> tuple[list[float], list[Any]]:
    """The training with batches of 8 rows."""
    model, optimizer, losses = script.model_of(), script.optimizer_of(), []
    for x, y in tf.data.Dataset.from_tensor_slices(script.rows(70)).batch(8):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(script.squares(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return losses, script.weights_of(model)


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("case", MEMORY)
def test_all_begin_again_with_half_the_size(searched: list[dict[str, Any]], case: str) -> None:
    losses, weights = by_hand()
    for one in searched:
        tried, before, (size, found, of_found), after = one[case]
        assert (tried, before, size, after) == ([16, 8], 0, 8, 9)
        if case != "statistics":  # over the rows of each process
            np.testing.assert_allclose(found, losses, rtol=1e-6)
            for ours, theirs in zip(of_found, weights, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.whole
def test_memory_for_no_row_is_an_error_in_all(searched: list[dict[str, Any]]) -> None:
    *elsewhere, here = (one["never"] for one in searched)
    assert all(one[0] == [2, 1] for one in (*elsewhere, here))
    assert all(f"process {len(elsewhere)} is out of memory: " in one[1] for one in elsewhere)
    assert "OOM when allocating" in here[1]
