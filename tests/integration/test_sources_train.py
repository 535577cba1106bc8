"""Data sources of every framework train graphs of every framework like rows in memory, and leave no processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import SourceError
from anyaccel.registry import registry

ROWS, SIZE = 50, 8
_DRAW = np.random.default_rng(0)
X = _DRAW.normal(size=(ROWS, 3)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5]], "float32") + 0.3
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, "x", "y")
MSE = aa.AppliedLoss("mse", on="net")


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 20.0  # a loader that is busy with its workers ends its thread when it can
    while "anyaccel-prefetch" in (names := [each.name for each in threading.enumerate()]):
        assert time.monotonic() < deadline, names
        time.sleep(0.02)


def dataset() -> Any:
    torch = pytest.importorskip("torch")
    return torch.utils.data.TensorDataset(torch.from_numpy(X.copy()), torch.from_numpy(Y.copy()))


def loader(of: Any = None, **settings: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.utils.data.DataLoader(of or dataset(), **{"batch_size": SIZE, **settings})


def tf_data() -> Any:
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(SIZE).prefetch(1)


def jax_arrays() -> Any:
    jnp = pytest.importorskip("jax.numpy")
    return lambda: ((jnp.asarray(X[at : at + SIZE]), jnp.asarray(Y[at : at + SIZE])) for at in range(0, ROWS, SIZE))


def hugging_face() -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict({"x": X, "y": Y}).with_format("numpy")


def hugging_face_stream() -> Any:
    return hugging_face().to_iterable_dataset().batch(SIZE)


GIVEN: dict[str, Callable[[], Any]] = {
    "torch DataLoader": loader,
    "torch Dataset": dataset,
    "tf.data": tf_data,
    "JAX arrays": jax_arrays,
    "Hugging Face, read by numbers": lambda: aa.MapSource("data", hugging_face(), features="x", target="y"),
    "Hugging Face, streamed": hugging_face_stream,
    "generator": lambda: lambda: ((X[at : at + SIZE], Y[at : at + SIZE]) for at in range(0, ROWS, SIZE)),
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes that are not forked import this module by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))


def graph_of(framework: str, dtype: str = "float32") -> aa.ModelGraph:
    if framework not in registry().frameworks:
        pytest.skip(f"needs the plugin of {framework}")
    model = registry().computing(framework).models()["SequentialMLP"]((1,), 2, 4, "tanh", dtype=dtype)
    return aa.ModelGraph([aa.ModelNode("net", model, DATA.reference())], aa.Optimizer("adam", lr=0.05), seed=3)


def trained(graph: aa.ModelGraph, data: Any, **settings: Any) -> Any:
    settings = {"sampler": aa.SimpleSampler(SIZE), "epochs": 3, "losses": MSE, **settings}
    return aa.Experiment("e", graph, progress="none").run_phase(aa.TrainPhase("t", data=data, **settings))


@pytest.mark.shared
@pytest.mark.parametrize("kind", GIVEN)
def test_any_source_trains_every_framework(framework: str, kind: str) -> None:
    expected = trained(graph_of(framework), DATA)
    actual = trained(graph_of(framework), GIVEN[kind]())
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5)
    assert [each.steps for each in actual.epochs] == [7, 7, 7]


@pytest.mark.shared
@pytest.mark.parametrize("settings", [{"accumulate": 3}, {"compile": "steps"}, {"accumulate": 2, "compile": "steps"}])
def test_training_settings_apply_to_sources(framework: str, settings: dict[str, Any]) -> None:
    expected = trained(graph_of(framework), DATA, **settings)
    made = [(X[at : at + SIZE], Y[at : at + SIZE]) for at in range(0, ROWS, SIZE)]
    actual = trained(graph_of(framework), made, **settings)
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5)
    assert [each.steps for each in actual.epochs] == [each.steps for each in expected.epochs]


@pytest.mark.shared
def test_validation_and_evaluation(framework: str) -> None:
    validation = aa.EvalPhase("v", data=loader(), metrics=["r2"])
    graph = graph_of(framework)
    actual = trained(graph, loader(), validation=validation)
    last = aa.Experiment("e", graph, progress="none").run_phase(
        aa.EvalPhase("v", data=dataset(), losses=MSE, metrics=["r2"])
    )
    np.testing.assert_allclose(actual.epochs[-1].validation["loss"], last.loss, rtol=1e-5)
    np.testing.assert_allclose(actual.epochs[-1].validation["r2"], last.metrics["r2"], rtol=1e-5)


def test_one_source_feeds_two_frameworks(three: tuple[str, str, str]) -> None:
    def losses(data: Any) -> dict[str, list[float]]:
        nodes = [
            aa.ModelNode(name, registry().computing(name).models()["SequentialMLP"]((1,), 1, 4), DATA.reference())
            for name in three
        ]
        on = [aa.AppliedLoss("mse", on=name) for name in three]
        graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.05), seed=3)
        results = trained(graph, data, losses=on)
        return {name: list(results.losses(name)) for name in three}

    expected, actual = losses(DATA), losses(loader())
    for name in three:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5)


def workers_end() -> bool:
    gc.collect()
    end = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.05)
    return not multiprocessing.active_children()


class Failing:
    """A data set one row of which cannot be read; at the top of a module, for the worker processes."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        if row == self.row:
            raise ValueError("unreadable row")
        return X[row], Y[row]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_loader_with_workers(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    expected = trained(graph_of("torch"), DATA, epochs=2)
    actual = trained(graph_of("torch"), loader(num_workers=1, multiprocessing_context=method), epochs=2)
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-6)
    assert workers_end()


