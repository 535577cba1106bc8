"""Out of memory: a phase goes on with fewer rows at once, to the same numbers, or ends with a report."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from neighbours import Neighbours

from anyaccel import AppliedLoss, SimpleSampler
from anyaccel.adapter import ArrayProgram
from anyaccel.data import FeatureSet
from anyaccel.device import Device as Place
from anyaccel.errors import EstimatorError, OutOfMemoryError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, NumpyBackend, Sequential, SequentialMLP, simulate
from anyaccel.phases import Callback, EvalPhase, Phase, Run, TrainPhase, execute, oom_recovery
from anyaccel.phases.loading import residency as loader_factory
from anyaccel.phases.loop_extension import CallInProgress
from anyaccel.phases.oom_recovery import EpochRecovery, OutOfMemoryReport, smaller
from anyaccel.phases.progress import Progress
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")
ROWS, BATCH = 90, 16  # five full batches, and ten rows


def numbers(label: str = "data") -> FeatureSet:
    draw = np.random.default_rng(0)
    columns = {"x": draw.normal(size=(ROWS, 3)), "y": draw.normal(size=(ROWS, 1)), "k": np.arange(ROWS) % 2}
    made = FeatureSet.from_dict(label, columns, ["x"], ["y"], ["k"])
    made.add_splits({"train": np.arange(ROWS), "val": np.arange(40)})
    return made


def line(model: Any = None, **settings: Any) -> ModelGraph:
    node = ModelNode(
        "net", model or SequentialMLP((1,), 2, 5, "tanh", dtype="float64"), numbers().reference(["x"], ["y"])
    )
    return ModelGraph([node], Optimizer("adam", lr=0.02, **settings), seed=3)


def train(**settings: Any) -> TrainPhase:
    drawn = {} if "batch_size" in settings else {"sampler": SimpleSampler(BATCH, shuffle=True, seed=1)}
    return TrainPhase("t", **{"data": "train", "losses": MSE, "epochs": 3, **drawn, **settings})


def run(graph: ModelGraph, phase: Phase) -> Any:
    return Experiment("e", graph, progress="none").run_phase(phase)


def unusual(result: Any) -> list[Any]:
    """The events that are not verbose."""
    return [event for event in result.events if not event.verbose]


def told(result: Any) -> list[tuple[int, int, str]]:
    """Epoch, step and measure of each memory event."""
    return [
        (event.epoch, event.step, event.message.rpartition("; ")[2])
        for event in result.events
        if event.kind == "memory"
    ]


STREAMED = "rows are streamed from now on"
FULL = OutOfMemoryError("the device has no room", available="0 bytes free")


class Device:
    """How many rows programs can compute at once, and since which step; counts how often they were asked.

    Args:
        most: rows that fit.
        after: steps that all fit.
        times: how often it fails at most.
        training: whether evaluations always fit.
    """

    def __init__(self, most: int, after: int = 0, times: int = 10**9, training: bool = True) -> None:
        self.most, self.after, self.times, self.training = most, after, times, training
        self.asked: list[int] = []

    def take(self, inputs: Any, training: bool) -> None:
        rows = max(len(item) for item in inputs if item is not None)
        if training == self.training:
            self.asked.append(rows)
            if rows > self.most and len(self.asked) > self.after and self.times:
                self.times -= 1
                raise OutOfMemoryError(FULL.problem, available=FULL.available)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Device]:
    """`device(5)`: programs compute no more than five rows at once; see `Device`."""
    methods = {"forward": ArrayProgram.forward, "forward_pullback": ArrayProgram.forward_pullback}

    def make(*args: Any, **settings: Any) -> Device:
        made = Device(*args, **settings)

        def limited(name: str) -> Callable[..., Any]:
            def compute(self: ArrayProgram, inputs: Any, *more: Any) -> Any:
                made.take(inputs, name == "forward_pullback")
                return methods[name](self, inputs, *more)

            return compute

        for name in methods:
            monkeypatch.setattr(ArrayProgram, name, limited(name))
        return made

    return make


def same(graph: ModelGraph, other: ModelGraph, within: float) -> None:
    one, two = graph.state(), other.state()
    assert sorted(one) == sorted(two)
    for name, array in one.items():
        np.testing.assert_allclose(array, two[name], rtol=within, atol=within, err_msg=name)


def history(result: Any) -> np.ndarray:
    return np.array([[epoch.number, epoch.steps, epoch.loss, *epoch.validation.values()] for epoch in result.epochs])


# -- the same numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("callbacks", [False, True], ids=["whole calls", "step by step"])
@pytest.mark.parametrize("after", [0, 1, 3, 5, 6, 8, 12, 17])
def test_rows_are_streamed_after_memory_ran_out_once(
    after: int, callbacks: bool, device: Callable[..., Device], at: Callable[..., Callback]
) -> None:
    """At the first step, in the middle, in the last partial batch, and at the first and middle of later epochs."""
    graph, plain = line(), line()
    expected = run(plain, train())
    device(0, after=after, times=1)
    heard: list[Any] = []
    listen = [at("step_end", lambda run: heard.append((run.epoch, run.step)))] if callbacks else []
    result = run(graph, train(callbacks=listen))
    same(graph, plain, within=0.0)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-14)  # added up in other calls
    assert [text for _, _, text in told(result)] == [STREAMED]
    epoch, step, _ = told(result)[0]
    assert epoch == after // 6 and 0 <= step <= after % 6
    if callbacks:
        assert step == after % 6 and (epoch, step) in heard


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize(("most", "after"), [(15, 0), (9, 0), (5, 0), (1, 0), (5, 9), (3, 50)])
def test_steps_are_computed_in_microbatches_if_rows_are_independent(
    most: int, after: int, clip: float | None, device: Callable[..., Device]
) -> None:
    """The same losses and parameters after 102 steps."""
    graph, plain = line(clip_norm=clip), line(clip_norm=clip)
    expected = run(plain, train(epochs=17))
    seen = device(most, after=after)
    result = run(graph, train(epochs=17))
    same(graph, plain, within=1e-6)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-6)
    assert graph.optimizer_states["net"].step == 17 * 6
    texts = [text for _, _, text in told(result)]
    sizes = {15: [8], 9: [8], 5: [8, 4], 3: [8, 4, 2], 1: [8, 4, 2, 1]}[most]
    assert texts == [STREAMED, *(f"{size} of {size * 2} rows at a time from now on" for size in sizes)]
    assert len([rows for rows in seen.asked if rows > most]) <= len(texts) + after


@pytest.mark.parametrize("after", [0, 4, 9])
def test_accumulated_steps_are_computed_in_smaller_microbatches(after: int, device: Callable[..., Device]) -> None:
    graph, plain = line(), line()
    expected = run(plain, train(accumulate=3))
    device(5, after=after)
    result = run(graph, train(accumulate=3))
    same(graph, plain, within=1e-6)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-6)
    assert [text for _, _, text in told(result)] == [
        STREAMED,
        "8 of 16 rows at a time from now on",
        "4 of 8 rows at a time from now on",
    ]


def test_buffers_and_random_state_are_restored_too(device: Callable[..., Device]) -> None:
    def graph() -> ModelGraph:
        return line(
            Sequential(Dense(4, dtype="float64"), BatchNorm(dtype="float64"), Dropout(0.4), Dense(1, dtype="float64"))
        )

    one, plain = graph(), graph()
    expected = run(plain, train())
    device(0, after=9, times=1)
    result = run(one, train())
    same(one, plain, within=0.0)
    np.testing.assert_array_equal(history(result), history(expected))


@pytest.mark.parametrize("size", [1, 3000, 2**20])
@pytest.mark.parametrize("after", [0, 1, 3, 4, 5, 6, 8])
def test_rows_that_are_streamed_are_streamed_in_smaller_blocks(
    after: int, size: int, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed at any step: blocks start elsewhere then, and the last partial batch is in another block."""
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", size)
    graph, plain = line(), line()
    expected = run(plain, train())
    device(8, after=after)
    result = run(graph, train(residency="streamed"))
    same(graph, plain, within=1e-6)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-6)
    now = "5 of 10 rows at a time from now on" if after == 5 else "8 of 16 rows at a time from now on"
    assert [text for _, _, text in told(result)] == [now]


