"""Residency: decided from measured memory, logged as an event; nothing is left behind however a phase ends."""

from __future__ import annotations

import _thread
import gc
import importlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet, IterableSource
from anyaccel.errors import ConfigError, OutOfMemoryError, PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import Dense, NumpyBackend, SequentialMLP, simulate
from anyaccel.phases import EvalPhase, Phase, TrainPhase
from anyaccel.phases.loading.epoch_plan import EpochPlan, EpochSteps, uniform_range
from anyaccel.phases.loading.streaming import StreamingLoader
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")
ROWS, WIDTH = 1000, 30
NBYTES = ROWS * (WIDTH + 1) * 4


def table() -> FeatureSet:
    """124,000 bytes of features and targets; the split `train` is all."""
    draw = np.random.default_rng(0)
    columns = {name: draw.normal(size=(ROWS, k)).astype("float32") for name, k in (("x", WIDTH), ("y", 1))}
    made = FeatureSet.from_dict("data", columns, ["x"], ["y"])
    made.add_splits({"train": np.arange(ROWS)})
    return made


def graph() -> ModelGraph:
    node = ModelNode("net", SequentialMLP((1,), 2, 8, "tanh"), table().reference(["x"], ["y"]))
    return ModelGraph([node], Optimizer("adam", lr=0.01), seed=3)


def phase(**settings: Any) -> TrainPhase:
    return TrainPhase(
        "t", **{"data": "train", "losses": MSE, "batch_size": 20, "epochs": 2, "accelerator": "sim:0", **settings}
    )


def run(made: ModelGraph, of: Phase) -> Any:
    return Experiment("e", made, progress="none").run_phase(of)


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    """The state after training with room for everything."""
    made = graph()
    run(made, phase(accelerator=None))
    return made.state()


# -- the choice --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1.0, 0.5, 0.25])
def test_data_larger_than_the_device_are_streamed(part: float, expected: dict[str, np.ndarray]) -> None:
    capacity = int(NBYTES * part)
    with simulate(1, capacity=capacity) as sims:
        made = graph()
        result = run(made, phase())
        assert 0 < sims[0].peak <= capacity
        state = made.state()
    assert [(event.kind, event.epoch, event.step) for event in result.events] == [("residency", -1, -1)]
    assert result.events[0].message.startswith(
        "the data of t: streamed, because they take 121.1 KiB and training adds 3.0 KiB, more than 80% of the "
    )
    assert result.events[0].message.endswith(" free on sim:0 (numpy)")
    assert all(np.array_equal(state[name], expected[name]) for name in expected)


def test_data_that_fit_are_resident(expected: dict[str, np.ndarray]) -> None:
    with simulate(1, capacity=NBYTES * 2) as sims:
        made = graph()
        result = run(made, phase())
        assert sims[0].transfers.into.nbytes < NBYTES * 2
        state = made.state()
    (event,) = result.events
    assert (event.kind, event.epoch, event.verbose) == ("residency", -1, True)
    start, end = (
        "the data of t: resident, because they take 121.1 KiB and training adds 3.0 KiB, within 80% of the ",
        " KiB free on ",
    )
    assert event.message.startswith(start) and event.message.endswith(end + "sim:0 (numpy)")
    assert 240 < float(event.message.removeprefix(start).partition(" KiB")[0]) <= 2 * NBYTES / 1024
    assert all(np.array_equal(state[name], expected[name]) for name in expected)


def test_residency_is_tried_if_free_memory_is_unknown() -> None:
    with simulate(1) as sims:
        (event,) = run(graph(), phase()).events
        assert sims[0].transfers.into.nbytes < NBYTES * 2
    assert event.verbose and event.message == (
        "the data of t: resident, because they take 121.1 KiB and training adds 3.0 KiB on sim:0 (numpy), "
        "whose free memory is unknown"
    )


def test_one_event_names_all_devices() -> None:
    rows = table().reference(["x"], ["y"])
    nodes = [
        ModelNode(name, SequentialMLP((1,), 2, 8), rows, accelerator=f"sim:{index}")
        for index, name in enumerate(("net", "other"))
    ]
    with simulate(2, capacity=NBYTES * 2):
        (event,) = run(
            ModelGraph(nodes, "sgd"), phase(accelerator=None, losses=[MSE, AppliedLoss("mse", "other")])
        ).events
    first, _, second = event.message.partition("; ")
    assert first.startswith("the data of t: resident, because they take 121.1 KiB and training adds ")
    assert first.endswith(" KiB free on sim:0 (numpy)") and second.endswith(" KiB free on sim:1 (numpy)")
    assert second.startswith("121.1 KiB and training adds ")


