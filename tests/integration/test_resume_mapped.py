"""Runs of models that are no recipes, which go on in another framework with a map of names and a change of axes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import StateError

STEPS, EPOCHS, AT = 8, 4, 13
X = np.random.default_rng(0).normal(size=(STEPS * 16, 6, 6, 2)).astype("float32")


class Steps(aa.Callback):
    """Keeps the loss of each step, and presses Ctrl-C after so many."""

    def __init__(self, at: int = 0) -> None:
        self.losses: list[float] = []
        self.at = at

    def step_end(self, run: Any) -> None:
        """See `Callback`."""
        self.losses.append(run.step_losses()["net"])
        if len(self.losses) == self.at:
            raise KeyboardInterrupt


def torch_model(seed: int = 0) -> Any:
    """A convolution, normalization and two layers, one of them square."""
    import torch
    from torch import nn

    class ChannelsLast(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.movedim(1, -1).flatten(1)  # rows of Flax and Keras are flattened in this order

    class ChannelsFirst(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.movedim(-1, 1)

    torch.manual_seed(seed)
    return nn.Sequential(
        *(ChannelsFirst(), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, eps=1e-3, momentum=0.01), nn.Tanh(), ChannelsLast()),
        *(nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
    )


def flax_model(seed: int = 0) -> Any:
    """The same."""
    from flax import nnx

    rngs = nnx.Rngs(seed)
    return nnx.Sequential(
        nnx.Conv(2, 3, (3, 3), padding="VALID", rngs=rngs),
        nnx.BatchNorm(3, epsilon=1e-3, momentum=0.99, rngs=rngs),
        *(nnx.tanh, lambda x: x.reshape(len(x), -1)),
        *(nnx.Linear(48, 8, rngs=rngs), nnx.tanh, nnx.Linear(8, 8, rngs=rngs), nnx.tanh, nnx.Linear(8, 1, rngs=rngs)),
    )


def keras_model(seed: int = 0) -> Any:
    """The same."""
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [
            *(layers.Input((6, 6, 2)), layers.Conv2D(3, 3), layers.BatchNormalization()),
            *(layers.Activation("tanh"), layers.Flatten(), layers.Dense(8, "tanh"), layers.Dense(8, "tanh")),
            layers.Dense(1),
        ]
    )


MODELS = {"torch": torch_model, "jax": flax_model, "tensorflow": keras_model}
LAYERS = {
    "torch": ("1", "2", "5", "7", "9"),
    "jax": ("layers.0", "layers.1", "layers.4", "layers.6", "layers.8"),
    "tensorflow": ("layers.0", "layers.1", "layers.4", "layers.5", "layers.6"),
}
WORDS = {
    "torch": ("weight", "weight", "running_mean", "running_var"),
    "jax": ("kernel", "scale", "mean", "var"),
    "tensorflow": ("kernel", "gamma", "moving_mean", "moving_variance"),
}


def names(first: str, second: str) -> dict[str, str | None]:
    """The name in a model of the second framework for each in one of the first."""
    found: dict[str, str | None] = {}
    for i, (theirs, ours) in enumerate(zip(LAYERS[first], LAYERS[second], strict=True)):
        if i == 1:
            words = dict(zip(WORDS[first][1:], WORDS[second][1:], strict=True))
            bias = {"tensorflow": "beta"}
            words[bias.get(first, "bias")] = bias.get(second, "bias")
        else:
            words = {WORDS[first][0]: WORDS[second][0], "bias": "bias"}
        found.update({f"{theirs}.{word}": f"{ours}.{other}" for word, other in words.items()})
    if first == "torch":
        found["2.num_batches_tracked"] = None
    return found


def change(first: str, second: str) -> Any:
    """Puts axes into the second's order; Keras and Flax have the same."""
    orders = {("torch", 4): (2, 3, 1, 0), ("torch", 2): (1, 0), ("jax", 4): (3, 2, 0, 1), ("jax", 2): (1, 0)}
    if "torch" not in (first, second):
        return lambda name, array: array
    kind = "torch" if first == "torch" else "jax"
    return lambda name, array: np.transpose(array, orders[kind, array.ndim]) if array.ndim > 1 else array


def graph_of(framework: str, seed: int = 0) -> aa.ModelGraph:
    """A graph with new weights."""
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": np.sin(X[:, 0, 0, :1])}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", MODELS[framework](seed), data.reference())], "adam", seed=3)