def test_single_rows_are_streamed_in_smaller_blocks(
    device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, plain = line(), line()
    run(plain, train(batch_size=1, epochs=1))
    device(0, after=20, times=1)
    result = run(graph, train(batch_size=1, epochs=1, residency="streamed"))
    same(graph, plain, within=0.0)
    assert [text for _, _, text in told(result)] == ["rows are streamed in smaller blocks from now on"]


@pytest.mark.parametrize("after", [0, 3, 7])
def test_memory_that_runs_out_while_a_block_is_copied_is_recovered(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_factory, "BLOCK_BYTES", 2000)
    graph, plain = line(), line()
    run(plain, train())
    send, count = NumpyBackend.copy_async, itertools.count()

    def full(self: NumpyBackend, array: Any, place: Any) -> Any:
        if next(count) == after:
            raise FULL
        return send(self, array, place)

    monkeypatch.setattr(NumpyBackend, "copy_async", full)
    result = run(graph, train(residency="streamed"))
    same(graph, plain, within=1e-6)
    assert len(told(result)) == 1


def test_microbatches_of_a_last_partial_batch_do_not_limit_the_others(
    device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure between epochs does not count as one of the last, partial batch."""
    graph = line()
    from_host, count = NumpyBackend.from_host, itertools.count()

    def full(self: NumpyBackend, array: Any, place: Any, **more: Any) -> Any:
        if array.dtype == np.int64 and next(count) in (1, 2):
            raise OutOfMemoryError(FULL.problem)
        return from_host(self, array, place, **more)

    monkeypatch.setattr(NumpyBackend, "from_host", full)
    result = run(graph, train())
    assert told(result) == [(1, 0, STREAMED), (1, 0, "8 of 16 rows at a time from now on")]


def test_data_that_cannot_be_loaded_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, plain = line(), line()
    expected = run(plain, train(validation="val"))
    from_host, left = NumpyBackend.from_host, [1]

    def full(self: NumpyBackend, array: Any, place: Any, **more: Any) -> Any:
        if left[0] and len(array) == ROWS:
            left[0] -= 1
            raise FULL
        return from_host(self, array, place, **more)

    monkeypatch.setattr(NumpyBackend, "from_host", full)
    result = run(graph, train(validation="val"))
    same(graph, plain, within=0.0)
    np.testing.assert_array_equal(history(result), history(expected))
    assert [(event.epoch, event.step, event.message) for event in unusual(result)] == [
        (-1, -1, "the data of t: streamed, because memory ran out while they were loaded (the device has no room)")
    ]
    (other,) = [event.message for event in result.events if event.verbose]
    assert other.startswith("the data of val: resident, because they take ")


# -- what a phase can have ---------------------------------------------------------------------------------------------


def test_steps_of_pairs_are_computed_in_microbatches(device: Callable[..., Device]) -> None:
    def graph() -> ModelGraph:
        model, source = SequentialMLP((1,), 2, 4, "tanh", dtype="float64"), numbers()
        nodes = [
            ModelNode(n, model, source.reference(["x"], ["y"], stream=s)) for n, s in (("net", None), ("b", "pair"))
        ]
        return ModelGraph(nodes, "adam", seed=1)

    one, plain = graph(), graph()
    of = {"losses": [AppliedLoss("mse", on="net", inputs=["outputs", "b"])], "sampler": Neighbours(8, "k")}
    expected = run(plain, train(**of))
    device(3, after=5)
    result = run(one, train(**of))
    same(one, plain, within=1e-6)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-6)


@pytest.mark.parametrize("schedule", ["zip_cycle", "alternate_cycle"])
def test_mixed_steps_are_computed_in_microbatches_if_sets_give_equally_many_rows(
    schedule: str, device: Callable[..., Device]
) -> None:
    def graph() -> ModelGraph:
        nodes = [
            ModelNode(name, Dense(1, dtype="float64"), numbers(f"d{name}").reference(["x"], ["y"])) for name in "ab"
        ]
        return ModelGraph(nodes, "adam", seed=1)

    of = {
        "losses": [AppliedLoss("mse", on="a"), AppliedLoss("mae", on="b")],
        "sampler": {"da": SimpleSampler(8, shuffle=True), "db": SimpleSampler(8)},
        "schedule": schedule,
    }
    one, plain = graph(), graph()
    expected = run(plain, train(**of))
    device(4, after=5)
    result = run(one, train(**of))
    same(one, plain, within=1e-6)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-6)
    assert [text for _, _, text in told(result)] == [STREAMED, "4 of 8 rows at a time from now on"]


def test_learners_are_restored_too(device: Callable[..., Device], learner: type[Any]) -> None:
    def graph() -> ModelGraph:
        made = line()
        made.add_node(ModelNode("est", learner(), "net"))
        return made

    one, plain = graph(), graph()
    run(plain, train())
    device(0, after=9, times=1)
    result = run(one, train())
    same(one, plain, within=0.0)
    assert one["est"].model.diary == plain["est"].model.diary != []
    assert len(told(result)) == 1


def test_learners_that_cannot_be_copied_train_until_memory_runs_out(
    device: Callable[..., Device], learner: type[Any]
) -> None:
    class Lock(float):
        def __deepcopy__(self, memo: Any) -> Any:
            raise EstimatorError("it cannot be copied")

    graph = line()
    graph.add_node(ModelNode("est", learner(), "net"))
    graph["est"].model.diary.append(Lock())
    run(graph, train())
    assert len(graph["est"].model.diary) == 19
    device(0, after=4, times=1)
    with pytest.raises(
        OutOfMemoryError, match="phase 't': not enough memory to train 16 rows at once, and micro-batches are ruled"
    ):
        run(graph, train())


def test_step_end_hooks_see_repeated_steps(
    device: Callable[..., Device], at: Callable[..., Callback], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom_recovery, "_SNAPSHOT_SHARE", 1e-12)  # one snapshot, at the start of the epoch
    device(0, after=9, times=1)
    heard: list[Any] = []
    run(line(), train(epochs=2, callbacks=[at("step_end", lambda run: heard.append((run.epoch, run.step)))]))
    assert heard == [(0, i) for i in range(6)] + [(1, i) for i in range(3)] + [(1, i) for i in range(6)]


class Counted(Progress):
    """Adds up steps."""

    def __init__(self) -> None:
        self.steps, self.most, self.epochs = 0, 0, 0

    def advance(self, steps: int) -> None:
        self.steps += steps
        self.most = max(self.most, self.steps - 6 * self.epochs)

    def epoch(self, figures: Mapping[str, float]) -> None:
        self.epochs += 1
        assert self.steps == 6 * self.epochs


@pytest.mark.parametrize("after", [0, 3, 5, 9, 17])
def test_progress_never_goes_beyond_the_end(after: int, device: Callable[..., Device]) -> None:
    device(5, after=after)
    progress = Counted()
    execute(Run(train(), line()), progress=progress)
    assert (progress.steps, progress.most) == (18, 6)


# -- validation, evaluation, fitting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [39, 16, 1])
def test_a_validation_is_computed_in_smaller_batches(most: int, device: Callable[..., Device]) -> None:
    validation = EvalPhase("check", data="val", metrics=["mae", Metric("r2", on="net")])
    graph, plain = line(), line()
    expected = run(plain, train(validation=validation))
    device(most, training=False)
    result = run(graph, train(validation=validation))
    same(graph, plain, within=0.0)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-12)
    texts = [text for _, _, text in told(result)]
    assert texts[:2] == [STREAMED, "20 of 40 rows at a time from now on"]
    assert all(
        event.message.startswith("the data of check: memory ran out (the device has no room)")
        for event in unusual(result)
    )
    assert {(event.epoch, event.step) for event in unusual(result)} == {(0, 6)}


def test_evaluations_are_computed_in_smaller_batches(device: Callable[..., Device]) -> None:
    collected = []
    for most in (10**6, 7):
        device(most, training=False)
        result = run(line(), EvalPhase("p", data="train", losses=MSE, outputs="net", batch_size=30))
        collected.append((result.prediction("net"), result.losses["net"]))
    np.testing.assert_allclose(collected[1][0], collected[0][0], rtol=1e-12)
    assert collected[1][1] == pytest.approx(collected[0][1], rel=1e-12)
    assert [text for _, _, text in told(result)] == [
        STREAMED,
        "15 of 30 rows at a time from now on",
        "6 of 30 rows at a time from now on",
    ]


def test_a_validation_on_a_device_that_is_too_small_for_one_of_its_batches() -> None:
    """Blocks of streamed rows are parts of batches then."""
    with simulate(1, capacity=4000) as sims:
        graph = line()
        result = run(graph, train(accelerator="sim:0", batch_size=4, validation="train"))
        assert sims[0].peak <= 4000
    plain = line()
    expected = run(plain, train(batch_size=4, validation="train"))
    same(graph, plain, within=1e-6)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-6)


def test_an_evaluation_that_does_not_fit_says_which_batch_would(device: Callable[..., Device]) -> None:
    def own(outputs: Any, targets: Any) -> Any:
        return np.zeros(()), len(outputs), (None, None)

    device(11, training=False)
    graph = line()
    phase = EvalPhase("p", data="train", losses=AppliedLoss(own, on="net"), batch_size=30)
    with pytest.raises(OutOfMemoryError) as caught:
        run(graph, phase)
    assert str(caught.value).startswith(
        "phase 'p': not enough memory for 30 rows at once, and micro-batches are ruled out by the custom loss 'net': "
        "the device has no room; cpu:0 (numpy): parameters "
    )
    assert str(caught.value).endswith("; 11 rows would fit. Hint: use batches of at most 11 or a smaller model.")


# -- what stops --------------------------------------------------------------------------------------------------------


def mixed() -> ModelGraph:
    model = Sequential(Dense(4, dtype="float64"), BatchNorm(dtype="float64"), Dense(1, dtype="float64"))
    return line(model)


@pytest.mark.parametrize("most", [15, 11, 2, 1, 0])
@pytest.mark.parametrize("after", [0, 7])
def test_batch_normalization_ends_the_phase_with_a_memory_report(
    most: int, after: int, device: Callable[..., Device]
) -> None:
    graph = mixed()
    device(most, after=after)
    with pytest.raises(OutOfMemoryError) as caught:
        run(graph, train())
    fits = {0: "not even one row fits", 1: "1 row would fit"}.get(most, f"{most} rows would fit")
    remedy = f"use batches of at most {most} or a smaller model" if most else "use a smaller model"
    text = str(caught.value)
    assert text.startswith(
        "phase 't': not enough memory to train 16 rows at once, and micro-batches are ruled out by BatchNorm in node "
        "'net': the device has no room; cpu:0 (numpy): parameters 232 B, gradients 232 B, optimizer "
        "state 464 B, data (streamed) 2.8 KiB; activations and the rest: the remainder of "
    ), text
    assert text.endswith(f"; {fits}. Hint: {remedy}, or set microbatching='approximate' to allow micro-batches anyway.")


def test_the_largest_batch_is_measured_with_the_update() -> None:
    """On a device that counts: a batch of that size trains, and one of twice as many rows does not.

    Some between do: the rows of the batch that failed lie there while the size is looked for.
    """
    with simulate(1, capacity=9000):
        with pytest.raises(OutOfMemoryError) as caught:
            run(mixed(), train(accelerator="sim:0", batch_size=90, epochs=1))
        fits = int(str(caught.value).partition(" rows would fit")[0].rpartition(" ")[2])
        assert 2 < fits < 90
    for size in (fits, 2 * fits):
        graph = mixed()
        with simulate(1, capacity=9000):
            phase = train(accelerator="sim:0", batch_size=size, epochs=1)
            if size == fits:
                run(graph, phase)
            else:
                with pytest.raises(OutOfMemoryError):
                    run(graph, phase)


def test_approximate_microbatching_computes_coupled_batches_in_parts(device: Callable[..., Device]) -> None:
    graph = mixed()
    device(5)
    result = run(graph, train(microbatching="approximate"))
    assert [text for _, _, text in told(result)] == [
        STREAMED,
        "8 of 16 rows at a time from now on",
        "4 of 8 rows at a time from now on",
    ]
    assert np.isfinite(result.loss).all() and len(result.epochs) == 3


def test_custom_losses_need_approximate_microbatching(device: Callable[..., Device]) -> None:
    def own(outputs: Any, targets: Any) -> Any:
        error = outputs - targets
        return (error**2).sum(), len(error), (2 * error, None)

    device(5)
    with pytest.raises(OutOfMemoryError, match=r"ruled out by the custom loss 'net': the device"):
        run(line(), train(losses=AppliedLoss(own, on="net")))
    result = run(line(), train(losses=AppliedLoss(own, on="net"), microbatching="approximate"))
    assert len(result.epochs) == 3


def test_rows_that_are_to_be_resident_stay_so(device: Callable[..., Device]) -> None:
    device(5)
    result = run(line(), train(residency="resident"))
    assert [text for _, _, text in told(result)] == [
        "8 of 16 rows at a time from now on",
        "4 of 8 rows at a time from now on",
    ]
    device(5)
    with pytest.raises(
        OutOfMemoryError, match=r"Hint: use batches of at most 5 or a smaller model, or set residency='auto' to"
    ):
        run(mixed(), train(residency="resident"))


@pytest.mark.parametrize("after", [0, 8])
def test_nothing_is_retried_without_a_snapshot(
    after: int, device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ArrayProgram) -> Any:
        raise OutOfMemoryError("no room for a copy")

    monkeypatch.setattr(ArrayProgram, "snapshot", full)
    seen = device(0, after=after, times=1)
    graph = line()
    ours = Experiment("e", graph, progress="none")
    with pytest.raises(OutOfMemoryError) as caught:
        ours.run_phase(train())
    assert str(caught.value).startswith(
        "phase 't': not enough memory to train 16 rows at once: the device has no room; "
    )
    assert len(seen.asked) == after + 1 and unusual(ours.last_run) == []
    assert len(ours.last_run.epochs) == after // 6


def test_a_phase_ends_if_not_even_one_row_fits(device: Callable[..., Device]) -> None:
    seen = device(0)
    with pytest.raises(OutOfMemoryError) as caught:
        run(line(), train())
    assert len(seen.asked) <= 2 * 16
    assert str(caught.value).startswith("phase 't': not enough memory to train 1 row at once: the device has no room; ")
    assert str(caught.value).endswith("; not even one row fits. Hint: use a smaller model.")


@pytest.mark.parametrize("name", ["copy_async", "from_host", "from_host_owned"])
def test_a_device_without_any_room_ends_the_phase(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [0]

    def full(self: NumpyBackend, *args: Any, **settings: Any) -> Any:
        asked[0] += 1
        raise OutOfMemoryError(FULL.problem)

    monkeypatch.setattr(NumpyBackend, name, full)
    if name == "from_host_owned":
        assert len(run(line(), train()).epochs) == 3  # they are streamed
        return
    with pytest.raises(
        OutOfMemoryError, match="phase 't': not enough memory to train 1 row at once: the device has no room"
    ):
        run(line(), train(residency="streamed"))
    assert asked[0] <= 40


def test_a_phase_that_ends_by_memory_keeps_its_epochs_and_can_continue(device: Callable[..., Device]) -> None:
    graph = mixed()
    ours = Experiment("e", graph, progress="none")
    made = device(8, after=15)
    with pytest.raises(OutOfMemoryError):
        ours.run_phase(train())
    assert [epoch.number for epoch in ours.last_run.epochs] == [0, 1] and graph.progress == {"t": 2}
    assert [event.message.rpartition("; ")[2] for event in unusual(ours.last_run)][:1] == [STREAMED]
    made.most = 100
    assert [epoch.number for epoch in ours.run_phase(train(epochs=1)).epochs] == [2]


# -- real memory, as far as it is counted ------------------------------------------------------------------------------


@pytest.fixture
def expected() -> ModelGraph:
    graph = line()
    run(graph, train(epochs=4, batch_size=30, validation="val"))
    return graph


@pytest.mark.parametrize("capacity", [60_000, 12_000, 9_000, 7_000])
def test_a_device_of_any_size_gives_the_same_numbers(capacity: int, expected: ModelGraph) -> None:
    with simulate(1, capacity=capacity) as sims:
        graph = line()
        result = run(graph, train(epochs=4, batch_size=30, validation="val", accelerator="sim:0"))
        assert sims[0].peak <= capacity
        assert bool(unusual(result)) == (capacity < 60_000)
        same(graph, expected, within=1e-6)


def test_nothing_is_left_on_a_device_that_was_full(owned: Callable[..., int]) -> None:
    graph = line()
    ours = Experiment("e", graph, progress="none")
    gc.collect()
    gc.disable()
    try:
        with simulate(1, capacity=7_000) as sims:
            ours.run_phase(train(epochs=2, batch_size=30, accelerator="sim:0"))
            assert unusual(ours.last_run) and sims[0].used == owned(graph, "sim:0")
        with simulate(1, capacity=2_000) as sims:
            with pytest.raises(OutOfMemoryError):
                ours.run_phase(train(epochs=2, batch_size=30, accelerator="sim:0"))
            assert sims[0].used == owned(graph, "sim:0")
    finally:
        gc.enable()


def test_snapshots_are_given_up_before_a_phase_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots need memory themselves; a device that is large enough without them suffices."""

    def made() -> ModelGraph:
        return line(Sequential(Dense(90, dtype="float64"), BatchNorm(dtype="float64"), Dense(1, dtype="float64")))

    def fits(capacity: int) -> Any:
        with simulate(1, capacity=capacity):
            try:
                return run(made(), train(accelerator="sim:0", batch_size=4, epochs=2))
            except OutOfMemoryError:
                return None

    capacities = range(30_000, 70_000, 1_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochRecovery, "steps_begin", lambda self, losses: None)
        least = next(capacity for capacity in capacities if fits(capacity) is not None)
    result = fits(least)
    assert result is not None and told(result)[-1][2] == "snapshots are no longer taken, to save memory"


def test_snapshots_that_fill_the_memory_are_given_up_before_steps_get_smaller() -> None:
    """Parameters are large and activations small: whole steps fit, but not beside a snapshot of another step."""

    def made() -> ModelGraph:
        return line(Sequential(Dense(300, dtype="float64"), Dense(1, dtype="float64")))

    def phase() -> TrainPhase:
        return train(batch_size=4, epochs=2, residency="streamed", accelerator="sim:0")

    def fits(capacity: int) -> Any:
        with simulate(1, capacity=capacity):
            try:
                return run(made(), phase())
            except OutOfMemoryError:
                return None

    expected = made()
    with simulate(1):
        run(expected, phase())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochRecovery, "steps_begin", lambda self, losses: None)
        least = next(capacity for capacity in range(100_000, 300_000, 4_000) if fits(capacity) is not None)
    graph = made()
    with simulate(1, capacity=least + 4_000):
        result = run(graph, phase())
    assert told(result)[-1][2] == "snapshots are no longer taken, because whole steps do not fit next to them"
    assert not any("at once" in text for _, _, text in told(result))
    same(graph, expected, within=0.0)


def test_snapshots_are_given_up_only_for_steps_that_fit_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in micro-batches, between which gradients take memory: nothing ends that fits in smaller ones."""
    phase = train(batch_size=24, epochs=2, accelerator="sim:0", residency="resident")
    monkeypatch.setattr(oom_recovery, "_SNAPSHOT_SHARE", 1e-12)  # one an epoch, whatever the time

    def outcome(capacity: int) -> list[str] | None:
        with simulate(1, capacity=capacity):
            try:
                result = run(line(Sequential(Dense(300, dtype="float64"), Dense(1, dtype="float64"))), phase)
            except OutOfMemoryError:
                return None
        return [text for _, _, text in told(result)]

    capacities = range(100_000, 128_000, 2_500)
    outcomes = [outcome(capacity) for capacity in capacities]
    monkeypatch.setattr(oom_recovery.OutOfMemoryRecovery, "_gives_up_snapshots", lambda self, at_once: False)
    kept = [outcome(capacity) for capacity in capacities]
    assert any(texts and any("6 rows" in text for text in texts) for texts in kept)
    ended = [size for size, new, old in zip(capacities, outcomes, kept, strict=True) if old is not None and new is None]
    assert not ended


def test_snapshots_that_take_little_of_the_memory_are_kept(device: Callable[..., Device]) -> None:
    """A phase that ends has the values of the last one."""
    graph, plain = mixed(), mixed()
    run(plain, train(epochs=1))
    seen = device(0, after=8)
    with pytest.raises(OutOfMemoryError):
        run(graph, train(residency="resident"))
    same(graph, plain, within=0.0)
    assert len(seen.asked) > 8


# -- host memory, and failures that are told late ----------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_memory_error_of_numpy_is_recovered(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, plain = line(), line()
    run(plain, train())
    compute, count = ArrayProgram.forward_pullback, itertools.count()

    def full(self: ArrayProgram, *inputs: Any) -> Any:
        result = compute(self, *inputs)
        if next(count) == after:
            np.empty((1 << 45, 1 << 10))
        return result

    monkeypatch.setattr(ArrayProgram, "forward_pullback", full)
    result = run(graph, train())
    same(graph, plain, within=0.0)
    assert [text for _, _, text in told(result)] == [STREAMED]
    (event,) = [event.message for event in result.events if event.kind == "memory"]
    assert event.startswith("the data of t: memory ran out (not enough host memory: Unable to allocate ")


def test_an_array_that_host_memory_cannot_hold_is_a_named_error() -> None:
    huge = np.broadcast_to(np.float64(1.0), (1 << 45, 1 << 10))
    with pytest.raises(
        OutOfMemoryError, match=r"not enough memory for an array of \d+ bytes on cpu:0: Unable to alloc"
    ):
        NumpyBackend().from_host(huge, Place("cpu", 0))


def test_a_memory_error_of_an_evaluation_is_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = line()
    phase = EvalPhase("p", data="train", losses=MSE, outputs="net", batch_size=30)
    expected = run(graph, phase)
    to_host, count = NumpyBackend.to_host, itertools.count()

    def full(self: NumpyBackend, tensor: Any) -> Any:
        if next(count) == 1:
            raise MemoryError
        return to_host(self, tensor)

    monkeypatch.setattr(NumpyBackend, "to_host", full)
    result = run(graph, phase)
    np.testing.assert_array_equal(result.prediction("net"), expected.prediction("net"))
    assert "memory ran out (not enough host memory); rows are streamed" in unusual(result)[0].message


class Late:
    """A device that computes later than it is called: steps fail when they are waited for, and all after them too.

    Args:
        step: the one that fails, of all calls.
        reads: whether losses can be read nevertheless, as after a failed update.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, *, reads: bool = False) -> None:
        self.step, self.count, self.failed, self.restored = step, 0, False, 0
        compute, restore, to_host = ArrayProgram.train_steps, ArrayProgram.restore, NumpyBackend.to_host

        def train_steps(program: ArrayProgram, columns: Any, orders: Any, start: int, n: int, *more: Any) -> Any:
            self.failed |= self.count <= self.step < self.count + n
            self.count += n
            if self.failed:  # what is computed from values that are not there
                columns = [column * np.nan for column in columns]
            return compute(program, columns, orders, start, n, *more)

        def restored(program: ArrayProgram, snapshot: Any) -> None:
            self.failed, self.restored = False, self.restored + 1
            restore(program, snapshot)

        def wait(program: ArrayProgram) -> None:
            if self.failed:
                raise OutOfMemoryError(FULL.problem)

        def read(backend: NumpyBackend, tensor: Any) -> Any:
            if self.failed and not reads:
                raise OutOfMemoryError(FULL.problem)
            return to_host(backend, tensor)

        monkeypatch.setattr(ArrayProgram, "train_steps", train_steps)
        monkeypatch.setattr(ArrayProgram, "restore", restored)
        monkeypatch.setattr(ArrayProgram, "synchronize", wait)
        monkeypatch.setattr(NumpyBackend, "to_host", read)