def test_the_event_names_memory_left_after_earlier_rows() -> None:
    """The rows of a validation share the memory with those of the phase."""
    with simulate(1, capacity=NBYTES * 10):
        result = run(graph(), phase(validation=EvalPhase("check", data="train", batch_size=50)))
    free = [float(event.message.rpartition(" of the ")[2].split()[0]) for event in result.events]
    units = [event.message.rpartition(" of the ")[2].split()[1] for event in result.events]
    assert [event.message.partition(",")[0] for event in result.events] == [
        "the data of t: resident",
        "the data of check: resident",
    ]
    assert units == ["MiB", "MiB"] and free[0] - free[1] == pytest.approx(NBYTES / 2**20, abs=0.11)


def test_a_source_has_no_residency_event() -> None:
    batch = {"x": np.zeros((4, WIDTH), "float32"), "y": np.zeros((4, 1), "float32")}
    source = IterableSource("data", lambda: iter([batch]), features="x", target="y")
    with simulate(1, capacity=NBYTES * 10):
        of = TrainPhase("t", data=source, losses=MSE, epochs=1, accelerator="sim:0")
        result = run(graph(), of)
    assert [event for event in result.events if event.kind == "residency"] == []


def test_there_is_no_event_for_residency_resident() -> None:
    with simulate(1, capacity=NBYTES * 10):
        assert run(graph(), phase(residency="resident")).events == ()


def test_gradients_and_optimizer_state_count() -> None:
    """Room for the data, but not for two moments of each parameter as well."""
    for more, residency in ((1000, "streamed"), (8000, "resident")):
        with simulate(1, capacity=int(NBYTES / 0.8) + more):
            (event,) = run(graph(), phase()).events
        assert event.message.startswith(f"the data of t: {residency}, because ") and event.verbose == (
            residency == "resident"
        )


def test_training_data_are_resident_before_validation_data() -> None:
    """The training data fit; those of the validation do not fit as well."""
    with simulate(1, capacity=int(NBYTES * 1.6)):
        result = run(graph(), phase(validation=EvalPhase("train", data="train", batch_size=50)))
    assert [event.message.partition(",")[0] for event in result.events] == [
        "the data of t: resident",
        "the data of train: streamed",
    ]


