"""Files of weights between frameworks: the same names mean the same layout, and nothing is transposed in silence."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import StateError
from anyaccel.registry import registry

X = np.random.default_rng(0).standard_normal((16, 4)).astype("float32")


def graph_of(model: object, seed: int = 0) -> aa.ModelGraph:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference())], "adam", seed=seed)


def predictions(graph: aa.ModelGraph) -> np.ndarray:
    results = graph.run(aa.EvalPhase("predict", data="all", outputs=["net"]), progress="none")
    return np.asarray(results.prediction("net"))


@pytest.mark.across
@pytest.mark.parametrize(("source", "target"), [("torch", "jax"), ("jax", "tensorflow"), ("tensorflow", "torch")])
def test_specs_of_one_model_have_one_layout_in_every_framework(source: str, target: str, tmp_path) -> None:
    """All layers are square: a transposed one would fit."""
    for name in (source, target):
        pytest.importorskip(name)
    one, other = (registry().computing(name).models()["SequentialMLP"]((4,), 2, 4) for name in (source, target))
    before, after = graph_of(one, 1), graph_of(other, 2)
    before.save_weights(tmp_path / "net.safetensors")
    assert not np.allclose(predictions(before), predictions(after))
    after.load_weights(tmp_path / "net.safetensors")
    np.testing.assert_allclose(predictions(after), predictions(before), rtol=1e-5, atol=1e-6)


@pytest.mark.across
def test_square_layers_of_torch_are_not_loaded_into_flax_untransposed(tmp_path) -> None:
    torch, linen = pytest.importorskip("torch"), pytest.importorskip("flax.linen")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    flax = linen.Sequential([linen.Dense(4), linen.tanh, linen.Dense(4)])
    before, after = graph_of(net), graph_of(flax)
    file = tmp_path / "net.safetensors"
    before.save_weights(file)
    with pytest.raises(StateError, match=r"unexpected: 0\.bias.* Hint: map names="):
        after.load_weights(file)
    layers = {"0": "layers_0", "2": "layers_2"}
    names = {f"{i}.weight": f"{layer}.kernel" for i, layer in layers.items()}
    names |= {f"{i}.bias": f"{layer}.bias" for i, layer in layers.items()}
    with pytest.raises(StateError) as caught:
        after.load_weights(file, names=names)
    assert "the order of the axes of layers_0.kernel, layers_2.kernel is not known" in str(caught.value)
    change = "lambda name, array: array.T if name.endswith('kernel') and array.ndim == 2 else array"
    assert f"specify the order: change={change}; or" in caught.value.hint
    after.load_weights(file, names=names, change=eval(change))  # noqa: S307 - what the message says
    np.testing.assert_allclose(predictions(after), predictions(before), rtol=1e-5, atol=1e-6)


@pytest.mark.across
def test_square_layers_are_not_copied_untransposed() -> None:
    torch, linen = pytest.importorskip("torch"), pytest.importorskip("flax.linen")
    net, flax = graph_of(torch.nn.Linear(4, 4)), graph_of(linen.Dense(4))
    models = net.build()["net"].model, flax.build()["net"].model
    with pytest.raises(StateError) as caught:
        aa.copy_weights(*models, names={"kernel": "weight"})
    assert str(caught.value) == (
        "the order of the axes of kernel is not known, because the source has another name for it, and its shape is "
        "the same in another order. Hint: specify the order: change=lambda name, array: array.T if "
        "name.endswith('kernel') and array.ndim == 2 else array; or, if the order is the same, "
        "pass change=lambda name, array: array."
    )
    aa.copy_weights(*models, names={"kernel": "weight"}, change=lambda name, array: array.T)
    np.testing.assert_allclose(predictions(flax), predictions(net), rtol=1e-5, atol=1e-6)


def test_weights_of_flax_have_the_paths_of_its_parameters(tmp_path) -> None:
    linen, traverse = pytest.importorskip("flax.linen"), pytest.importorskip("flax.traverse_util")
    from safetensors.numpy import load_file

    model = linen.Sequential([linen.Dense(3), linen.tanh, linen.Dense(4)])
    graph = graph_of(model, 1)
    graph.save_weights(tmp_path / "net.safetensors")
    params = traverse.unflatten_dict(load_file(tmp_path / "net.safetensors"), sep=".")
    np.testing.assert_allclose(model.apply({"params": params}, X), predictions(graph), rtol=1e-5, atol=1e-6)
    other = graph_of(linen.Sequential([linen.Dense(3), linen.tanh, linen.Dense(4)]), 2)
    other.load_weights(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(predictions(other), predictions(graph))


def test_weights_of_keras_have_the_paths_of_its_layers(tmp_path) -> None:
    keras = pytest.importorskip("keras")
    from safetensors.numpy import load_file

    def make() -> object:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])

    one, other = graph_of(make()), graph_of(make())
    one.save_weights(tmp_path / "net.safetensors")
    names = {"kernel", "bias"}, {"gamma", "beta", "moving_mean", "moving_variance"}
    assert load_file(tmp_path / "net.safetensors").keys() == {
        f"layers.{i}.{name}" for i in range(2) for name in names[i]
    }
    other.load_weights(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(predictions(other), predictions(one))
