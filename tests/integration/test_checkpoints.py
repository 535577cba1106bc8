"""Runs of each framework that are broken off within an epoch go on from their checkpoint to the bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"


def torch_model() -> Any:
    """Layers with dropout and batch normalization."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("anyaccel_torch")
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


def flax_model() -> Any:
    """The same in Flax."""
    nnx = pytest.importorskip("flax.nnx")
    pytest.importorskip("anyaccel_jax")
    rngs = nnx.Rngs(0)
    return nnx.Sequential(
        nnx.Linear(4, 8, rngs=rngs),
        nnx.BatchNorm(8, rngs=rngs),
        nnx.relu,
        nnx.Dropout(0.3, rngs=rngs),
        nnx.Linear(8, 1, rngs=rngs),
    )


def keras_model() -> Any:
    """The same in Keras on TensorFlow."""
    pytest.importorskip("anyaccel_tensorflow")
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras computes with another framework in this process")
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )


MODELS: dict[str, Callable[[], Any]] = {"torch": torch_model, "jax": flax_model, "tensorflow": keras_model}


def table() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] - x[:, 1:2]}, ["x"], ["y"])
    data.split_random({"train": 0.8, "val": 0.2}, seed=0)
    return data


class BreakOff(aa.Callback):
    """Ctrl-C after so many steps."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step_end(self, run: Any) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def phase(folder: Path | None, at: int, **settings: Any) -> aa.TrainPhase:
    stopping = aa.EarlyStopping("val_loss", patience=50, restore_best=True)
    return aa.TrainPhase(
        "train",
        data="train",
        losses=[aa.AppliedLoss("mse")],
        batch_size=16,
        epochs=3,
        validation="val",
        checkpoint=None if folder is None else aa.Checkpoint(folder, every=4),
        callbacks=[BreakOff(at), stopping],
        **settings,
    )


def run(graph: aa.ModelGraph, *args: Any, **settings: Any) -> Any:
    resume = "never" if args[0] is None else "auto"
    return aa.Experiment(graph, progress="none").run_phase(phase(*args, **settings), resume=resume)


def assert_goes_on(make: Callable[[], aa.ModelGraph], folder: Path, ats: tuple[int, ...], **settings: Any) -> None:
    whole = make()
    expected = run(whole, None, -1, **settings)
    for at in ats:
        with pytest.raises(KeyboardInterrupt):
            run(make(), folder / str(at), at, **settings)
        again = make()
        results = run(again, folder / str(at), -1, **settings)
        np.testing.assert_array_equal(results.loss, expected.loss)
        np.testing.assert_array_equal(results.figure("val_loss"), expected.figure("val_loss"))
        state = whole.state()
        for name, array in again.state().items():
            np.testing.assert_array_equal(array, state[name], err_msg=name)


@pytest.mark.parametrize(
    ("kind", "residency"),
    [
        *(("torch", "resident"), ("torch", "streamed"), ("tensorflow", "resident"), ("jax", "streamed")),
        *(pytest.param(*pair, marks=pytest.mark.whole) for pair in (("jax", "resident"), ("tensorflow", "streamed"))),
    ],
)
def test_a_run_that_was_broken_off_goes_on_to_the_bit(kind: str, residency: str, tmp_path: Path) -> None:
    """Dropout, batch statistics, Adam and the best epoch among what goes on; after one step, and in a later epoch."""

    def make() -> aa.ModelGraph:
        return aa.ModelGraph([aa.ModelNode("net", MODELS[kind](), table().reference())], "adam", seed=1)

    assert_goes_on(make, tmp_path, (1, 9), compile="off", residency=residency)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", MODELS if FULL else ("torch", "tensorflow"))
def test_a_loss_scale_goes_on_to_the_bit(kind: str, tmp_path: Path) -> None:
    """It has grown and shrunk before, and the steps since are counted; dropout goes on as well."""
    scales: list[Any] = []

    class Scales(aa.Callback):
        def step_end(self, run: Any) -> None:
            scales.append(run.loss_scale)

    def training(at: int) -> aa.TrainPhase:
        given = phase(tmp_path if at else None, at, compile="off", precision="fp16-mixed", loss_scale=scale)
        given.callbacks = (Scales(), *given.callbacks)  # before the one that breaks it off
        return given

    def make() -> aa.ModelGraph:
        return aa.ModelGraph([aa.ModelNode("net", MODELS[kind](), table().reference())], "adam", seed=1)

    scale = aa.LossScale(initial=2.0**22, growth_interval=4)
    whole, again = make(), make()
    expected = aa.Experiment(whole, progress="none").run_phase(training(0))
    heard = scales.copy()
    pairs = list(pairwise(heard))
    assert any(b.scale < a.scale for a, b in pairs) and any(b.scale > a.scale for a, b in pairs)
    at = next(n for n, each in enumerate(heard, 1) if n > 6 and each.good_steps and each.skipped)
    scales.clear()
    with pytest.raises(KeyboardInterrupt):
        aa.Experiment(make(), progress="none").run_phase(training(at), resume="auto")
    done = len(scales)
    results = aa.Experiment(again, progress="none").run_phase(training(-1), resume="auto")
    assert scales[:done] == heard[:at] and scales[done:] == heard[at:]
    np.testing.assert_array_equal(results.loss, expected.loss)
    state = whole.state()
    for name, array in again.state().items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)


class Noisy:
    """A data set whose items have noise of torch's global generator."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        torch = pytest.importorskip("torch")
        x = torch.full((4,), index / 96)
        return x + torch.randn(4), x[:1]


