"""Wrong backends whose replicas are threads that exchange by turns; the right ones keep all, and tell half of it."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.device import Device
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.segment import NodeState
from anyaccel_devtools.testing import replica_scenarios as scenarios
from anyaccel_devtools.testing.harness import GROUP, Harness
from anyaccel_distributed import ReplicaGroup, ShardParameters

from .faults import fault


class Meeting:
    """Where the threads give each other values."""

    def __init__(self, size):
        self.values = [None] * size
        self.barrier = threading.Barrier(size, timeout=3)

    def exchange(self, rank, value):
        self.values[rank] = value
        self.barrier.wait()
        every = list(self.values)
        self.barrier.wait()
        return every


class ThreadGroup(ReplicaGroup):
    """The threads of one process."""

    gathers_tensors = True

    def __init__(self, rank, size, meeting):
        self.rank, self.size, self.meeting = rank, size, meeting

    def gather(self, value):
        return self.meeting.exchange(self.rank, value)

    def average_gradients(self, programs, weight):
        for program in programs:
            if not isinstance(program, DividedProgram):
                self.average(program, weight)

    def average(self, program, weight):
        own = gradients_of(program)
        every = self.meeting.exchange(self.rank, (own, weight))
        total = sum(each for _, each in every)
        means = iter(
            [
                sum(g * w for g, w in zip(column, (w for _, w in every), strict=True)) / total
                for column in zip(*(each for each, _ in every), strict=True)
            ]
        )
        program.map_gradients(lambda g: next(means).astype(g.dtype))

    def gather_tensors(self, program, shards, counts):
        return [shard for each in self.meeting.exchange(self.rank, shards) for shard in each]

    def begin_step(self, programs, sizes):
        n_rows = sum(sum(each) for each in self.gather(list(sizes)))
        for program in programs:
            program.shares = [len(sizes) * size / n_rows for size in sizes]

    def abandon(self, programs):
        for program in programs:
            program.is_abandoned = True


class DividedProgram(ArrayProgram):
    """Trains a copy of the models with the sums of all; it keeps all of it, and tells half."""

    is_abandoned = False

    def __init__(self, segment, group):
        self.originals = [operation.model for operation in segment.operations]
        copies = [copy.deepcopy(model) for model in self.originals]
        operations = [replace(o, model=m) for o, m in zip(segment.operations, copies, strict=True)]
        super().__init__(replace(segment, operations=tuple(operations)), NumpyOps())
        self.copies, self.group, self.shares, self.total = copies, group, [], None

    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)

        def summed(cotangents):
            self.zero_grad()
            result = pullback(cotangents)
            self.add_up(gradients_of(self), self.shares.pop(0))
            return result

        return outputs, losses, summed

    def add_up(self, own, share):
        every = self.group.meeting.exchange(self.group.rank, [g * share for g in own])
        sums = [sum(column) for column in zip(*every, strict=True)]
        self.total = sums if self.total is None else [a + b for a, b in zip(self.total, sums, strict=True)]
        left = iter(self.total)
        self.map_gradients(lambda g: next(left).astype(g.dtype))

    def optimizer_step(self, scale=None):
        super().optimizer_step(scale)
        self.total = None

    def sync_models(self):
        super().sync_models()
        for original, own in zip(self.originals, self.copies, strict=True):
            backend = NumpyBackend()
            backend.load_state(original, backend.state(own))

    def close(self):
        states = super().close()
        if not self.is_abandoned:
            self.group.meeting.exchange(self.group.rank, None)
            self.sync_models()
        return states


def gradients_of(program):
    found = []

    def record(gradient):
        found.append(np.array(gradient))
        return gradient

    program.map_gradients(record)
    return found


class Threads(ShardParameters):
    """NumPy whose replicas are threads."""

    group, program = ThreadGroup, DividedProgram

    def replica_group(self, rank, size):
        return self.group(rank, size, self.backend.meeting)

    def unshardable_reason(self, segment, *, offload):
        return ""

    def sharded_blocks(self, model):
        return ()

    def build_sharded(self, segment, group, *, offload):
        return self.program(segment, group)

    def sharded_bytes(self, program):
        (state,) = program.optimizer_states().values()
        slots = [slot for kept in state.slots.values() for slot in kept.values()]
        return sum(value.nbytes for value in [*program.copies[0].parameters().values(), *slots]) // 2


def perform(cls, folder):
    """The scenarios of the kit in two threads."""
    meeting = Meeting(scenarios.SIZE)

    def run(rank):
        backend = cls()
        backend.meeting = meeting
        harness = Harness(backend, Device("cpu"), np.copy, lambda tensor: np.array(np.asarray(tensor)))
        group = backend.required(ShardParameters).replica_group(rank, scenarios.SIZE)
        scenarios.perform(scenarios.Replica(harness, group, scenarios.standard_model(backend), folder))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(scenarios.SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@fault("compute", "test_values_are_gathered_by_rank")
class OwnValuesFirst(Threads):
    class group(ThreadGroup):
        def gather(self, value):
            every = super().gather(value)
            return [every[self.rank], *(each for i, each in enumerate(every) if i != self.rank)]


@fault("compute", "test_gradients_are_means_over_the_rows_of_all")
class ReplicasOfEqualWeight(Threads):
    class group(ThreadGroup):
        def average(self, program, weight):
            super().average(program, 1.0)


@fault("compute", "test_tensors_of_shards_are_gathered_in_their_order")
class ShardsOfTheLastReplicaFirst(Threads):
    class group(ThreadGroup):
        def gather_tensors(self, program, shards, counts):
            return super().gather_tensors(program, shards, counts)[::-1]


@fault("compute", "test_a_program_that_all_compute_together_trains_like_one_alone")
class ProgramsOfTheirOwnRows(Threads):
    computes_together = True

    def build_together(self, segment, group):
        return OwnRowsProgram(segment, group.rank)


class OwnRowsProgram(ArrayProgram):
    """Trains with its part of the rows alone."""

    def __init__(self, segment, rank):
        super().__init__(segment, NumpyOps())
        self.rank = rank

    def forward_pullback(self, inputs, scale=None):
        return super().forward_pullback([x[self.rank :: 2] for x in inputs], scale)


@fault("compute", "test_divided_parameters_train_like_whole_ones")
class NormsOfItsOwnPart(Threads):
    class program(DividedProgram):
        def grad_stats(self):
            square, finite = super().grad_stats()[GROUP]
            return {GROUP: (square / 2, finite)}


@fault("compute", "test_models_of_divided_parameters_are_whole_when_they_are_read")
class ModelsThatWaitForTheEnd(Threads):
    class program(DividedProgram):
        def sync_models(self):
            """Nothing."""

        def close(self):
            states = super().close()
            super().sync_models()
            return states


@fault("compute", "test_states_of_divided_parameters_are_whole_and_go_on")
class StatesOfItsOwnPart(Threads):
    class program(DividedProgram):
        def optimizer_states(self):
            return {node: own_part(state, self.group.rank) for node, state in super().optimizer_states().items()}

        def close(self):
            return {node: own_part(state, self.group.rank) for node, state in super().close().items()}


def own_part(state, rank):
    slots = {name: {s: half(x, rank) for s, x in kept.items()} for name, kept in state.slots.items()}
    return NodeState(state.step, slots)


def half(array, rank):
    kept = array * 0
    middle = len(array) // 2
    if rank:
        kept[middle:] = array[middle:]
    else:
        kept[:middle] = array[:middle]
    return kept


@fault("compute", "test_each_replica_keeps_its_part")
class PartsThatAreTheWhole(Threads):
    def sharded_bytes(self, program):
        return 2 * super().sharded_bytes(program)


@fault("compute", "test_parts_of_a_step_add_up")
class OnlyTheLastPart(Threads):
    class program(DividedProgram):
        def add_up(self, own, share):
            self.total = None
            super().add_up(own, share)


@fault("compute", "test_nodes_that_stay_whole_train_like_one_program")
class WholeNodesThatCountTwice(Threads):
    shards_nodes = True

    class program(DividedProgram):
        whole = ()

        def grad_stats(self):
            square, finite = super().grad_stats()[GROUP]
            return {GROUP: (square * (2 if self.whole else 1), finite)}

    def unshardable_reason(self, segment, *, offload, whole=()):
        return ""

    def build_sharded(self, segment, group, *, offload, whole=()):
        program = super().build_sharded(segment, group, offload=offload)
        program.whole = whole
        return program


@fault("compute", "test_an_abandoned_replica_waits_for_nobody")
class ClosesTogether(Threads):
    class group(ThreadGroup):
        def abandon(self, programs):
            """Nothing."""