@pytest.mark.parametrize("reads", [False, True], ids=["losses fail", "only the update failed"])
@pytest.mark.parametrize("share", [0.0, 1e9], ids=["a snapshot an epoch", "a snapshot a step"])
@pytest.mark.parametrize("step", [0, 4, 9])
def test_a_failure_that_is_told_late_goes_back_to_a_snapshot_that_is_good(
    step: int, share: float, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, plain = line(), line()
    expected = run(plain, train())
    monkeypatch.setattr(oom_recovery, "_SNAPSHOT_SHARE", share or 1e-12)
    late = Late(monkeypatch, step, reads=reads)
    result = run(graph, train())
    same(graph, plain, within=0.0)
    np.testing.assert_allclose(history(result), history(expected), rtol=1e-14)
    assert [text for _, _, text in told(result)] == [STREAMED] and late.restored == 1


def test_a_callback_that_fails_after_a_late_failure_leaves_the_values_of_the_snapshot(
    monkeypatch: pytest.MonkeyPatch, at: Callable[..., Callback]
) -> None:
    graph, plain = line(), line()
    run(plain, train(epochs=1))
    Late(monkeypatch, 8)

    def fail(run: Run) -> None:
        if (run.epoch, run.step) == (1, 3):
            raise ValueError("mine")

    monkeypatch.setattr(oom_recovery, "_SNAPSHOT_SHARE", 1e-12)
    with pytest.raises(ValueError, match="mine"):
        run(graph, train(callbacks=[at("step_end", fail)]))
    same(graph, plain, within=0.0)


def test_trials_are_not_made_where_they_could_end_the_process(
    device: Callable[..., Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArrayProgram, "raises_out_of_memory", False)
    seen = device(11, after=0)
    with pytest.raises(OutOfMemoryError, match=r"free now\)\. Hint: use a smaller batch or a smaller model, or set"):
        run(mixed(), train(residency="resident"))
    assert len(seen.asked) == 1


# -- what errors hold --------------------------------------------------------------------------------------------------


class Held:
    """Something large."""


class FullLoader:
    """Rows for which there is no room; keeps the error that it raised, as a framework may."""

    residency = "streamed"
    failure: OutOfMemoryError | None = None
    held: weakref.ref[Held] | None = None

    def chunks(self, epoch: int) -> Iterator[Any]:
        large = Held()
        self.held = weakref.ref(large)
        self.failure = OutOfMemoryError("the rows do not fit", available=f"{large}")
        raise self.failure
        yield

    def shrink(self) -> bool:
        return False


def report_of(pipeline: Any) -> OutOfMemoryReport:
    factory: Any = SimpleNamespace(plan=SimpleNamespace(assignments=()), nbytes=dict)
    return OutOfMemoryReport(part=train(), may_stream=True, learners=(), factory=factory, pipeline=pipeline)


@pytest.mark.parametrize("question", ["fits", "error"])
def test_rows_that_cannot_be_loaded_for_a_trial_do_not_fit_and_are_let_go(question: str) -> None:
    restored: list[str] = []
    pipeline = SimpleNamespace(stages=(), snapshot=lambda: "state", restore=restored.append)
    report, loader = report_of(pipeline), FullLoader()
    if question == "fits":
        assert report.fits(loader, 4) is False  # type: ignore[arg-type]
    else:
        error = report.error(FULL, 4, loader)  # type: ignore[arg-type]
        assert "use a smaller batch or a smaller model" in str(error) and restored == ["state"]
    assert loader.failure is not None and loader.held is not None
    assert loader.held() is None


def test_an_error_lets_go_of_what_its_causes_hold_before_the_report_is_made() -> None:
    """An exception that one of its own frames names would keep what that frame sees, until garbage is collected."""
    held: list[weakref.ref[Held]] = []

    def compute() -> None:
        large = Held()
        held.append(weakref.ref(large))
        try:
            raise RuntimeError("no room")
        except RuntimeError as inner:
            kept = inner
            raise OutOfMemoryError("the device has no room", available=f"{large}") from kept

    def report(error: OutOfMemoryError, n_rows: int, loader: Any) -> OutOfMemoryError:
        assert held[0]() is None and (error.__cause__, error.__traceback__) == (None, None)
        return OutOfMemoryError(f"{n_rows} rows", available="")

    made: Any = SimpleNamespace(error=report, factory=SimpleNamespace(batch_size=8))
    recovery = oom_recovery.OutOfMemoryRecovery(
        name="t",
        loader=FullLoader(),
        report=made,
        log_event=lambda *_, **__: None,  # type: ignore[arg-type]
    )
    gc.disable()
    try:
        with pytest.raises(OutOfMemoryError) as caught:
            compute()
        error = caught.value
        del caught
        assert str(recovery.final_error(error, 3)).startswith("3 rows")
    finally:
        gc.enable()


# -- snapshots ---------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(oom_recovery, "time", SimpleNamespace(perf_counter=made.perf_counter))
    yield made


def recovery_of(pipeline: Any, *, repeatable: bool) -> tuple[EpochRecovery, Any]:
    """The recovery of a run over a loader that may be able to continue at any step, and the run."""
    run = SimpleNamespace(step=0)
    room = SimpleNamespace(loader=SimpleNamespace(repeatable=repeatable))
    return EpochRecovery(run, pipeline, room, (), CallInProgress()), run  # type: ignore[arg-type]


@pytest.mark.parametrize(("cost", "step"), [(1.0, 0.1), (1.0, 1.0), (0.01, 1.0), (5.0, 7.0), (0.0, 1.0)])
def test_snapshots_take_at_most_a_small_share_of_the_time(cost: float, step: float, clock: Clock) -> None:
    class Copied:
        taken = 0

        def snapshot(self) -> int:
            self.taken += 1
            clock.now += cost
            return self.taken

        def restore(self, snapshot: int) -> None:
            assert snapshot == self.taken

        def synchronize(self) -> None:
            pass

    pipeline = Copied()
    recovery, run = recovery_of(pipeline, repeatable=True)
    recovery.steps_begin([])  # type: ignore[arg-type]
    for run.step in range(1, 5001):
        clock.now += step
        recovery.after_call([None] * run.step)  # type: ignore[arg-type]
    assert pipeline.taken >= 1 and (pipeline.taken - 1) * cost <= 0.002 * clock.now
    if cost and step * 5000 > 1500 * cost:
        assert (pipeline.taken - 1) * cost >= 0.001 * clock.now - cost, "nor much less"


def test_a_loader_that_cannot_repeat_has_a_snapshot_at_the_start_only(clock: Clock) -> None:
    taken = []
    pipeline = SimpleNamespace(
        snapshot=lambda: taken.append(clock.now), restore=lambda snapshot: None, synchronize=lambda: None
    )
    recovery, run = recovery_of(pipeline, repeatable=False)
    recovery.steps_begin([])  # type: ignore[arg-type]
    for run.step in range(100):
        clock.now += 1.0
        recovery.after_call([])  # type: ignore[arg-type]
    assert taken == [0.0]
    kept: list[tuple[int, int]] = []
    losses: Any = SimpleNamespace(truncate=lambda *position: kept.append(position))
    assert recovery.restore(losses) == 0 and kept == [(0, 0)]
    recovery.ended()
    assert recovery.restore(losses) is None


# -- sizes of parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", range(2, 130))
def test_microbatches_shrink_and_divide_the_batch_if_possible(batch: int) -> None:
    piece, sizes = batch, []
    while piece > 1:
        now = smaller(batch, piece)
        assert piece // 4 <= now <= -(-piece // 2)
        divides = [size for size in range(max(piece // 4, 1), -(-piece // 2) + 1) if batch % size == 0]
        assert now == (max(divides) if divides else -(-piece // 2))
        piece = now
        sizes.append(piece)
    assert sizes[-1] == 1 and len(sizes) <= 8
