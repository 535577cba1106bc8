"""Processes of a loop of TensorFlow that do not do the same, or of which one is out of memory: errors that say who."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from processes_apart import check_end, results_of

SCRIPT = Path(__file__).with_name("own_loop_apart.py")
_spec: Any = importlib.util.spec_from_file_location("own_loop_script", SCRIPT.with_name("own_loop_script.py"))
script: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

IN_ALL = {
    "content": r"DataError: the data set returns other rows in each process.*without shard\(\)",
    "fewer": r"DataError: the batches of .* in process 1 had other rows or shapes in this epoch than in process 0",
    "dtype": r"DataError: the data set has other elements in process 1: .*float32.*in the same way in every process",
    "structure": r"DataError: the data set has other elements in process 1: \{'x'",
    "stream": r"a stream, has ended in process 1 after 3 batches; it continues in process 0",
    "foreign": r"StateError: .*has checkpoints of another run",
    "calls": r"FrameworkError: the processes are in different calls of the loop: process 0 in loop\.any\(\), "
    r"process 1 in loop\.reduce\(\).*if loop\.is_main_process:",
    "unplaced": r"ConfigError: prepare\(\) in one of 2 processes: each would train alone.*aa\.Loop\(\)",
    "twice": r"ConfigError: SGD received gradients that do not come from loop\.gradient\(\).*once for each update",
    "late": r"ConfigError: find_batch_size\(\) in several processes, but a model was prepared before it.*within the",
}
"""By case, the error that all processes have; they go on."""
MEMORY = ("data", "forward", "backward", "statistics", "step", "end", "save", "all", "eager")
ENDS = {
    "raises": "ValueError: in the loss",
    "killed": "replica 1 ended with signal 9",
    "alone": r"replica 0 of 2 tried to call loop\.save\(\), but replica 1 did not within 8 seconds",
    "hangs": r"FrameworkError: replica 0 of 2 could not average the gradients: .*",
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
    check_end(
        SCRIPT, str(tmp_path), case, error=ENDS[case], timeout="8" if case in ("alone", "hangs") else "60", seconds=300
    )
    assert not (tmp_path / "alone").exists()


# -- out of memory -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return results_of(SCRIPT, tmp_path_factory.mktemp("memory"), [*MEMORY, "never"], "120")


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
    elsewhere, here = (one["never"] for one in searched)
    assert elsewhere[0] == here[0] == [2, 1]
    assert "process 1 is out of memory: " in elsewhere[1] and "OOM when allocating" in here[1]
