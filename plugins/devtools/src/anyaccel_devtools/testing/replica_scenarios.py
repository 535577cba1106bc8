"""The work of the kit's replicas, in two processes. Each writes its results to files, which the tests read.

    python -m anyaccel_devtools.testing.replica_scenarios MODULE:CLASS KIND FOLDER

`anyaccel_distributed.processes` starts it. The class is a backend, created without arguments; KIND is a kind of device.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.backend import Program
from anyaccel.device import Device
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer
from anyaccel_devtools.testing.harness import GROUP, NODE, Batch, Harness

if TYPE_CHECKING:
    from anyaccel_distributed import ReplicaGroup, ShardParameters

SIZE = 2
BATCH = Batch.of(11)
"""The replicas have 6 and 5 of these rows."""
EVEN = BATCH.rows(slice(0, 10))
"""Rows of a step in two parts: of 3 rows each in the first replica, and of 2 in the second."""
ADAM = Optimizer("adam", lr=0.05)
LIMIT, STEPS = 0.5, 3
NOT_IMPORTABLE = 77
"""The exit status where the class of a backend cannot be imported by its name."""
STATE_FILE = "state.npz"
DECLARED = "declared"
"""The report of the names of all others."""
_WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class Replica:
    """One of the replicas, in its process or thread.

    Attributes:
        harness: Its backend and device.
        group: Group of all replicas.
        model: Function that creates the model, whose values are in `folder`.
        folder: Folder of the reports.
    """

    harness: Harness
    group: ReplicaGroup
    model: Callable[[], Any]
    folder: Path

    def prepared(self) -> Any:
        """Return the model with its first values."""
        model = self.harness.prepare_model(self.model)
        with np.load(self.folder / STATE_FILE) as state:
            self.harness.compute.load_state(model, dict(state))
        return model

    def rows(self) -> Batch:
        """Return this replica's part of the batch."""
        return BATCH.rows(slice(6, 11) if self.group.rank else slice(0, 6))

    @property
    def global_batches(self) -> bool:
        """Whether programs with sharded parameters take all rows of a step in each replica."""
        shards = self.harness.backend.capability(feature().ShardParameters)
        return shards is not None and shards.global_batches

    def tell(self, name: str, **found: Any) -> None:
        """Write the results immediately."""
        path = report_path(self.folder, name, self.group.rank)
        path.with_suffix(".tmp").write_text(json.dumps(found, default=_plain))
        path.with_suffix(".tmp").replace(path)


def feature() -> Any:
    """Return the distribution with the capabilities of replicas. It is installed if this code runs."""
    return importlib.import_module("anyaccel_distributed")


def report_path(folder: Path, name: str, rank: int) -> Path:
    """Return the file of a replica's results."""
    return folder / f"{name}-{rank}.json"


def perform(replica: Replica) -> None:
    """Run everything that the backend declares, in sequence; failures in all replicas are reported."""
    backend = replica.harness.backend
    scenarios = [gathered, averaged]
    if replica.group.gathers_tensors and backend.capability(feature().DeviceReplicas) is not None:
        scenarios.append(shards)
    if backend.required(feature().Replicate).computes_together:
        scenarios.append(together)
    sharding = backend.capability(feature().ShardParameters)
    if sharding is not None and not _refused(replica, sharding):
        scenarios += [trained, in_parts, *([kept_whole] if sharding.shards_nodes else []), abandoned]
    replica.tell(DECLARED, names=[scenario.__name__ for scenario in scenarios])
    for scenario in scenarios:
        try:
            scenario(replica)
        except Exception as error:
            replica.tell(scenario.__name__, error=f"{type(error).__name__}: {error}")


def _refused(replica: Replica, sharding: ShardParameters) -> str:
    """Return why the backend shards nothing here, not even the kit's model, as in an older release of its framework."""
    segment = replica.harness.segment(replica.prepared(), optimizer=ADAM, compile="off")
    return sharding.unshardable_reason(segment, offload=False)


def gathered(replica: Replica) -> None:
    """Gather plain values, and sums of numbers."""
    rank = replica.group.rank
    value = {"rank": rank, "list": [None, True, 2.5, "text"], "bytes": bytes([rank, 255])}
    every = replica.group.gather(value)
    are_equal = every == [{**value, "rank": i, "bytes": bytes([i, 255])} for i in range(SIZE)]
    replica.tell("gathered", ranks=[replica["rank"] for replica in every], equal=are_equal, sums=_sums(replica.group))


