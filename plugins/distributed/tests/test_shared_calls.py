"""Replicas that compute one program together: which phases have one, and how many steps a call of it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anyaccel.errors import FrameworkError, PhaseError
from anyaccel.phases.executor.pipeline import ChunkRunner
from anyaccel.phases.loading.epoch_plan import StepSize
from anyaccel.phases.loop_extension import Call
from anyaccel_distributed import Launched, ReplicaGroup
from anyaccel_distributed.replicated_training import ReplicatedTraining, SharedCalls
from anyaccel_distributed.row_shares import GlobalBatches


class FirstOf(ReplicaGroup):
    """A replica whose only peer gives what it is told to give."""

    rank, size = 0, 2

    def __init__(self, other: Any = None) -> None:
        self.other = other

    def average_gradients(self, programs: Any, weight: float) -> None:
        """Not used here."""

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other]


class Steps:
    """In place of a program of several steps; fails where it is told to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.calls = fails, list[tuple[int, int]]()

    def train_steps(self, columns: Any, orders: Any, start: int, n_steps: int, batch_size: int) -> Any:
        if self.fails:
            raise FrameworkError("replica 0 of 2 could not compute steps: the connection was closed")
        self.calls.append((start, n_steps))
        return np.zeros((n_steps, 1))


def replicas(other: Any = None) -> ReplicatedTraining:
    return ReplicatedTraining("train", Launched(0, 2), {"numpy": FirstOf(other)})


def runner_of(program: Any, one_by_one: Any = None) -> ChunkRunner:
    none: Any = None
    rows, order = np.zeros((8, 3)), np.arange(8)
    stage: Any = type("Stage", (), {"backend": None})()
    return ChunkRunner(
        train_step=none,
        try_step=none,
        evaluate=none,
        one_by_one=one_by_one,
        stage=stage,
        program=program,
        columns=(rows,),
        orders=(order,),
        labels=("mse",),
    )


def train(call: Call) -> Any:
    return call.runner.train_steps(call.start, call.n_steps, call.size)


def make(calls: SharedCalls, call: Call) -> None:
    with calls.around_call(call):
        call.train(call)


def test_replicas_take_the_fewest_steps_that_any_proposes() -> None:
    runner, layout = runner_of(Steps()), [[8, 3], [8]]
    for offered, taken in ((2, 2), (16, 4)):
        call = Call(runner, 0, 8, StepSize(2), train)
        SharedCalls(replicas([offered, [0, layout]])).agree(call, 4)
        assert call.n_steps == taken and call.runner is runner


@pytest.mark.parametrize("other", [[4, [0, [[6, 3], [6]]]], [4, [2, [[8, 3], [8]]]]], ids=["shapes", "rows"])
def test_blocks_that_differ_are_taken_one_by_one(other: Any) -> None:
    taken: list[tuple[Any, ...]] = []

    def one_by_one(*given: Any) -> list[Any]:
        taken.append(given)
        return []

    program = Steps()
    calls, call = SharedCalls(replicas(other)), Call(runner_of(program, one_by_one), 0, 8, StepSize(2), train)
    calls.agree(call, 3)
    make(calls, call)
    assert (taken, program.calls) == ([(0, 3, StepSize(2))], [])


def test_the_error_of_a_lost_replica_names_the_steps_of_its_call() -> None:
    each = replicas()
    each.begin_epoch(1, 4)
    calls, program = SharedCalls(each), Steps()
    make(calls, Call(runner_of(program), 0, 3, StepSize(2), train, n_steps=3))
    assert program.calls == [(0, 3)]
    where = r"phase 'train', epoch 1, steps 7 to 10: replica 0 of 2 could not compute steps"
    with pytest.raises(FrameworkError, match=where):
        make(calls, Call(runner_of(Steps(fails=True)), 6, 4, StepSize(2), train, n_steps=4))
    with pytest.raises(FrameworkError, match=r"epoch 1, step 7: replica 0"):
        make(calls, Call(runner_of(Steps(fails=True)), 6, 4, StepSize(2), train, n_steps=1))


@pytest.mark.parametrize(("in_memory", "batches"), [(True, False), (False, True), (False, False)])
def test_steps_are_computed_together_unless_each_replica_reads_its_share(in_memory: bool, batches: bool) -> None:
    where: Any = {"in_memory": in_memory, "batches": batches}
    chosen = GlobalBatches(allowed=True).chosen("train", 2, **where)
    assert (chosen.given, chosen.parts) == (in_memory or batches, batches)
    assert not GlobalBatches().chosen("train", 2, **where).given
    assert not GlobalBatches(given=True).chosen("train", 2, **where).parts  # divided parameters
    if not chosen.given:
        hint = r"normalizes over the rows of all.*Hint: draw batches of a multiple of 2 rows"
        with pytest.raises(PhaseError, match=hint):
            GlobalBatches(allowed=True, needed=True).chosen("train", 2, **where)


def test_a_replica_takes_its_part_of_batches_in_equal_parts_and_all_of_others() -> None:
    """What is known of batches that were read ahead is forgotten when they are read again."""
    rows = [{"x": np.arange(n)} for n in (8, 7)]
    group = ReplicatedTraining(
        "train", Launched(1, 2), {"numpy": FirstOf()}, global_batches=GlobalBatches(allowed=True)
    )
    group.choose_rows(in_memory=False, batches=True)
    assert group.reads_all_rows and not group.random_key  # losses and random numbers are those of one process
    share = group.share_batches("source")
    for _ in range(2):
        taken = [(position, batch["x"].tolist()) for position, batch in share(enumerate(rows))]
    assert taken == [(0, [4, 5, 6, 7]), (1, list(range(7)))]


class Averages(FirstOf):
    """A group whose programs average gradients in calls of several steps."""

    def average_in_steps(self, program: Any, around: Any) -> bool:
        with around():
            self.asked = program
        return True


@pytest.mark.parametrize(
    "settings", [{}, {"accumulate": 2}, {"sharded": True}, {"batches": True}, {"n_stages": 2}, {"able": False}]
)
def test_calls_take_several_steps_unless_more_is_exchanged_in_a_step(settings: dict[str, Any]) -> None:
    batches, n_stages, able = (
        settings.pop(name, other) for name, other in (("batches", 0), ("n_stages", 1), ("able", 1))
    )
    group = Averages() if able else FirstOf()
    each = ReplicatedTraining("train", Launched(0, 2), {"numpy": group}, **settings)
    if batches:
        each.share_batches("source")
    each.begin_epoch(1, 4)
    stage: Any = SimpleNamespace(backend=SimpleNamespace(framework="numpy"), program="program")
    is_simple = not settings and not batches and n_stages == 1 and bool(able)
    assert each.average_in_steps([stage] * n_stages) == is_simple
    assert getattr(group, "asked", None) == ("program" if is_simple else None)
    assert each.where == f"replica 0 of 2, epoch 1, step {5 if is_simple else 4}"  # each exchange is a step
