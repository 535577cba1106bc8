"""Tests of the capabilities `replicate` and `shard_parameters`: a model that two processes train."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyaccel.backend import Backend, Exchange
from anyaccel_devtools.testing.harness import GROUP, Array, Harness, assert_close
from anyaccel_devtools.testing.replica_scenarios import (
    ADAM,
    BATCH,
    DECLARED,
    EVEN,
    LIMIT,
    NOT_IMPORTABLE,
    SIZE,
    STATE_FILE,
    STEPS,
    report_path,
    slot_values,
    standard_model,
)
from anyaccel_devtools.testing.subject import STANDARD_MODEL, Subject

Reports = Callable[[str], list[dict[str, Any]]]
_TIMEOUT_SECONDS = "60"


class ReplicaTests(Subject):
    """SequentialMLP in two processes on this machine, compared with one that trains it alone."""

    @pytest.fixture
    def replica_folder(self, backend: Backend, harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return the folder of the replicas' reports; a subject may run them in another way."""
        return run_scenarios(backend, harness, tmp_path_factory)

    @pytest.fixture
    def replicated(self, replica_folder: Path) -> Reports:
        """Return the replicas' results, by the name of a scenario: one report of each, by rank."""
        return partial(reports, replica_folder)

    def test_values_are_gathered_by_rank(self, replicated: Reports) -> None:
        """`gather` gives all replicas the plain values of all; `sums` adds numbers."""
        for replica in replicated("gathered"):
            assert replica["ranks"] == list(range(SIZE))
            assert replica["equal"]
            assert replica["sums"] == [3.0, 0.5]

    def test_gradients_are_means_over_the_rows_of_all(self, replicated: Reports, harness: Harness) -> None:
        """Parts of different sizes are weighted by their rows; all replicas take the same step."""
        model = started(harness)
        program = harness.build(model, optimizer=ADAM, compile="off")
        harness.forward_backward(program, harness.inputs(BATCH))
        gradients = harness.gradients(program)
        program.optimizer_step()
        program.close()
        every = replicated("averaged")
        for replica in every:
            for averaged, expected in zip(replica["gradients"], gradients, strict=True):
                assert_close(averaged, expected)
            assert_close(replica["values"], harness.parameter_values(model), rtol=1e-3, atol=1e-4)
        assert every[0]["values"] == every[1]["values"]

    def test_tensors_of_shards_are_gathered_in_their_order(self, replicated: Reports, harness: Harness) -> None:
        """If a group `gathers_tensors`, gradients and the numbers that belong to them are in order."""
        every = replicated("shards")
        model = started(harness)
        program = harness.build(model, optimizer=ADAM, compile="off")
        for replica in every:
            assert replica["numbers"] == [0.0, 1.0, 2.0]
            for number, of_shard in enumerate(replica["gradients"]):
                program.zero_grad()
                harness.forward_backward(program, harness.inputs(BATCH.rows(slice(3 * number, 3 * number + 3))))
                for gathered, expected in zip(of_shard, harness.gradients(program), strict=True):
                    assert_close(gathered, expected)
        program.close()

    def test_a_program_that_all_compute_together_trains_like_one_alone(
        self, replicated: Reports, harness: Harness
    ) -> None:
        """If a backend `computes_together`, each passes all rows; losses, norms and values equal those of one
        program.
        """
        every, expected = replicated("together"), whole(harness)
        for replica in every:
            np.testing.assert_allclose(replica["losses"], expected.losses, rtol=1e-5)
            np.testing.assert_allclose(replica["squares"], expected.squares, rtol=1e-4)
            assert_close(replica["values"], expected.values, rtol=1e-3, atol=1e-4)
            assert replica["slots"]["step"] == expected.slots["step"]
        assert every[0]["values"] == every[1]["values"]

    def test_divided_parameters_train_like_whole_ones(self, replicated: Reports, harness: Harness) -> None:
        """Losses, norms of gradients, clipped steps and values equal those of one program over all rows."""
        expected = whole(harness)
        every = replicated("trained")
        for number in range(STEPS):
            steps = [replica["steps"][number] for replica in every]
            mean = sum(step["sum"] for step in steps) / sum(step["weight"] for step in steps)
            np.testing.assert_allclose(mean, expected.losses[number], rtol=1e-5)
        for replica in every:
            assert replica["reason"] == ""
            np.testing.assert_allclose(
                [step["square"] for step in replica["steps"][:STEPS]], expected.squares, rtol=1e-4
            )
            assert_close(replica["values"], expected.values, rtol=1e-3, atol=1e-4)

    def test_models_of_divided_parameters_are_whole_when_they_are_read(
        self, replicated: Reports, harness: Harness
    ) -> None:
        """`sync_models` gives each replica's model all current values, within a phase."""
        read = whole(harness).read
        for replica in replicated("trained"):
            assert_close(replica["read"], read, rtol=1e-3, atol=1e-4)

    def test_states_of_divided_parameters_are_whole_and_go_on(self, replicated: Reports, harness: Harness) -> None:
        """Optimizer states have the shapes of the parameters, in a phase and after it; a later one divides them."""
        expected, further = whole(harness), whole(harness, STEPS + 1)
        for replica in replicated("trained"):
            assert replica["slots"]["step"] == STEPS and replica["states_read"]["step"] == STEPS - 1
            assert replica["states_read"].keys() == replica["slots"].keys()
            assert_close(replica["slots"], expected.slots, rtol=1e-3, atol=1e-4)
            assert_close(replica["gone_on"], further.values, rtol=1e-3, atol=1e-4)

    def test_each_replica_keeps_its_part(self, replicated: Reports, harness: Harness) -> None:
        """It holds its bytes of parameters and optimizer state in a step, as `sharded_bytes` counts them."""
        nbytes = 3 * sum(value.nbytes for value in harness.parameter_values(started(harness)).values())
        for replica in replicated("trained"):
            _need(replica["nbytes"] is not None, "sharded_bytes is not declared")
            assert 0.4 * nbytes < replica["nbytes"] <= 0.6 * nbytes

    def test_nodes_that_stay_whole_train_like_one_program(self, replicated: Reports, harness: Harness) -> None:
        """If parameters are kept whole next to sharded ones, gradients are of all, norms count each once, and values
        agree.
        """
        expected = whole(harness)
        nbytes = 3 * sum(value.nbytes for value in expected.values.values())
        for replica in replicated("kept_whole"):
            assert replica["reason"] == ""
            np.testing.assert_allclose([step["square"] for step in replica["steps"]], expected.squares, rtol=1e-4)
            assert_close(replica["values"], expected.values, rtol=1e-3, atol=1e-4)
            assert_close(replica["slots"], expected.slots, rtol=1e-3, atol=1e-4)
            assert replica["nbytes"] is None or replica["nbytes"] >= nbytes

    def test_parts_of_a_step_add_up(self, replicated: Reports, harness: Harness) -> None:
        """In a step of several parts, gradients are those of its means, over the rows of all replicas."""
        model = started(harness)
        program = harness.build(model, optimizer=ADAM, compile="off")
        harness.train(program, EVEN, 1)
        program.close()
        for replica in replicated("in_parts"):
            assert_close(replica["values"], harness.parameter_values(model), rtol=1e-3, atol=1e-4)

    def test_an_abandoned_replica_waits_for_nobody(self, replicated: Reports) -> None:
        """After `abandon`, `close` exchanges nothing: the others may wait elsewhere."""
        assert [replica["alone"] for replica in replicated("abandoned")] == [True, True]