def _sums(group: ReplicaGroup) -> list[float]:
    return group.sums([1.0 + group.rank, 0.25])


def averaged(replica: Replica) -> None:
    """Average gradients of parts of different sizes, and step with their means."""
    harness, rows, model = replica.harness, replica.rows(), replica.prepared()
    program = harness.build(model, optimizer=ADAM, compile="off")
    harness.forward_backward(program, harness.inputs(rows))
    replica.group.average_gradients([program], float(len(rows.x)))
    gradients = harness.gradients(program)
    program.optimizer_step()
    program.close()
    replica.tell("averaged", gradients=gradients, values=harness.parameter_values(model))


def shards(replica: Replica) -> None:
    """Gather gradients of three shards and a number with each: the first replica has two of them."""
    harness, group, model = replica.harness, replica.group, replica.prepared()
    program = harness.build(model, optimizer=ADAM, compile="off")
    shards_here = []
    for number in (0, 1) if group.rank == 0 else (2,):
        program.zero_grad()
        harness.forward_backward(program, harness.inputs(BATCH.rows(slice(3 * number, 3 * number + 3))))
        shards_here.append([*harness.backend.required(feature().DeviceReplicas).gradients(program), float(number)])
    every = group.gather_tensors(program, shards_here, [2, 1])
    program.close()
    numbers = [float(np.asarray(harness.to_numpy(shard[-1]))) for shard in every]
    replica.tell("shards", numbers=numbers, gradients=[[harness.to_numpy(x) for x in shard[:-1]] for shard in every])


def together(replica: Replica) -> None:
    """Run clipped steps of one program with whole parameters; each replica passes it all rows."""
    harness, group, model = replica.harness, replica.group, replica.prepared()
    segment = harness.segment(model, optimizer=ADAM, compile="off")
    program = harness.backend.required(feature().Replicate).build_together(segment, group)
    losses, squares = [], []
    for _ in range(STEPS):
        (pair,) = harness.forward_backward(program, harness.inputs(BATCH)).values()
        group.average_gradients([program], float(len(BATCH.x)))  # does nothing
        losses.append(harness.mean_loss(pair))
        square = program.grad_stats()[GROUP][0]
        squares.append(float(harness.to_numpy(square)))
        program.optimizer_step({GROUP: program.clip_factor(LIMIT, [square])})
    slots = slot_values(harness, program.close())
    replica.tell("together", losses=losses, squares=squares, values=harness.parameter_values(model), slots=slots)


def trained(replica: Replica) -> None:
    """Run clipped steps with sharded parameters, read before the last; then one with the states of these."""
    harness, model = replica.harness, replica.prepared()
    backend = harness.backend.required(feature().ShardParameters)
    segment = harness.segment(model, optimizer=ADAM, compile="off")
    reason = backend.unshardable_reason(segment, offload=False)
    program = backend.build_sharded(segment, replica.group, offload=False)
    steps = [_step(replica, program) for _ in range(STEPS - 1)]
    nbytes = backend.sharded_bytes(program)
    program.sync_models()
    read, states_read = harness.parameter_values(model), slot_values(harness, program.optimizer_states())
    steps.append(_step(replica, program))
    states = program.close()
    values, slots = harness.parameter_values(model), slot_values(harness, states)
    again = harness.segment(model, optimizer=ADAM, compile="off", states=states)
    program = backend.build_sharded(again, replica.group, offload=False)
    steps.append(_step(replica, program))
    program.close()
    replica.tell(
        "trained",
        reason=reason,
        steps=steps,
        nbytes=nbytes,
        read=read,
        states_read=states_read,
        values=values,
        slots=slots,
        gone_on=harness.parameter_values(model),
    )


