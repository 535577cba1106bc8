"""Passes: their pieces follow each other, and together take what the whole takes, in order and nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anyaccel.phases.loading import Pass, Stretch, Work
from anyaccel.phases.loading.epoch_batches import Lane, Span
from anyaccel.phases.loading.epoch_plan import Cut, steps_of

Step = dict[str, Span]


def steps(works: Iterable[Work], sets: Iterable[str], shift: dict[str, int] | None = None) -> Iterator[Step]:
    """Every step by itself: which rows of each set it takes."""
    for work in works:
        if isinstance(work, Stretch):
            spans = [(start, start + work.size) for start in range(work.start, work.stop, work.size)]
            each: Iterable[Any] = (dict.fromkeys(sets, span) for span in spans)
        else:
            each = [dict(work)]
        for step in each:
            yield {name: tuple(row + (shift or {}).get(name, 0) for row in span) for name, span in step.items()}


def rows(step: Step, orders: dict[Lane, np.ndarray], shift: dict[str, int] | None = None) -> dict[Lane, list[int]]:
    """The rows of the data that a step takes, by lane."""
    found = {}
    for lane, order in orders.items():
        if lane[0] in step:
            start, stop = (row - (shift or {}).get(lane[0], 0) for row in step[lane[0]])
            found[lane] = order[start:stop].tolist()
    return found


def made(works: tuple[Work, ...], sets: tuple[str, ...], seed: int) -> Pass:
    """A pass over sets of so many rows, with an order for each, and a second stream for the first."""
    taken = list(steps(works, sets))
    draw = np.random.default_rng(seed)
    count = {name: max((step[name][1] for step in taken if name in step), default=0) for name in sets}
    orders: dict[Lane, np.ndarray] = {(name, ""): draw.permutation(count[name] + 3) for name in sets}
    orders[sets[0], "pair"] = draw.permutation(count[sets[0]] + 3)
    return Pass(sets, works, orders)


@st.composite
def stretches(draw: st.DrawFn) -> Pass:
    """What one sampler draws: full batches, and perhaps a last partial one."""
    size, count = draw(st.integers(1, 5)), draw(st.integers(0, 12))
    last = draw(st.integers(0 if count else 1, size))
    full = [Stretch(0, count, size, draw(st.sampled_from([None, 1])))] if count else []
    works = (*full, *([Stretch(count * size, 1, last)] if last else []))
    return made(works, draw(st.sampled_from([("a",), ("a", "b")])), draw(st.integers(0, 99)))


@st.composite
def turns(draw: st.DrawFn) -> Pass:
    """What several samplers draw: each set's batches follow each other, and not every step takes of each."""
    at = {"a": 0, "b": 0, "c": 0}
    works: list[Work] = []
    for _ in range(draw(st.integers(1, 12))):
        turn = {}
        for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)):
            start, at[name] = at[name], at[name] + draw(st.integers(1, 4))
            turn[name] = (start, at[name])
        works.append(turn)
    return made(tuple(works), ("a", "b", "c"), draw(st.integers(0, 99)))


PASSES = st.one_of(stretches(), turns())


@given(PASSES, st.integers(1, 15))
def test_the_pieces_of_a_pass_are_the_pass(drawn: Pass, most: int) -> None:
    whole = [(step, rows(step, dict(drawn.orders))) for step in steps(drawn.works, drawn.sets)]
    found = []
    for cut in drawn.cut(most):
        shift = {name: start for name, (start, _) in cut.spans.items()}
        for step in steps(cut.works, drawn.sets, shift):
            found.append((step, rows(step, dict(cut.orders), shift)))
    assert found == whole
    assert drawn.steps == len(whole) == sum(steps_of(work) for work in drawn.works)


@given(PASSES, st.integers(1, 15))
def test_a_piece_counts_from_its_first_row_and_has_no_more_than_its_steps_take(drawn: Pass, most: int) -> None:
    for cut in drawn.cut(most):
        found = list(steps(cut.works, drawn.sets))
        for name, (start, stop) in cut.spans.items():
            taken = [step[name] for step in found if name in step]
            assert min(first for first, _ in taken) == 0 and max(last for _, last in taken) == stop - start
        for lane, order in cut.orders.items():
            start, stop = cut.spans[lane[0]]
            assert order.tolist() == drawn.orders[lane][start:stop].tolist()


def size_of(cut: Cut) -> int:
    return sum(steps_of(work) for work in cut.works)


@given(PASSES, st.integers(1, 15))
def test_a_piece_has_no_more_steps_than_it_may_but_for_a_last_smaller_one(drawn: Pass, most: int) -> None:
    cuts = list(drawn.cut(most))
    tail = drawn.works[-1]
    smaller = isinstance(tail, Stretch) and len(drawn.works) > 1 and tail.size < drawn.works[0].size  # type: ignore[union-attr]
    assert all(size_of(cut) <= most for cut in cuts[:-1])
    assert size_of(cuts[-1]) <= most + (1 if smaller else 0)
    assert all(size_of(cut) == most for cut in cuts[:-2] if smaller or len(drawn.works) == 1)


@given(PASSES, st.integers(0, 30))
def test_what_is_left_of_a_pass_is_its_end(drawn: Pass, done: int) -> None:
    left = drawn.without(done)
    assert list(steps(left.works, drawn.sets)) == list(steps(drawn.works, drawn.sets))[done:]
    assert left.orders is drawn.orders and left.steps == max(drawn.steps - done, 0)


@given(PASSES, st.integers(0, 10), st.integers(0, 10), st.integers(1, 6))
def test_leaving_out_twice_is_leaving_out_the_sum(drawn: Pass, one: int, two: int, most: int) -> None:
    again = drawn.without(one).without(two)
    assert list(steps(again.works, drawn.sets)) == list(steps(drawn.without(one + two).works, drawn.sets))
    assert [cut.works for cut in again.cut(most)] == [cut.works for cut in drawn.without(one + two).cut(most)]


def test_the_piece_of_a_stretch_goes_with_its_parts() -> None:
    assert [work.piece for cut in Pass(("a",), (Stretch(0, 5, 6, 2),), {}).cut(2) for work in cut.works] == [2, 2, 2]  # type: ignore[union-attr]
    assert Stretch(0, 5, 6, 2).without(2) == Stretch(12, 3, 6, 2)