def train(framework: str, folder: Path | None = None, at: int = 0, **mapping: Any) -> list[float]:
    """The losses of the steps; it goes on where the folder says, and is broken off after `at` steps."""
    steps = Steps(at)
    phase = aa.TrainPhase(
        "train",
        data="all",
        losses=[aa.AppliedLoss("mse")],
        batch_size=16,
        epochs=EPOCHS,
        compile="off",
        callbacks=[steps, aa.EarlyStopping("loss", patience=50, restore_best=True), aa.WeightAveraging(0.9)],
        checkpoint=None if folder is None else aa.Checkpoint(folder, every=100, **mapping),
    )
    graph = graph_of(framework, seed=1 if mapping else 0)
    with suppress(KeyboardInterrupt):
        aa.Experiment(graph, progress="none").run_phase(phase, resume="auto" if folder else "never")
    return steps.losses


@pytest.mark.parametrize(("first", "second"), [("torch", "jax"), ("torch", "tensorflow"), ("jax", "torch")])
def test_a_run_goes_on_in_another_framework(
    first: str, second: str, three: tuple[str, str, str], tmp_path: Path
) -> None:
    """Convolution, normalization, a square matrix, Adam's state, the best weights and averages; broken off twice."""
    assert set(three)
    whole = train(first)
    assert len(whole) == STEPS * EPOCHS and max(whole) - min(whole) > 0.1
    assert train(first, tmp_path, AT) == whole[:AT]
    mapping = {"names": names(first, second), "change": change(first, second)}
    losses = train(second, tmp_path, 5, **mapping)
    losses += train(second, tmp_path, **mapping)  # which is not mapped a second time
    np.testing.assert_allclose(losses, whole[AT:], rtol=0.0, atol=1e-5)


def test_a_saved_graph_is_loaded_into_another_framework(three: tuple[str, str, str], tmp_path: Path) -> None:
    """Its models give the same, and its optimizer's state is in their order of axes."""
    assert set(three)
    graph = graph_of("torch")
    graph.run(aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse")], compile="off"), progress="none")
    graph.save(tmp_path)
    mapping: Any = {"names": names("torch", "jax"), "change": change("torch", "jax")}
    loaded = aa.ModelGraph.load(tmp_path, models={"net": flax_model(1)}, **mapping)
    before, after = graph.state(), loaded.state()
    pairs = {f"{theirs}": ours for theirs, ours in names("torch", "jax").items() if ours is not None}
    for theirs, ours in pairs.items():
        for place in ("parameters/", "buffers/", "optimizer/m/", "optimizer/v/"):
            if f"net/{place}{theirs}" in before:
                expected = mapping["change"](ours, before[f"net/{place}{theirs}"])
                np.testing.assert_array_equal(after[f"net/{place}{ours}"], expected)
    assert after["net/optimizer_step"] == before["net/optimizer_step"] > 0
    again = graph_of("jax", seed=2).load_state(before, **mapping).state()
    assert again.keys() == after.keys() and all(np.array_equal(again[name], after[name]) for name in after)


def scaled(name: str, array: np.ndarray) -> np.ndarray:
    """Not only another order."""
    return 2 * change("torch", "jax")(name, array)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no names": (
        {},
        r"'net' was torch and is now jax, and the state does not fit node 'net': missing: .*layers.0.kernel.*"
        r".*1.weight.*Hint: pass it to Checkpoint\('.*', ...\): .*names=\{'IN THE STATE': 'IN THE MODEL'\}",
    ),
    "no change": (
        {"names": names("torch", "jax")},
        r"axes in another order.*Hint: pass it to Checkpoint.*change=lambda name, array: array.transpose",
    ),
    "not only an order": (
        {"names": names("torch", "jax"), "change": scaled},
        r"change=.* changes the values of 'layers.*', not only their order.*Hint: load only the weights",
    ),
    "a name that is not there": ({"names": {"0.weight": "layers.0.kernel"}}, r"the file has no '0.weight'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_does_not_fit_is_told(three: tuple[str, str, str], tmp_path: Path, mistake: str) -> None:
    """Before anything changes, with what would help."""
    assert set(three)
    mapping, message = MISTAKES[mistake]
    train("torch", tmp_path, AT)
    with pytest.raises(StateError, match=message):
        train("jax", tmp_path, **mapping)
