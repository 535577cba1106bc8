"""What is sent to a device for calls of steps: nothing where a call follows another."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter.compile_estimate import Guess
from anyaccel.adapter.optimizers import update_rule
from anyaccel.adapter.step_cursor import ROWS, DeviceScalars, StepCursor
from anyaccel.specs import Optimizer, Schedule


def cursor(shelf, start=0, taken=0, left=5, draw=1, others=0):
    """A call over two owners, whose scalars are the numbers of the steps."""

    def table(later, count):
        steps = {"a": taken, "b": taken + others}
        return {owner: {"step": done + later + np.arange(count) + 1.0} for owner, done in steps.items()}

    return StepCursor(start, draw, 4, 2, left, {"a": taken, "b": taken + others}, table, shelf)


def ready(shelf, given, count):
    numbers, table, number = shelf.prepare(given, count, np.copy)
    shelf.advance(given, count, np.add(numbers, [count * 4, count * 2, count, 0, 0]))
    return numbers.tolist(), table["a"]["step"][numbers[2] :][:count].tolist(), int(number)


def test_a_call_that_follows_sends_nothing():
    shelf = DeviceScalars()
    assert ready(shelf, cursor(shelf, left=5), 2) == ([0, 1, 0, 4, 2], [1.0, 2.0], 2)
    assert shelf.sent == 4  # two columns of the table, five numbers, a count
    assert ready(shelf, cursor(shelf, 8, 2, left=3, draw=5), 2) == ([8, 5, 2, 4, 2], [3.0, 4.0], 2)
    assert shelf.sent == 4
    assert ready(shelf, cursor(shelf, 16, 4, left=1, draw=9), 1) == ([16, 9, 4, 4, 2], [5.0], 1)
    assert shelf.sent == 5  # another count


def test_an_epoch_begins_with_the_numbers_and_the_table_of_all_its_steps():
    shelf = DeviceScalars()
    ready(shelf, cursor(shelf, left=5), 5)
    before = shelf.sent
    assert ready(shelf, cursor(shelf, 0, 5, left=5, draw=11), 5) == ([0, 11, 0, 4, 2], [6.0, 7.0, 8.0, 9.0, 10.0], 5)
    assert shelf.sent == before + 3


@pytest.mark.parametrize("change", [{"taken": 1}, {"others": 3}, {"draw": 2}, {"start": 4}])
def test_what_does_not_follow_is_sent(change):
    shelf = DeviceScalars()
    ready(shelf, cursor(shelf, left=9), 2)
    given = {"start": 8, "taken": 2, "left": 7, "draw": 5, **change}
    numbers, steps, _ = ready(shelf, cursor(shelf, **given), 2)
    assert (numbers[0], numbers[1]) == (given["start"], given["draw"])
    assert steps == [given["taken"] + 1.0, given["taken"] + 2.0]


def test_after_a_failure_everything_is_sent_again():
    shelf = DeviceScalars()
    ready(shelf, cursor(shelf), 2)
    before = shelf.sent
    shelf.invalidate()
    assert ready(shelf, cursor(shelf, 8, 2, left=3, draw=5), 2)[1] == [3.0, 4.0]
    assert shelf.sent == before + 3


def test_many_steps_are_told_in_tables_of_some():
    shelf, seen = DeviceScalars(), []
    given = cursor(shelf, left=2 * ROWS)
    for _ in range(2):
        seen += ready(shelf, given, ROWS)[1]
    assert seen == (np.arange(2 * ROWS) + 1.0).tolist()
    assert (given.start, given.left) == (8 * ROWS, 0)


def test_counts_are_kept_but_not_for_ever():
    shelf = DeviceScalars()
    given = cursor(shelf, left=ROWS)
    for count in range(1, 100):
        assert ready(shelf, given, count)[2] == count


def test_a_key_is_sent_once():
    shelf, key = DeviceScalars(), np.zeros(2)
    assert shelf.key(key, np.copy) is shelf.key(key, np.copy)
    assert shelf.key(np.zeros(2), np.copy) is not shelf.key(key, np.copy)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("schedule", [None, Schedule("cosine", steps=7, warmup=3)])
def test_a_table_is_what_steps_ask_for_one_by_one(name, schedule):
    found = update_rule(Optimizer(name, lr=0.1, schedule=schedule, weight_decay=0.1))
    table = found.table(4, 6)
    for i in range(6):
        assert {key: column[i] for key, column in table.items()} == pytest.approx(found.coefficients(4 + i), rel=1e-14)


def test_guesses_learn_from_what_compiling_took_and_from_plain_steps():
    class Kind:
        pass

    guess = Guess(Kind, 10)
    first = guess.offer(100)
    assert first.compile_seconds > 0.0 and first.step_ratio == 0.01, "nothing is known of plain steps yet"
    guess.took(3.0 * first.compile_seconds)
    assert Guess(Kind, 10).offer(100).compile_seconds == pytest.approx(3.0 * first.compile_seconds)
    assert Guess(Kind, 20).offer(100).compile_seconds > Guess(Kind, 10).offer(100).compile_seconds
    guess.plain(0.5)
    slow = guess.offer(100).step_ratio
    guess.plain(0.005)
    guess.plain(0.5)
    assert 0.9 < slow < 1.0, "a step that computes for long gains little"
    assert guess.offer(1).step_ratio > guess.offer(100).step_ratio, "each call costs"
    assert guess.offer(100).step_ratio < 0.5