def test_residency_resident_is_an_error_if_data_do_not_fit(owned: Callable[..., int]) -> None:
    made = graph()
    with simulate(1, capacity=NBYTES // 4) as sims:
        with pytest.raises(OutOfMemoryError) as caught:
            run(made, phase(residency="resident"))
        assert str(caught.value) == (
            "the data of t: not enough memory for 120000 bytes on sim:0; 29972 bytes free of 31000; "
            "all rows take 121.1 KiB on sim:0 (numpy). Hint: write residency='auto', so that rows that do not fit are "
            "streamed."
        )
        assert sims[0].used == owned(made, "sim:0")


def test_residency_streamed_streams(expected: dict[str, np.ndarray]) -> None:
    with simulate(1, capacity=NBYTES * 10) as sims:
        made = graph()
        result = run(made, phase(residency="streamed"))
        assert result.events == () and sims[0].transfers.into.nbytes > NBYTES * 2
        state = made.state()
    assert all(np.array_equal(state[name], expected[name]) for name in expected)


def test_evaluations_are_streamed_too() -> None:
    phase = EvalPhase(
        "p",
        data="train",
        losses=MSE,
        metrics=[Metric("mae", on="net")],
        outputs="net",
        batch_size=50,
        accelerator="sim:0",
    )
    with simulate(1, capacity=NBYTES // 4) as sims:
        result = run(graph(), phase)
        assert sims[0].peak <= NBYTES // 4
    assert [event.kind for event in result.events] == ["residency"]


def test_blocks_take_a_share_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a block may be otherwise."""
    steps = []
    fill = StreamingLoader.fill

    def watch(self: StreamingLoader, block: Any, buffers: Any) -> Any:
        steps.append(sum(element.n_steps for element in block.steps))
        return fill(self, block, buffers)

    monkeypatch.setattr(StreamingLoader, "fill", watch)
    with simulate(1, capacity=NBYTES // 4):
        run(graph(), phase(epochs=1))
    most = (NBYTES // 4) / 12 / (20 * 31 * 4)
    assert sum(steps) == 50 and 1 <= max(steps) <= most


# -- what is left ------------------------------------------------------------------------------------------------------


class Oops(Exception):
    """Raised by tests."""


def handles() -> int:
    """Number of open files, where the system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.fixture
def small() -> Iterator[Any]:
    """A device for a quarter of the data."""
    with simulate(1, capacity=NBYTES // 4) as sims:
        yield sims[0]


def fails(monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException, after: int = 6) -> None:
    """Make a function raise when it is called for the `after`th time."""
    left = [after]

    def broken(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **settings: Any) -> Any:
            if place != "step" or settings.get("train"):
                left[0] -= 1
                if left[0] == 0:
                    del self, args, settings  # what the frame of a test holds is not ours to let go of
                    raise error
            return method(self, *args, **settings)

        return call

    owner, name = {
        "copy_async": (NumpyBackend, "copy_async"),
        "gather": (StreamingLoader, "fill"),
        "step": (Dense, "apply"),
        "staging_buffer": (NumpyBackend, "staging_buffer"),
    }[place]
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))


@pytest.mark.parametrize(
    "error", [Oops("no"), KeyboardInterrupt("stop"), SystemExit(3)], ids=lambda item: type(item).__name__
)
@pytest.mark.parametrize("place", ["copy_async", "gather", "step"])
def test_nothing_is_left_of_a_streamed_phase_that_fails(
    place: str, error: BaseException, small: Any, owned: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graph()
    ours = Experiment("e", made, progress="none")
    ours.run_phase(phase())
    gc.collect()
    before = handles()
    fails(monkeypatch, place, error)
    gc.disable()
    try:
        with pytest.raises(type(error)) as caught:
            ours.run_phase(phase())
        assert caught.value is error and ours.last_run.error is error
        assert small.used == owned(made, "sim:0")
    finally:
        gc.enable()
    assert handles() == before
    monkeypatch.undo()
    assert len(ours.run_phase(phase()).epochs) == 2


def test_a_staging_buffer_that_cannot_be_allocated_ends_the_phase(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "staging_buffer", Oops("no page-locked memory"), after=2)
    with pytest.raises(Oops, match="page-locked"):
        run(graph(), phase())


@pytest.mark.parametrize("moment", ["step_end", "epoch_end", "epoch_start"])
def test_nothing_is_left_of_a_streamed_phase_that_is_stopped(
    moment: str, small: Any, at: Callable[..., Any], owned: Callable[..., int]
) -> None:
    def stop(run: Any) -> None:
        if run.step in (0, 7, 50):
            run.stop("enough")

    made = graph()
    gc.collect()
    gc.disable()
    try:
        result = run(made, phase(callbacks=[at(moment, stop)], validation="train"))
        assert result.stop_reason == "enough"
        del result
        assert small.used == owned(made, "sim:0")
    finally:
        gc.enable()


@pytest.mark.parametrize("residency", ["auto", "streamed"])
def test_nothing_is_left_of_a_streamed_phase_that_ends_well(
    residency: str, small: Any, owned: Callable[..., int]
) -> None:
    made = graph()
    ours = Experiment("e", made, progress="none")
    gc.collect()
    gc.disable()
    try:
        ours.run_phase(phase(residency=residency, validation="train"))
        assert small.used == owned(made, "sim:0")
        ours.run_phase(
            EvalPhase("e", data="train", losses=MSE, accelerator="sim:0", residency=residency, batch_size=50)
        )
        assert small.used == owned(made, "sim:0")
    finally:
        gc.enable()


def test_an_interrupt_while_waiting_for_a_block_ends_the_phase(
    small: Any, owned: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the generator is blocked for long; its thread ends when it returns."""
    fill, go, calls = StreamingLoader.fill, threading.Event(), itertools.count()

    def slow(self: StreamingLoader, block: Any, buffers: Any) -> Any:
        if next(calls) == 4:
            timer.start()
            go.wait(60)
        return fill(self, block, buffers)

    monkeypatch.setattr(StreamingLoader, "fill", slow)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    made = graph()
    ours = Experiment("e", made, progress="none")
    with pytest.raises(KeyboardInterrupt):
        ours.run_phase(phase())
    assert not go.is_set() and made.progress == {} and ours.last_run.error is not None
    go.set()
    timer.join()
    for thread in threading.enumerate():
        if thread.name == "anyaccel-prefetch":
            thread.join(30)
    gc.collect()
    assert small.used == owned(made, "sim:0")
    assert len(ours.run_phase(phase()).epochs) == 2


def test_a_slow_thread_does_not_write_to_reused_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("anyaccel.phases.loading.prefetch"), "JOIN_SECONDS", 0.01)
    columns = Experiment("e", graph(), progress="none").plan(phase(accelerator=None)).columns
    arrays = {item.name: np.arange(40, dtype="float32").reshape(40, 1) for item in columns}
    go, seen = threading.Event(), []

    class Slow(StreamingLoader):
        def fill(self, block: Any, buffers: Any) -> Any:
            seen.append({name: id(buffer) for name, buffer in buffers.items()})
            if len(seen) == 2:
                go.wait(60)
            return super().fill(block, buffers)

    class Backwards(EpochPlan):
        n_steps, batch_size, splittable = 10, 4, False

        def epoch(self, number: int) -> EpochSteps:
            return EpochSteps((uniform_range(("data",), 0, 10, 4),), {("data", ""): np.arange(40)[::-1]})

    loader = Slow(columns, arrays, Backwards(), 2)
    with closing(loader.chunks(0)) as chunks:
        next(chunks)
    slow = next(thread for thread in threading.enumerate() if thread.name == "anyaccel-prefetch")
    result = []
    with closing(loader.chunks(1)) as chunks:
        for chunk in chunks:
            result.append({name: np.array(column.rows) for name, column in chunk.columns.items()})
    assert slow.is_alive()
    go.set()
    slow.join(30)
    for name in arrays:
        np.testing.assert_array_equal(np.concatenate([part_[name] for part_ in result]).ravel(), np.arange(40)[::-1])
        assert not {entry[name] for entry in seen[:2]} & {member[name] for member in seen[2:7]}


def test_buffers_are_made_once_for_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [0]
    buffer = NumpyBackend.staging_buffer

    def watch(self: Any, *args: Any) -> Any:
        count[0] += 1
        return buffer(self, *args)

    monkeypatch.setattr(NumpyBackend, "staging_buffer", watch)
    run(graph(), phase(residency="streamed", epochs=5, accelerator=None))
    assert count[0] == 2 * 2  # two columns, two slots


# -- settings ----------------------------------------------------------------------------------------------------------

KINDS = {
    "train": lambda **more: TrainPhase("p", data="train", losses=MSE, **more),
    "eval": lambda **more: EvalPhase("p", data="train", **more),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "given", "remedy"),
    [
        ("compile", "fast", "use one of these"),
        ("compile", "step", "did you mean 'steps'?"),
        ("compile", True, "write compile='steps', or leave it out"),
        ("compile", ["auto"], "did you mean 'auto'?"),
        ("residency", "gpu", "use one of these"),
        ("residency", "stream", "did you mean 'streamed'?"),
        ("residency", None, "use one of these"),
    ],
)
def test_unknown_settings_values_are_refused(kind: str, name: str, given: Any, remedy: str) -> None:
    there = {"compile": "'auto', 'off', 'steps'", "residency": "'auto', 'resident', 'streamed'"}[name]
    with pytest.raises(PhaseError) as caught:
        KINDS[kind](**{name: given})
    text = f"phase 'p': unknown {name}={given!r}. Available: {there}. Hint: {remedy}"
    assert str(caught.value) == (text if text.endswith("?") else f"{text}.")


def test_an_unknown_microbatching_is_refused() -> None:
    with pytest.raises(PhaseError) as caught:
        KINDS["train"](microbatching="maybe")
    assert str(caught.value) == (
        "phase 'p': unknown microbatching='maybe'. Available: 'exact', 'approximate'. Hint: use one of these."
    )
    with pytest.raises(PhaseError, match=r"Phase has no setting 'microbatching'\. Available: "):
        KINDS["eval"](microbatching="exact")


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_in_the_configuration(kind: str) -> None:
    given = {"compile": "steps", "residency": "streamed"}
    if kind == "train":
        given |= {"accumulate": 3, "microbatching": "approximate"}  # type: ignore[dict-item]
    config = KINDS[kind](**given).get_config()
    again = Phase.from_config(config)
    assert {name: config[name] for name in given} == {name: getattr(again, name) for name in given} == given
    plain = KINDS[kind]().get_config()
    assert (plain["compile"], plain["residency"]) == ("auto", "auto")
    older = {
        name: value
        for name, value in plain.items()
        if name not in ("compile", "residency", "accumulate", "microbatching")
    }
    assert Phase.from_config(older).get_config() == plain


def test_a_configuration_with_an_unknown_value_is_refused() -> None:
    config = KINDS["eval"]().get_config()
    with pytest.raises(PhaseError, match=r"phase 'p': unknown residency='gpu'\. Available"):
        Phase.from_config({**config, "residency": "gpu"})
    with pytest.raises(ConfigError, match=r"EvalPhase has no setting 'residence'\..* Hint: did you mean 'residency'"):
        Phase.from_config({**config, "residence": "auto"})
