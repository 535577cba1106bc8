"""CompilePolicy: steps are compiled if that pays off, and never cost much more than the better choice."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel import AppliedLoss, SimpleSampler
from anyaccel.adapter import ArrayProgram
from anyaccel.backend import CompileEstimate, MultiStepProgram
from anyaccel.data import FeatureSet
from anyaccel.errors import CompileError, CompileWarning, OutOfMemoryError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, NumpyBackend, SequentialMLP
from anyaccel.phases import Callback, EarlyStopping, EvalPhase, TrainPhase, compile_policy, oom_recovery, train_loop
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading import residency as loader_factory

MSE = AppliedLoss("mse", on="net")


class Clock:
    """A clock that tests advance, and of the processor's time the part that this process gets."""

    def __init__(self) -> None:
        self.now, self.share = 0.0, 1.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now * self.share

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Fake(ArrayProgram):
    """A program with given speeds; records its calls, and computes only if told to."""

    speeds: SimpleNamespace

    def train_steps(
        self, columns: Any, orders: Any, start: int, n_steps: int, batch_size: int, n_microbatches: int = 1
    ) -> Any:
        speeds = self.speeds
        compiled = (batch_size, n_microbatches, len(orders[0])) in speeds.compiled
        speeds.calls.append(("compiled" if compiled else "plain", n_steps, batch_size, n_microbatches))
        speeds.clock.now += speeds.call + n_steps * speeds.each * (speeds.ratio if compiled else 1.0)
        if speeds.computes:
            return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)
        return np.broadcast_to(np.zeros((1, 1)), (n_steps + 1, 1))  # more rows than steps are allowed

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        self.speeds.offers.append(max_steps)
        return self.speeds.offered

    def compile(self, columns: Any, orders: Any, batch_size: int, n_microbatches: int = 1) -> None:
        self.speeds.asked.append((batch_size, n_microbatches, len(orders[0])))
        self.speeds.clock.now += self.speeds.seconds
        if self.speeds.fails is not None:
            raise self.speeds.fails
        self.speeds.compiled.add((batch_size, n_microbatches, len(orders[0])))
        self.speeds.plain = False

    def renew_compiled(self) -> list[str]:
        """As of JAX: what is dropped is compiled again at its next call, unless the program is to run uncompiled."""
        speeds = self.speeds
        if not speeds.changes or not (speeds.compiled or speeds.plain):
            return []
        speeds.clock.now += 0.0 if speeds.plain else speeds.seconds
        return ["beta of the loss 'net'"]

    def run_uncompiled(self) -> None:
        """Only compiled again when asked."""
        speeds = self.speeds
        speeds.clock.now -= 0.0 if speeds.plain else speeds.seconds  # which `renew_compiled` has taken in advance
        speeds.compiled.clear()
        speeds.plain = True


def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    clock = Clock()
    for module in (compile_policy, oom_recovery, train_loop):
        if hasattr(module, "time"):
            monkeypatch.setattr(module, "time", clock)

    def make(**given: Any) -> SimpleNamespace:
        result = SimpleNamespace(
            **{
                "each": 1e-3,
                "ratio": 0.1,
                "seconds": 5.0,
                "call": 0.0,
                "fails": None,
                "computes": False,
                "clock": clock,
                "calls": [],
                "offers": [],
                "asked": [],
                "compiled": set(),
                "changes": False,
                "plain": False,
                **given,
            }
        )
        if "offered" not in given:
            result.offered = CompileEstimate(result.seconds, result.ratio)
        monkeypatch.setattr(Fake, "speeds", result, raising=False)
        monkeypatch.setattr(NumpyBackend, "build", lambda self, segment: Fake(segment, _ops()))
        clock.now = 0.0
        return result

    return make


def _ops() -> Any:
    from anyaccel.numpy_backend.ops import NumpyOps

    return NumpyOps()


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """`speeds(each=, ratio=, seconds=, ...)`: plain steps take `each`, compiled ones a `ratio` of it, and so on."""
    return made(monkeypatch)