def test_an_error_in_a_worker_is_reported_and_workers_end() -> None:
    given = loader(Failing(20), num_workers=1, multiprocessing_context="spawn")
    experiment = aa.Experiment("e", graph_of("torch"), progress="none")
    with pytest.raises(SourceError, match=r"batch 2 of source 'data' in epoch 0 .*ValueError: unreadable row"):
        experiment.run_phase(aa.TrainPhase("t", data=given, losses=MSE))
    assert workers_end()
    assert len(trained(experiment.graph, loader(), epochs=1).epochs) == 1


class Killed:
    """A data set whose reading kills the process, as the system does where memory runs out."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        if row >= 3 * SIZE:
            os.kill(os.getpid(), signal.SIGKILL)
        return X[row], Y[row]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_worker_that_is_killed_is_reported_with_source_and_batch(n_workers: int) -> None:
    given = loader(Killed(), num_workers=n_workers, multiprocessing_context="forkserver")
    experiment = aa.Experiment("e", graph_of("torch"), progress="none")
    message = (  # as torch notices it first
        r"batch [0-3] of source 'data' in epoch 0 \(both counted from 0\) did not arrive: "
        r"(RuntimeError: DataLoader worker \(pid.*|Connection.*|EOFError.*)\. "
        r"Hint: the worker was killed, .*num_workers=0 to read in this process"
    )
    with pytest.raises(SourceError, match=message) as told:
        experiment.run_phase(aa.TrainPhase("t", data=given, losses=MSE))
    assert told.value.__cause__ is not None and workers_end()
    assert len(trained(experiment.graph, loader(), epochs=1).epochs) == 1


def test_workers_end_when_a_run_is_interrupted() -> None:
    class Leave(aa.Callback):
        def step_end(self, run: Any) -> None:
            raise KeyboardInterrupt

    given = loader(num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(KeyboardInterrupt):
        trained(graph_of("torch"), given, callbacks=[Leave()])
    assert workers_end()


class Slow:
    """A data set whose workers are still busy when the loop ends."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.05)
        return X[row], Y[row]


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself signals there")
@pytest.mark.parametrize("second", ["breaks off a step", "comes while workers end"])
def test_workers_end_after_a_second_ctrl_c(second: str, ctrl_c: Callable[[], None]) -> None:
    torch, sent = pytest.importorskip("torch"), threading.Event()

    class Twice(aa.Callback):
        def step_end(self, run: Any) -> None:
            if second == "comes while workers end":
                timer.start()
                ctrl_c()
            interrupted.append(run.step)

    class Net(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            if interrupted and not sent.is_set():
                ctrl_c()  # waits for the end of the step
                time.sleep(0.5)
                sent.set()
                ctrl_c()
            return super().forward(x)

    interrupted, timer = list[int](), threading.Timer(0.1, lambda: (sent.set(), ctrl_c()))
    given = loader(Slow(), num_workers=1, multiprocessing_context="forkserver")
    graph = aa.ModelGraph([aa.ModelNode("net", Net(3, 1), DATA.reference())], aa.Optimizer("sgd", lr=0.01))
    with pytest.raises(KeyboardInterrupt):
        try:
            trained(graph, given, callbacks=[Twice()], compile="off")
        finally:
            if timer.ident is not None:
                timer.join()
    assert sent.is_set() and workers_end()
    assert len(trained(graph, loader(), epochs=1, compile="off").epochs) == 1


def test_workers_that_stay_beside_tf_data() -> None:
    """Others start anew in every epoch, and import the program again."""
    given = loader(num_workers=1, multiprocessing_context="forkserver", persistent_workers=True)
    pids: set[int] = set()

    class Workers(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            pids.update(each.pid for each in multiprocessing.active_children() if each.pid)

    expected = trained(graph_of("torch"), DATA)
    validation = aa.EvalPhase("v", data=tf_data(), losses=MSE)
    actual = trained(graph_of("torch"), given, validation=validation, callbacks=[Workers()])
    np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5)
    np.testing.assert_allclose(trained(graph_of("torch"), tf_data()).loss, expected.loss, rtol=1e-5)
    assert len(pids) == 1
    del given
    assert workers_end()


@pytest.mark.across
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_forks_beside_threads_are_refused() -> None:
    pytest.importorskip("jax")
    if registry().find("jax") is None or "jax" not in sys.modules:
        pytest.skip("needs the plugin of JAX")
    given = loader(num_workers=1, multiprocessing_context="fork")
    for phase in (
        aa.TrainPhase("t", data=given, losses=MSE),
        aa.TrainPhase("t", data=DATA, losses=MSE, validation=aa.EvalPhase("v", data=given)),
    ):
        with pytest.raises(SourceError, match=r"would be forked while these run: .*jax.*forkserver"):
            aa.Experiment("e", graph_of("torch"), progress="none").run_phase(phase)


def test_a_shuffled_loader_restarts_after_running_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch begins again with an order of its own, and every row is taken once."""
    from anyaccel.adapter import ArrayProgram
    from anyaccel.errors import OutOfMemoryError

    graph, failed, plain = graph_of("torch"), [0], ArrayProgram.forward_pullback

    def guarded(self: Any, inputs: Any) -> Any:
        failed[0] += 1
        if failed[0] == 4:
            raise OutOfMemoryError("no room")
        return plain(self, inputs)

    monkeypatch.setattr(ArrayProgram, "forward_pullback", guarded)
    twin = aa.ModelNode("two", registry().computing("torch").models()["SequentialMLP"]((1,), 1, 4), DATA.reference())
    graph.add_node(twin)
    results = trained(graph, loader(shuffle=True), epochs=2)
    assert [each.steps for each in results.epochs] == [7, 7]