def test_what_a_data_set_draws_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Steps before the checkpoint are read again, so that those after it get the noise that they would have had."""

    def source() -> aa.MapSource:
        return aa.MapSource("data", Noisy(), features="x", target="y")

    def own(at: int, folder: Path | None = None) -> Any:
        graph = aa.ModelGraph([aa.ModelNode("net", torch_model(), source().example.reference())], "adam", seed=1)
        settings: Any = {"checkpoint": folder, "callbacks": [BreakOff(at)], "compile": "off"}
        losses = [aa.AppliedLoss("mse")]
        phase = aa.TrainPhase("t", data={"data": source()}, losses=losses, batch_size=16, epochs=3, **settings)
        resume = "never" if folder is None else "auto"
        return aa.Experiment(graph, progress="none").run_phase(phase, resume=resume)

    expected = own(-1)
    for at in (3, 9):
        with pytest.raises(KeyboardInterrupt):
            own(at, tmp_path / str(at))
        np.testing.assert_array_equal(own(-1, tmp_path / str(at)).loss, expected.loss)


def test_compiled_steps_go_on_to_the_bit(tmp_path: Path) -> None:
    """Random numbers inside of what JAX has compiled."""

    def make() -> aa.ModelGraph:
        return aa.ModelGraph([aa.ModelNode("net", flax_model(), table().reference())], "adam", seed=1)

    assert_goes_on(make, tmp_path, (8,), compile="steps")


@pytest.mark.across
def test_a_graph_of_two_frameworks_goes_on_to_the_bit(tmp_path: Path) -> None:
    """torch before JAX, in steps that are computed one by one."""

    def make() -> aa.ModelGraph:
        nodes = [aa.ModelNode("a", torch_model()[:-1], table().reference()), aa.ModelNode("b", head(), "a")]
        return aa.ModelGraph(nodes, "adam", seed=1)

    def head() -> Any:
        nnx = pytest.importorskip("flax.nnx")
        return nnx.Sequential(nnx.Dropout(0.3, rngs=nnx.Rngs(1)), nnx.Linear(8, 1, rngs=nnx.Rngs(0)))

    pytest.importorskip("anyaccel_jax")
    assert_goes_on(make, tmp_path, (9,))


def test_steps_of_ones_own_go_on_to_the_bit(tmp_path: Path) -> None:
    """Their optimizers are the graph's, and their dropout draws from the same streams."""

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        loss = ((models["net"](batch["x"]) - batch["y"]) ** 2).mean()
        optimizers["net"].zero_grad()
        loss.backward()
        optimizers["net"].step()
        return {"loss": loss}

    def own(graph: aa.ModelGraph, at: int, folder: Path | None = None) -> Any:
        phase = aa.TrainPhase(
            "t", data="all", step=step, batch_size=16, epochs=2, checkpoint=folder, callbacks=[BreakOff(at)]
        )
        resume = "never" if folder is None else "auto"
        return aa.Experiment(graph, progress="none").run_phase(phase, resume=resume)

    def make() -> aa.ModelGraph:
        return aa.ModelGraph([aa.ModelNode("net", torch_model(), table().reference())], "adam", seed=1)

    whole, again = make(), make()
    expected = own(whole, -1)
    with pytest.raises(KeyboardInterrupt):
        own(make(), 11, tmp_path)
    np.testing.assert_array_equal(own(again, -1, tmp_path).loss, expected.loss)
    state = whole.state()
    for name, array in again.state().items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)
