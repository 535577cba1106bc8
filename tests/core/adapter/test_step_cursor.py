"""A call of steps that continues the one before transfers nothing to the device."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter import update_rule
from anyaccel.adapter.step_cursor import ROWS, DeviceScalars, StepCursor
from anyaccel.specs import Optimizer, Schedule


def cursor(scalars, start=0, taken=0, remaining=5, draw=1, lead=0):
    """A call over two owners, of which the second is `lead` steps ahead; their scalars are the numbers of the steps."""
    steps_taken = {"a": taken, "b": taken + lead}

    def table(later, n_steps):
        return {owner: {"step": steps + later + np.arange(n_steps) + 1.0} for owner, steps in steps_taken.items()}

    return StepCursor(
        start=start,
        draw=draw,
        batch_size=4,
        n_microbatches=2,
        remaining=remaining,
        steps_taken=steps_taken,
        table=table,
        device_scalars=scalars,
    )


def call(scalars, at, n_steps):
    """The position, the first owner's scalars and the count that a compiled function would be given."""
    position, table, count = scalars.prepare(at, n_steps, np.copy)
    scalars.advance(at, n_steps, np.add(position, [n_steps * 4, n_steps * 2, n_steps, 0, 0]))
    return position.tolist(), table["a"]["step"][position[2] :][:n_steps].tolist(), int(count)


def test_a_call_that_continues_transfers_nothing():
    scalars = DeviceScalars()
    assert call(scalars, cursor(scalars, remaining=5), 2) == ([0, 1, 0, 4, 2], [1.0, 2.0], 2)
    assert scalars.n_transfers == 4  # two columns of the table, the position, the count
    assert call(scalars, cursor(scalars, 8, 2, remaining=3, draw=5), 2) == ([8, 5, 2, 4, 2], [3.0, 4.0], 2)
    assert scalars.n_transfers == 4
    assert call(scalars, cursor(scalars, 16, 4, remaining=1, draw=9), 1) == ([16, 9, 4, 4, 2], [5.0], 1)
    assert scalars.n_transfers == 5  # another count


def test_an_epoch_begins_with_the_position_and_the_table_of_all_its_steps():
    scalars = DeviceScalars()
    call(scalars, cursor(scalars, remaining=5), 5)
    before = scalars.n_transfers
    steps = [6.0, 7.0, 8.0, 9.0, 10.0]
    assert call(scalars, cursor(scalars, 0, 5, remaining=5, draw=11), 5) == ([0, 11, 0, 4, 2], steps, 5)
    assert scalars.n_transfers == before + 3


@pytest.mark.parametrize("change", [{"taken": 1}, {"lead": 3}, {"draw": 2}, {"start": 4}])
def test_a_call_that_does_not_continue_transfers_its_own_scalars(change):
    scalars = DeviceScalars()
    call(scalars, cursor(scalars, remaining=9), 2)
    settings = {"start": 8, "taken": 2, "remaining": 7, "draw": 5, **change}
    position, steps, _ = call(scalars, cursor(scalars, **settings), 2)
    assert (position[0], position[1]) == (settings["start"], settings["draw"])
    assert steps == [settings["taken"] + 1.0, settings["taken"] + 2.0]


def test_after_a_failure_everything_is_transferred_again():
    scalars = DeviceScalars()
    call(scalars, cursor(scalars), 2)
    before = scalars.n_transfers
    scalars.invalidate()
    assert call(scalars, cursor(scalars, 8, 2, remaining=3, draw=5), 2)[1] == [3.0, 4.0]
    assert scalars.n_transfers == before + 3


def test_more_steps_than_a_table_holds_fill_it_again():
    scalars, steps = DeviceScalars(), []
    at = cursor(scalars, remaining=2 * ROWS)
    for _ in range(2):
        steps += call(scalars, at, ROWS)[1]
    assert steps == (np.arange(2 * ROWS) + 1.0).tolist()
    assert (at.start, at.remaining) == (8 * ROWS, 0)


def test_any_number_of_call_lengths_is_right():
    scalars = DeviceScalars()
    at = cursor(scalars, remaining=ROWS)
    for n_steps in range(1, 100):
        assert call(scalars, at, n_steps)[2] == n_steps


def test_a_key_is_transferred_once():
    scalars, key = DeviceScalars(), np.zeros(2)
    assert scalars.key(key, np.copy) is scalars.key(key, np.copy)
    assert scalars.key(np.zeros(2), np.copy) is not scalars.key(key, np.copy)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("schedule", [None, Schedule("cosine", steps=7, warmup=3)])
def test_a_table_has_the_coefficients_of_each_step(name, schedule):
    rule = update_rule(Optimizer(name, lr=0.1, schedule=schedule, weight_decay=0.1))
    table = rule.table(4, 6)
    for i in range(6):
        row = {key: column[i] for key, column in table.items()}
        assert row == pytest.approx(rule.coefficients(4 + i), rel=1e-14)