def numbers(n: int, label: str = "data") -> FeatureSet:
    draw = np.random.default_rng(0)
    return FeatureSet.from_dict(label, {"x": draw.normal(size=(n, 3)), "y": draw.normal(size=(n, 1))}, ["x"], ["y"])


def line(n: int) -> ModelGraph:
    return ModelGraph([ModelNode("net", Dense(1, dtype="float64"), numbers(n).reference())], "adam")


def train(steps: int, epochs: int = 1, *, rest: int = 0, batch: int = 4, **settings: Any) -> Any:
    """A phase of so many steps in each epoch, of four rows, and a last one of `rest` rows."""
    graph = line(steps * batch + rest)
    phase = TrainPhase("t", **{"data": "all", "losses": MSE, "batch_size": batch, "epochs": epochs, **settings})
    return Experiment("e", graph, progress="none").run_phase(phase)


def told(result: Any) -> list[str]:
    """Messages of compile events that are not verbose."""
    return [event.message for event in result.events if event.kind == "compile" and not event.verbose]


def why_not(result: Any) -> list[str]:
    """Messages of verbose compile events: why steps were not compiled."""
    return [event.message for event in result.events if event.kind == "compile" and event.verbose]


# -- values that change again and again -------------------------------------------------------------------------------


class Annealing(Callback):
    """Changes in each epoch what compiled steps have read, as the fake program says itself."""

    def epoch_start(self, run: Any) -> None:
        pass


@pytest.mark.parametrize("steps", [50, 200, 5_000, 20_000])
def test_a_value_that_changes_in_every_epoch_costs_no_more_than_the_better_choice(
    steps: int, speeds: Callable[..., SimpleNamespace]
) -> None:
    programs, epochs = speeds(each=1e-3, ratio=0.1, seconds=1.0, changes=True), 30
    result = train(steps, epochs, batch=1, callbacks=[Annealing()])
    plain, compiled = steps * 1e-3, 1.0 + steps * 1e-4
    assert programs.clock.now <= 1.15 * min(plain, compiled) * epochs + 2.5, "the first two compilations are no mistake"
    again = [message for message in told(result) if "again" in message]
    assert len(again) == (1 if steps > 50 or programs.asked else 0)
    if again:
        outcome = "steps are compiled each time" if compiled < plain else "steps stay uncompiled"
        assert again[0].startswith(f"{outcome}, because beta of the loss 'net' has changed again: compiling for ")
    assert sum("are dropped" in message for message in told(result)) <= 1


def test_a_value_that_stops_changing_lets_steps_be_compiled_for_what_is_left(
    speeds: Callable[..., SimpleNamespace],
) -> None:
    programs = speeds(each=1e-3, ratio=0.1, seconds=1.0, changes=True)

    class Ends(Callback):
        def epoch_start(self, run: Any) -> None:
            programs.changes = run.epoch < 10

    train(300, 100, batch=1, callbacks=[Ends()])
    assert programs.calls[-1][0] == "compiled" and programs.clock.now < 0.5 * 100 * 300 * 1e-3


def test_steps_that_the_phase_wants_compiled_are_compiled_after_each_change(
    speeds: Callable[..., SimpleNamespace],
) -> None:
    programs = speeds(changes=True)
    result = train(10, 4, compile="steps", callbacks=[Annealing()])
    assert {kind for kind, *_ in programs.calls} == {"compiled"}
    assert [message.partition(",")[0] for message in told(result)[1:]] == [
        "compiled steps are dropped because beta of the loss 'net' has changed"
    ] * 3


# -- the choice --------------------------------------------------------------------------------------------------------

EARLY = EarlyStopping("loss", patience=10**6)
FACTORS = [0.01, 0.1, 1 / 3, 0.5, 0.9, 1.1, 1.5, 2, 3, 10, 100]


def compared(found: SimpleNamespace, steps: int) -> float:
    """The time it took, relative to that of the better choice."""
    plain = steps * found.each
    return found.clock.now / min(plain, found.seconds + plain * found.ratio)