def reports(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the replicas' reports of a scenario; skip if the backend does not declare it."""
    declared = json.loads(report_path(folder, DECLARED, 0).read_text())["names"]
    _need(name in declared, f"the backend does not declare what {name!r} needs")
    every = [json.loads(report_path(folder, name, rank).read_text()) for rank in range(SIZE)]
    errors = [replica["error"] for replica in every if "error" in replica]
    assert not errors, errors
    return every


def started(harness: Harness) -> Any:
    """Return the model that the replicas have, with their first values."""
    return harness.prepare_model(standard_model(harness.backend))


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The results of one program over all rows.

    Attributes:
        losses: Means of each step.
        squares: Squared norms of the gradients of each step.
        read: Values before the last step.
        values: Values after it.
        slots: Slots of the optimizer, and the number of steps.
    """

    losses: list[float]
    squares: list[float]
    read: dict[str, Array]
    values: dict[str, Array]
    slots: dict[str, Any]


def whole(harness: Harness, n_steps: int = STEPS) -> Whole:
    """Run clipped steps of one program over all rows."""
    model = started(harness)
    program = harness.build(model, optimizer=ADAM, compile="off")
    losses, squares, read = [], [], {}
    for number in range(n_steps):
        if number == n_steps - 1:
            program.sync_models()
            read = harness.parameter_values(model)
        (pair,) = harness.forward_backward(program, harness.inputs(BATCH)).values()
        losses.append(harness.mean_loss(pair))
        square = program.grad_stats()[GROUP][0]
        squares.append(float(harness.to_numpy(square)))
        program.optimizer_step({GROUP: program.clip_factor(LIMIT, [square])})
    slots = slot_values(harness, program.close())
    return Whole(losses=losses, squares=squares, read=read, values=harness.parameter_values(model), slots=slots)


def save_start(harness: Harness, folder: Path) -> None:
    """Write the start values of the replicas."""
    state: dict[str, Any] = dict(harness.compute.state(started(harness)))
    np.savez(folder / STATE_FILE, **state)


def _kind(harness: Harness) -> str:
    """Return the kind of device of the replicas: that of the harness if each can have one, otherwise the CPU."""
    kinds = [device.kind for device in harness.backend.devices()]
    kind = harness.device.kind
    if kind != "sim" and kinds.count(kind) >= SIZE:
        return kind
    _need("cpu" in kinds, f"there is no CPU, and no {kind} for each of {SIZE} processes")
    return "cpu"


_folders: dict[tuple[type, str], Path] = {}


def run_scenarios(backend: Backend, harness: Harness, factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what two processes found, which are run once for a class of backends."""
    feature = pytest.importorskip("anyaccel_distributed", reason="anyaccel-distributed is not installed")
    from anyaccel_distributed.launch_options import TIMEOUT_VARIABLE
    from anyaccel_distributed.processes import run_replicas

    _need(backend.capability(feature.Replicate) is not None, "the backend does not declare replicate")
    _need(isinstance(backend, Exchange), "the kit reads tensors of other processes with Exchange")
    _need(STANDARD_MODEL in harness.compute.models(), f"{STANDARD_MODEL} is missing")
    cls, kind = type(backend), _kind(harness)
    if (cls, kind) not in _folders:
        folder = factory.mktemp("replicas")
        save_start(harness, folder)
        command = [
            sys.executable,
            "-m",
            "anyaccel_devtools.testing.replica_scenarios",
            f"{cls.__module__}:{cls.__qualname__}",
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment[TIMEOUT_VARIABLE] = _TIMEOUT_SECONDS
        status = run_replicas([*command, kind, str(folder)], SIZE, environment)
        _need(status != NOT_IMPORTABLE, f"{cls.__qualname__} cannot be imported by name")
        assert status == 0
        _folders[cls, kind] = folder
    return _folders[cls, kind]


def _need(condition: bool, reason: str) -> None:
    if not condition:
        pytest.skip(reason)