def _step(replica: Replica, program: Program) -> dict[str, float]:
    """Run a step over this replica's part; return sum and weight of the loss, and the squared norm of all gradients."""
    harness, rows = replica.harness, BATCH if replica.global_batches else replica.rows()
    if not replica.global_batches:
        replica.group.begin_step([program], [len(rows.x)])
    ((total, weight),) = harness.forward_backward(program, harness.inputs(rows)).values()
    replica.group.average_gradients([program], float(len(rows.x)))
    squares, _ = program.grad_stats()[GROUP]
    square = float(harness.to_numpy(squares))
    program.optimizer_step({GROUP: program.clip_factor(LIMIT, [squares])})
    return {"sum": float(harness.to_numpy(total)), "weight": float(harness.to_numpy(weight)), "square": square}


def in_parts(replica: Replica) -> None:
    """Run a step in two parts, whose means are halved at the end."""
    harness, model = replica.harness, replica.prepared()
    backend, size = harness.backend.required(feature().ShardParameters), 2 if replica.group.rank else 3
    program = backend.build_sharded(harness.segment(model, optimizer=ADAM, compile="off"), replica.group, offload=False)
    first = 6 * replica.group.rank
    if replica.global_batches:
        first, size = 0, 5
    else:
        replica.group.begin_step([program], [size, size])
    for start in (first, first + size):
        harness.forward_backward(program, harness.inputs(EVEN.rows(slice(start, start + size))))
    replica.group.average_gradients([program], 2.0 * size)
    program.map_gradients(lambda gradient: gradient * 0.5)
    program.optimizer_step()
    program.close()
    replica.tell("in_parts", values=harness.parameter_values(model))


def kept_whole(replica: Replica) -> None:
    """Run clipped steps of a program whose only node stays whole."""
    harness, model = replica.harness, replica.prepared()
    backend = harness.backend.required(feature().ShardParameters)
    segment = harness.segment(model, optimizer=ADAM, compile="off")
    reason = backend.unshardable_reason(segment, offload=False, whole=(NODE,))
    program = backend.build_sharded(segment, replica.group, offload=False, whole=(NODE,))
    steps = [_step(replica, program) for _ in range(STEPS)]
    nbytes = backend.sharded_bytes(program)
    slots = slot_values(harness, program.close())
    replica.tell(
        "kept_whole",
        reason=reason,
        steps=steps,
        nbytes=nbytes,
        values=harness.parameter_values(model),
        slots=slots,
    )


def abandoned(replica: Replica) -> None:
    """Close the first replica's program alone; the second waits until it has."""
    harness, group = replica.harness, replica.group
    segment = harness.segment(replica.prepared(), optimizer=ADAM, compile="off")
    program = harness.backend.required(feature().ShardParameters).build_sharded(segment, group, offload=False)
    _step(replica, program)
    deadline, of_first = time.monotonic() + _WAIT_SECONDS, report_path(replica.folder, "abandoned", 0)
    while group.rank and not of_first.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    alone = group.rank == 0 or of_first.exists()
    group.abandon([program])
    program.close()
    replica.tell("abandoned", alone=alone)


def slot_values(harness: Harness, states: Mapping[str, NodeState]) -> dict[str, Any]:
    """Return the slots of the only node, by names of parameter and slot, and its number of steps."""
    (state,) = states.values()
    slots = {
        f"{parameter}/{name}": harness.to_numpy(tensor)
        for parameter, kept in state.slots.items()
        for name, tensor in kept.items()
    }
    return {"step": state.step, **slots}


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def main(backend_name: str, kind: str, folder: str) -> None:
    """Join the other replicas, and perform all."""
    module, _, names = backend_name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in names.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError):
        sys.exit(NOT_IMPORTABLE)
    backend = target()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = backend.required(feature().Replicate).replica_group(rank, size)  # before the framework starts
    every = [device for device in backend.devices() if device.kind == kind]
    device = every[0 if kind == "cpu" else rank]
    host = Device("cpu") if Device("cpu") in backend.devices() else device
    harness = Harness(backend, device, lambda array: backend.from_host(array, host), backend.to_host)
    perform(Replica(harness, group, standard_model(backend), Path(folder)))


def standard_model(backend: Any) -> Callable[[], Any]:
    """Return a function that creates a perceptron of the backend, with parameters large enough to be sharded."""
    return partial(backend.models()["SequentialMLP"], output_shape=(3,), n_layers=2, hidden_dim=64, activation="tanh")


if __name__ == "__main__":
    main(*sys.argv[1:])