def break_even(found: SimpleNamespace) -> float:
    return found.seconds / (found.each * (1 - found.ratio))


@pytest.mark.parametrize("seconds", [0.3, 4.0, 20.0])
@pytest.mark.parametrize("ratio", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("each", [3e-5, 3e-4, 5e-2])
def test_auto_compiles_exactly_if_the_steps_left_pay_for_it(
    each: float, ratio: float, seconds: float, speeds: Callable[..., SimpleNamespace]
) -> None:
    for factor in FACTORS:
        programs = speeds(each=each, ratio=ratio, seconds=seconds)
        steps = max(1, round(factor * break_even(programs)))
        if steps > 600_000:
            continue
        epochs = min(10, steps)
        result = train(steps // epochs, epochs, batch=1)
        steps = steps // epochs * epochs
        factor = steps / break_even(programs)
        if abs(factor - 1) > 0.2 + 3 / steps:  # two or three steps are gone before it is decided
            assert bool(programs.asked) == (factor > 1), (factor, steps)
        assert len(programs.asked) <= 1 and len(told(result)) == len(programs.asked) == 1 - len(why_not(result))
        limit = 1.05 if factor <= 1 / 3 or factor >= 3 else 2.0
        assert compared(programs, steps) <= limit + 4 * each / seconds, (factor, compared(programs, steps))


@settings(max_examples=examples(60))
@given(
    st.floats(1e-5, 0.5),
    st.floats(0.01, 0.99),
    st.floats(0.05, 60.0),
    st.floats(0.02, 50.0),
    st.integers(1, 40),
    st.booleans(),
    st.floats(0.0, 2e-3),
)
def test_auto_takes_at_most_twice_the_time_of_the_better_choice(
    each: float, ratio: float, seconds: float, factor: float, epochs: int, early: bool, call: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        programs = made(patch)(each=each, ratio=ratio, seconds=seconds)
        steps = max(1, round(min(factor * break_even(programs), 200_000) / epochs))
        train(steps, epochs, batch=1, callbacks=[EARLY] if early else [])
        assert compared(programs, steps * epochs) <= 2.0 + 4 * each / seconds


@pytest.mark.parametrize("stopped", [1, 2, 3, 5, 8, 13, 40, 99, 100])
@pytest.mark.parametrize("seconds", [0.5, 3.0, 10.0])
def test_auto_waits_as_long_as_compiling_takes_if_the_phase_may_stop_early(
    seconds: float, stopped: int, speeds: Callable[..., SimpleNamespace], at: Callable[..., Callback]
) -> None:
    """A hundred epochs of a second each are planned, of which so many run."""
    programs = speeds(seconds=seconds)
    stop = at("epoch_end", lambda run: run.stop("enough") if run.epoch + 1 == stopped else None)
    train(1000, 100, batch=1, callbacks=[stop])
    assert bool(programs.asked) == (stopped > seconds or stopped == 1 > seconds)
    if programs.asked:
        plain = sum(count for kind, count, _, _ in programs.calls if kind == "plain") * programs.each
        assert plain == pytest.approx(seconds, rel=0.02, abs=2e-3)
    assert compared(programs, 1000 * stopped) <= 2.01


def test_callbacks_of_the_experiment_count_as_stopping_early_too(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(seconds=3.0)
    ours = Experiment("e", line(1000), progress="none", callbacks=[EARLY])
    ours.run_phase(TrainPhase("t", data="all", losses=MSE, batch_size=1, epochs=100))
    assert sum(count for kind, count, _, _ in programs.calls if kind == "plain") == pytest.approx(3000, rel=0.02)


def test_nothing_is_compiled_near_the_end_of_a_phase(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(seconds=9.5)
    result = train(1000, 10, batch=1, callbacks=[EARLY])
    assert programs.asked == [] and told(result) == [] and compared(programs, 10_000) == pytest.approx(1.0)
    assert why_not(result) == [
        "steps are not compiled: compiling would take about 9.5 s and save 9.0 s in 9,999 steps of 1.0 ms"
    ]


@pytest.mark.parametrize("epochs", [1, 5])
def test_epochs_of_one_step_are_compiled(epochs: int, speeds: Callable[..., SimpleNamespace]) -> None:
    """A whole epoch is one batch, and each call one step."""
    programs = speeds(each=1.0)
    train(1, 100 * epochs, batch=64)
    assert programs.asked == [(64, 1, 64)] and compared(programs, 100 * epochs) < 1.3
    programs = speeds()
    train(1, epochs, batch=64, compile="steps")
    assert programs.asked == [(64, 1, 64)]


def test_epochs_of_a_single_call_are_timed(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(each=1e-2, seconds=1.0)
    train(1, 1000, batch=8)
    assert programs.asked and compared(programs, 1000) < 1.05


def test_steps_are_compiled_at_once_if_that_costs_nothing(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(offered=CompileEstimate(0.0, 0.5), seconds=0.0)
    result = train(10)
    assert [kind for kind, *_ in programs.calls] == ["compiled"] * len(programs.calls)
    assert told(result) == ["steps compiled in 0.0 s: compiling takes no longer than uncompiled steps"]


@pytest.mark.parametrize(
    "offered", [None, CompileEstimate(0.0, 2.0), CompileEstimate(3.0, 1.0), CompileEstimate(0.5, 1.5)]
)
def test_steps_are_not_compiled_if_that_gains_nothing(
    offered: CompileEstimate | None, speeds: Callable[..., SimpleNamespace]
) -> None:
    programs = speeds(offered=offered)
    for callbacks in ([], [EARLY]):
        result = train(1000, 20, batch=1, callbacks=callbacks)
        assert programs.asked == [] and told(result) == [] and programs.offers
        given = "the backend cannot compile them, or expects little gain; compile='steps' tries it"
        slower = "compiled steps would not be faster"
        assert why_not(result) == [f"steps are not compiled: {given if offered is None else slower}"]


def test_an_estimate_may_become_available_later(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(offered=None)

    class Later(Callback):
        def epoch_start(self, run: Any) -> None:
            programs.offered = CompileEstimate(1.0, 0.1) if run.epoch == 3 else programs.offered

    train(1000, 100, batch=1, callbacks=[Later()])
    assert programs.asked and 2900 < sum(count for kind, count, _, _ in programs.calls if kind == "plain") < 3100


def test_the_event_says_why_steps_were_compiled(speeds: Callable[..., SimpleNamespace]) -> None:
    speeds(each=1e-3, ratio=0.1, seconds=2.0)
    (text,) = told(train(5000, 2, batch=1))
    assert text.startswith("steps compiled in 2.0 s: 9,9") and text.endswith(
        " steps are left, and each saves about 900 us; 2.0 s were expected for it"
    )
    speeds(each=1e-3, ratio=0.1, seconds=2.0)
    (text,) = told(train(5000, 2, batch=1, callbacks=[EARLY]))
    assert text == "steps compiled in 2.0 s: uncompiled steps have taken 2.0 s; 2.0 s were expected for it"
    speeds(each=1e-3, ratio=0.1, seconds=2.0)
    assert told(train(5, compile="steps")) == ["steps compiled in 2.0 s: as the phase asks"]


def test_one_event_says_why_nothing_was_compiled_with_the_measured_times(
    speeds: Callable[..., SimpleNamespace],
) -> None:
    speeds(each=2e-4, ratio=0.5, seconds=14.0)
    result = train(200, 10)
    (event,) = [item for item in result.events if item.kind == "compile"]
    assert (event.epoch, event.step, event.verbose) == (9, 200, True)
    assert event.message == (
        "steps are not compiled: compiling would take about 14.0 s and save 0.2 s in 1,999 steps of 0.2 ms"
    )
    speeds(each=2e-5, ratio=0.5, seconds=0.05)
    assert why_not(train(200)) == [
        "steps are not compiled: compiling would take about 50.0 ms and save 2.0 ms in 199 steps of 20 us"
    ]


def test_one_event_says_that_compiling_would_have_paid_off(speeds: Callable[..., SimpleNamespace]) -> None:
    """At first compiling does not seem to pay off; then steps become slower."""
    programs = speeds(each=1e-4, seconds=5.0)

    class Slower(Callback):
        def epoch_start(self, run: Any) -> None:
            programs.each = 1e-4 if run.epoch < 3 else 1e-2

    result = train(1000, 40, batch=1, callbacks=[Slower()])
    assert programs.asked and len(told(result)) == 1 and why_not(result) == []


def test_the_event_says_that_a_phase_ended_before_steps_were_timed(
    speeds: Callable[..., SimpleNamespace], at: Callable[..., Callback]
) -> None:
    """No plain step was timed, somebody stopped it, or it might have been stopped until too few steps were left."""
    takes = "steps are not compiled: compiling would take about"
    speeds()
    assert why_not(train(1)) == [f"{takes} 5.0 s, and the phase ended before uncompiled steps were timed"]
    speeds()
    assert why_not(train(2)) == [f"{takes} 5.0 s and save 0.9 ms in 1 step of 1.0 ms"]
    speeds()
    stop = at("epoch_end", lambda run: run.stop("enough") if run.epoch == 2 else None)
    result = train(1000, 100, batch=1, callbacks=[stop])
    assert why_not(result) == [f"{takes} 5.0 s and save 2.7 s in 2,999 steps of 1.0 ms"] and told(result) == []
    speeds(seconds=8.0)
    result = train(1000, 10, batch=1, callbacks=[EARLY])
    assert why_not(result) == [f"{takes} 8.0 s and save 9.0 s in 9,999 steps of 1.0 ms, but this was known too late"]


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_busy_machine_does_not_make_a_compilation_pay(speeds: Callable[..., SimpleNamespace], share: float) -> None:
    """2,000 steps of 1 ms save 1.8 s, less than the 5 s of compiling, however long they last by the clock."""
    made = speeds(each=1e-3 / share, ratio=0.1, seconds=5.0)
    made.clock.share = share
    told = why_not(train(1000, 2))
    assert not made.asked
    assert told[0].startswith("steps are not compiled: compiling would take about 5.0 s and save 1.8 s in ")


def test_what_pays_is_compiled_on_a_busy_machine_too(speeds: Callable[..., SimpleNamespace]) -> None:
    made = speeds(each=4e-3, ratio=0.1, seconds=0.5)
    made.clock.share = 0.25
    train(1000, 2)
    assert made.asked == [(4, 1, 4000)]


def test_the_clock_counts_where_a_device_computes(
    speeds: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor waits for it meanwhile."""
    monkeypatch.setattr(Pipeline, "on_host", False)
    made = speeds(each=4e-3, ratio=0.1, seconds=5.0)
    made.clock.share = 0.01
    train(1000, 2)
    assert made.asked


def test_the_event_says_that_steps_with_a_step_end_hook_are_not_compiled(
    speeds: Callable[..., SimpleNamespace], at: Callable[..., Callback]
) -> None:
    speeds(offered=None, computes=True)
    assert why_not(train(5, 2, callbacks=[at("step_end", lambda run: None)])) == [
        "steps are not compiled: a step_end hook runs after every step, and single steps are not compiled; set "
        "every_n_steps=50 on the callback, or use steps_done, which runs once for many steps"
    ]


def test_there_is_no_event_without_a_compiler() -> None:
    """NumPy has no compiler, whatever the mode."""
    for mode in ("auto", "off"):
        assert [event.kind for event in train(20, 2, compile=mode).events] == ["residency"]


def test_there_is_no_event_without_steps(speeds: Callable[..., SimpleNamespace], at: Callable[..., Callback]) -> None:
    speeds()
    result = train(20, 2, callbacks=[at("epoch_start", lambda run: run.stop("no"))])
    assert result.epochs == () and why_not(result) == told(result) == []


def test_there_is_no_second_event_once_steps_were_compiled(
    speeds: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are streamed from the middle of a phase on come in other columns, for which it does not pay again."""
    programs = speeds(computes=True, each=0.1, seconds=4.0)
    steps, left = Fake.train_steps, [9]

    def full(self: Fake, *args: Any) -> Any:
        left[0] -= bool(programs.compiled)
        if left[0] == 0:
            raise OutOfMemoryError("full")
        return steps(self, *args)

    monkeypatch.setattr(Fake, "train_steps", full)
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", 4 * 4 * 8 * 5)
    result = train(20, 4)
    assert programs.asked == [(4, 1, 80)] and [call[0] for call in programs.calls][-1] == "plain"
    assert len(told(result)) == 1 and why_not(result) == []


@pytest.mark.parametrize(
    ("mode", "asked", "routine"),
    [
        ("auto", [], ["steps are not compiled: all batches have different shapes"]),
        ("steps", ["steps run one at a time, uncompiled: all batches have different shapes"], []),
        ("off", [], []),
    ],
)
def test_the_event_says_that_batches_differ_in_size(
    mode: str, asked: list[str], routine: list[str], speeds: Callable[..., SimpleNamespace]
) -> None:
    programs = speeds()
    nodes = [ModelNode(name, Dense(1, dtype="float64"), numbers(12, f"of {name}").reference()) for name in "ab"]
    losses = [AppliedLoss("mse", on=name) for name in "ab"]
    samplers = {f"of {name}": SimpleSampler(size) for name, size in (("a", 4), ("b", 3))}
    phase = TrainPhase("t", data="all", losses=losses, sampler=samplers, schedule="zip_cycle", compile=mode)
    result = Experiment("e", ModelGraph(nodes, "adam"), progress="none").run_phase(phase)
    assert (told(result), why_not(result)) == (asked, routine) and programs.offers == programs.asked == []


# -- modes -------------------------------------------------------------------------------------------------------------


def test_off_asks_for_no_estimate(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(each=1.0)
    result = train(100, 20, compile="off")
    assert programs.offers == programs.asked == told(result) == [] and programs.calls


@pytest.mark.parametrize("mode", ["auto", "off", "steps"])
def test_a_segment_knows_the_mode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    build = NumpyBackend.build

    def watch(self: NumpyBackend, segment: Any) -> Any:
        seen.append(segment.compile)
        return build(self, segment)

    monkeypatch.setattr(NumpyBackend, "build", watch)
    train(3, compile=mode)
    Experiment("e", line(8), progress="none").run_phase(EvalPhase("e", data="all", compile=mode))
    assert seen == [mode, mode]


def test_steps_compiles_before_the_first_step_without_an_estimate(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds()
    train(20, 3, compile="steps")
    assert programs.offers == [] and programs.asked == [(4, 1, 80)]
    assert {kind for kind, *_ in programs.calls} == {"compiled"}


@pytest.mark.parametrize("mode", ["auto", "steps"])
def test_a_last_partial_batch_is_not_compiled(mode: str, speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(each=0.5)
    train(20, 30, rest=3, compile=mode)
    assert programs.asked == [(4, 1, 83)]
    assert {batch for kind, _, batch, _ in programs.calls if kind == "compiled"} == {4}
    assert len([1 for kind, count, batch, _ in programs.calls if (kind, count, batch) == ("plain", 1, 3)]) == 30


def test_a_program_may_take_the_last_partial_batch_compiled_too(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds()
    programs.compiled.add((3, 1, 83))
    train(20, 2, rest=3, compile="steps")
    assert {kind for kind, *_ in programs.calls} == {"compiled"}


def test_accumulated_steps_are_compiled_in_microbatches(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds()
    result = train(20, 2, compile="steps", accumulate=5)
    assert programs.asked == [(20, 5, 80)] and {call[2:] for call in programs.calls} == {(20, 5)}
    assert [epoch.steps for epoch in result.epochs] == [4, 4]


def test_steps_run_one_by_one_if_the_program_takes_no_microbatches(
    speeds: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "supports_microbatching", False)
    programs = speeds()
    result = train(20, 2, compile="steps", accumulate=5)
    assert programs.asked == programs.calls == []
    assert told(result) == ["steps of 20 rows in micro-batches of 4 run one at a time, uncompiled"]


def test_streamed_blocks_are_compiled_once(
    speeds: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", 4 * 4 * 8 * 5)
    programs = speeds()
    train(23, 3, rest=2, compile="steps", residency="streamed")
    assert programs.asked == [(4, 1, 20)]
    assert {call[0] for call in programs.calls if call[2] == 4} == {"compiled"}


def test_a_step_end_hook_sees_every_step(speeds: Callable[..., SimpleNamespace], at: Callable[..., Callback]) -> None:
    programs = speeds(computes=True, each=1e-2)
    train(50, 2, callbacks=[at("step_end", lambda run: None)])
    assert {count for _, count, *_ in programs.calls} == {1} and set(programs.offers) == {1}


def test_several_programs_say_that_steps_are_not_compiled(learner: Callable[[], Any]) -> None:
    data = numbers(12)
    nodes = [
        ModelNode("a", Dense(2, dtype="float64"), data.reference()),
        ModelNode("net", Dense(1, dtype="float64"), "a"),
    ]
    graph = ModelGraph(nodes, "adam")

    graph.add_node(ModelNode("est", learner(), "a"))
    for mode, expected in (
        ("steps", ["steps run one at a time, uncompiled: no single program runs a whole step"]),
        ("auto", []),
        ("off", []),
    ):
        phase = TrainPhase("t", data="all", losses=MSE, batch_size=4, epochs=2, compile=mode)
        result = Experiment("e", graph, progress="none").run_phase(phase)
        assert told(result) == expected and why_not(result) == []


@pytest.mark.parametrize("able", [True, False])
def test_auto_says_that_no_single_program_takes_steps_whole_where_one_could_compile(
    able: bool,
    speeds: Callable[..., SimpleNamespace],
    monkeypatch: pytest.MonkeyPatch,
    learner: Callable[[], Any],
) -> None:
    speeds(computes=True)
    if not able:
        monkeypatch.setattr(Fake, "estimate_compile", MultiStepProgram.estimate_compile)
    data = numbers(12)
    graph = ModelGraph([ModelNode("net", Dense(1, dtype="float64"), data.reference())], "adam")
    graph.add_node(ModelNode("est", learner(), "net"))
    phase = TrainPhase("t", data="all", losses=MSE, batch_size=4, epochs=2)
    result = Experiment("e", graph, progress="none").run_phase(phase)
    assert told(result) == []
    assert why_not(result) == ["steps are not compiled: no single program runs a whole step"] * able


def test_all_modes_give_the_same_numbers(speeds: Callable[..., SimpleNamespace]) -> None:
    states = []
    for mode in ("off", "auto", "steps"):
        speeds(computes=True, each=0.1)
        graph = ModelGraph([ModelNode("net", SequentialMLP((1,), 2, 4, "tanh"), _float32().reference())], "adam")
        sampler = SimpleSampler(4, shuffle=True)
        phase = TrainPhase("t", data="all", losses=MSE, sampler=sampler, epochs=20, compile=mode)
        Experiment("e", graph, progress="none").run_phase(phase)
        states.append(graph.state())
    for name, array in states[0].items():
        assert all(np.array_equal(array, state[name]) for state in states[1:])


def _float32() -> FeatureSet:
    draw = np.random.default_rng(0)
    columns = {name: draw.normal(size=(30, k)).astype("float32") for name, k in (("x", 3), ("y", 1))}
    return FeatureSet.from_dict("data", columns, ["x"], ["y"])


# -- what fails --------------------------------------------------------------------------------------------------------

NO = CompileError("steps of segment 'x' cannot be compiled", available="no C++ compiler", hint="install one")
SAID = "steps run uncompiled: steps of segment 'x' cannot be compiled. Available: no C++ compiler. Hint: install one."


def test_a_compile_error_is_a_warning_with_compile_steps(
    speeds: Callable[..., SimpleNamespace],
) -> None:
    programs = speeds(fails=NO)
    with pytest.warns(CompileWarning) as caught:
        result = train(20, 3, compile="steps")
    assert [str(element.message) for element in caught] == [SAID]
    assert told(result) == [SAID] and len(programs.asked) == 1
    assert sum(count for kind, count, *_ in programs.calls if kind == "plain") == 60


def test_a_compile_error_is_only_an_event_with_compile_auto(
    speeds: Callable[..., SimpleNamespace],
) -> None:
    programs = speeds(fails=NO, each=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(200, 3)
    assert told(result) == [SAID] and len(programs.asked) == 1 and result.events[-1].epoch == 0 and not why_not(result)


def test_steps_stay_uncompiled_if_memory_runs_out_while_compiling(speeds: Callable[..., SimpleNamespace]) -> None:
    programs = speeds(fails=OutOfMemoryError("no room for a graph"))
    with pytest.warns(CompileWarning, match="steps run uncompiled: no room for a graph"):
        result = train(20, 3, compile="steps")
    assert [event.kind for event in result.events] == ["residency", "compile"] and len(programs.asked) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt("now"), ZeroDivisionError("a bug")])
def test_an_interrupt_while_compiling_ends_the_phase(
    error: BaseException, speeds: Callable[..., SimpleNamespace]
) -> None:
    programs = speeds(fails=error, computes=True)
    graph = line(80)
    ours = Experiment("e", graph, progress="none")
    phase = TrainPhase("t", data="all", losses=MSE, batch_size=4, compile="steps")
    with pytest.raises(type(error)) as caught:
        ours.run_phase(phase)
    assert caught.value is error and ours.last_run.error is error and programs.calls == []
    programs.fails = None
    assert len(ours.run_phase(phase).epochs) == 1


def test_repeated_steps_are_not_counted_twice(
    speeds: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of steps left is right after memory ran out, too."""
    seen: list[int | None] = []
    took = compile_policy.CompilePolicy.call_timed

    def watch(self: Any, *args: Any, **more: Any) -> None:
        took(self, *args, **more)
        seen.append(self._steps_left)

    monkeypatch.setattr(compile_policy.CompilePolicy, "call_timed", watch)
    programs = speeds(computes=True)
    steps, left = Fake.train_steps, [3]

    def full(self: Fake, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OutOfMemoryError("full")
        return steps(self, *args)

    monkeypatch.setattr(Fake, "train_steps", full)
    train(50, 4)
    assert seen[-1] == 0 and programs.calls


def test_steps_are_compiled_again_for_blocks_of_another_size(
    speeds: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are streamed because memory ran out come in columns of another length."""
    programs = speeds(computes=True)
    steps, left = Fake.train_steps, [2]

    def full(self: Fake, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OutOfMemoryError("full")
        return steps(self, *args)

    monkeypatch.setattr(Fake, "train_steps", full)
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", 4 * 4 * 8 * 5)
    result = train(20, 2, compile="steps")
    assert programs.asked == [(4, 1, 80), (4, 1, 20)]
    assert [event.kind for event in result.events] == ["residency", "compile", "memory", "compile"]


# -- pace --------------------------------------------------------------------------------------------------------------


def test_a_call_that_was_cut_short_does_not_slow_the_next() -> None:
    one = train_loop.StepPacing()
    for _ in range(10):
        one.record(one.n_steps, 1e-5 * one.n_steps)
    assert one.n_steps == 1024
    one.record(3, 3e-5)
    assert one.n_steps == 1024
    one.record(3, 0.9)
    assert one.n_steps == 1
