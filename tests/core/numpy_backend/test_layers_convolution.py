"""Conv2d, MaxPool2d, Flatten and SequentialCNN: gradients, written-out values, simulated devices, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter.model_specs import CNNSpec
from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, OutOfMemoryError, ShapeError, SpecError
from anyaccel.numpy_backend import Conv2d, Dense, Flatten, MaxPool2d, Sequential, SequentialCNN, SimArray, simulate
from anyaccel.segment import TensorSpec
from anyaccel.specs import Optimizer

CPU, SIM0 = Device("cpu"), Device("sim", 0)


def small(**settings) -> SequentialCNN:
    given = {"output_shape": (2, 2), "channels": (2, 3), "activation": "tanh", "dtype": "float64"}
    return SequentialCNN(**{**given, **settings})


MODULES = {
    "convolution": lambda: (Conv2d(3, dtype="float64"), (2, 2, 3, 4)),
    "wide kernel": lambda: (Conv2d(2, 5, dtype="float64"), (2, 1, 3, 2)),
    "kernel of one": lambda: (Conv2d(2, 1, dtype="float64"), (2, 3, 2, 2)),
    "pooling": lambda: (MaxPool2d(2), (2, 2, 5, 4)),
    "pooling by three": lambda: (MaxPool2d(3), (1, 2, 7, 3)),
    "pooling by one": lambda: (MaxPool2d(1), (2, 1, 2, 2)),
    "flatten": lambda: (Flatten(), (2, 2, 3, 2)),
    "cnn": lambda: (small(), (3, 2, 5, 4)),
    "cnn with relu": lambda: (small(activation="relu"), (2, 1, 4, 4)),
    "cnn with dropout": lambda: (small(dropout=0.4), (2, 1, 4, 4)),
    "cnn without pooling": lambda: (small(pool=1, kernel_size=5), (2, 1, 3, 3)),
}


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_pullbacks_agree_with_finite_differences(name, train, draw, slopes, built):
    module, shape = MODULES[name]()
    x = draw(*shape)
    values = built(module, x).parameters
    given = module.apply(values, (x,), train=train, key=7)
    cotangent = draw(*given.outputs[0].shape)
    gradients, (back,) = given.pullback((cotangent,))

    def total():
        return float(np.sum(cotangent * module.apply(values, (x,), train=train, key=7).outputs[0]))

    assert set(gradients) == set(values)
    for key, gradient in gradients.items():
        np.testing.assert_allclose(gradient, slopes(total, values[key]), atol=1e-7)
    np.testing.assert_allclose(back, slopes(total, x), atol=1e-7)


def test_a_convolution_is_the_sum_over_the_neighbourhood_and_a_bias(draw, built):
    x = draw(2, 3, 4, 5)
    layer = built(Conv2d(2, 3, dtype="float64"), x)
    weight, bias = layer.parameters["weight"], layer.parameters["bias"]
    expected = np.zeros((2, 2, 4, 5))
    for n, o, i, j in np.ndindex(expected.shape):
        expected[n, o, i, j] = bias[o]
        for c, di, dj in np.ndindex(3, 3, 3):
            row, column = i + di - 1, j + dj - 1
            if 0 <= row < 4 and 0 <= column < 5:
                expected[n, o, i, j] += x[n, c, row, column] * weight[o, c, di, dj]
    np.testing.assert_allclose(layer(x), expected, atol=1e-13)


def test_pooling_takes_the_maximum_and_drops_incomplete_windows():
    x = np.arange(15.0).reshape(1, 1, 3, 5)
    np.testing.assert_array_equal(MaxPool2d(2)(x), [[[[6, 8]]]])


def test_the_gradient_goes_to_the_first_of_equal_values():
    x = np.array([[[[1.0, 5, 0, 0], [5, 5, 0, 0]]]])
    _, pullback, _ = MaxPool2d(2).apply({}, (x,), train=True, key=0)
    _, (back,) = pullback((np.array([[[[7.0, 9.0]]]]),))
    np.testing.assert_array_equal(back, [[[[0, 7, 9, 0], [0, 0, 0, 0]]]])


def test_flattening_is_channels_height_width():
    x = np.arange(24).reshape(1, 2, 3, 4)
    np.testing.assert_array_equal(Flatten()(x), [np.arange(24)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_cnn_has_the_weights_of_its_spec(dtype, built, draw):
    x = draw(4, 1, 8, 8).astype(dtype)
    cnn = built(SequentialCNN((2, 3), (4,), 5, dtype=dtype), x, seed=5)
    spec = CNNSpec((2, 3), (4,), 5, dtype=dtype).weights([(1, 8, 8)], 5)
    assert list(cnn.parameters) == list(spec)
    for name, value in spec.items():
        np.testing.assert_array_equal(cnn.parameters[name], value)
    assert (cnn(x).shape, cnn(x).dtype) == ((4, 2, 3), dtype)
    assert cnn(x[:0]).shape == (0, 2, 3)


def test_the_cnn_is_its_layers_one_after_the_other(built, draw):
    x = draw(3, 1, 6, 6)
    cnn = built(small(output_shape=(2,), activation="identity"), x)
    layers = Conv2d(2, dtype="float64"), MaxPool2d(2), Conv2d(3, dtype="float64"), MaxPool2d(2), Flatten()
    plain = built(Sequential(*layers, Dense(2, dtype="float64")), x)
    names = {"convs.0": "0", "convs.1": "2", "head": "5"}
    for name, value in cnn.parameters.items():
        layer, _, part = name.rpartition(".")
        plain.parameters[f"{names[layer]}.{part}"] = value
    np.testing.assert_array_equal(plain(x), cnn(x))


def test_a_convolution_starts_uniform_by_its_fan_in(built, draw):
    layer = built(Conv2d(8, 3), draw(1, 4, 5, 5).astype("float32"))
    weight = layer.parameters["weight"]
    assert (weight.shape, weight.dtype, layer.parameters["bias"].shape) == ((8, 4, 3, 3), np.float32, (8,))
    assert 0.9 / 6 < np.abs(weight).max() <= np.float32(1 / 6)


def test_the_cnn_is_restored_from_its_configuration():
    cnn = small(kernel_size=5, pool=1, dropout=0.1)
    assert SequentialCNN(**cnn.get_config()).get_config() == cnn.get_config()
    assert cnn.get_config()["channels"] == [2, 3]


# -- simulated devices ---------------------------------------------------------------------------------------------


@pytest.fixture
def trained(backend, segment, node, loss, built, draw):
    """Four steps of Adam over images, on a device; gives the program and the values afterwards."""
    data = {"x": draw(8, 2, 5, 4).astype("float32"), "y": draw(8, 2).astype("float32")}

    def run(device, clear=lambda: None, settle=lambda: None):
        model = built(small(output_shape=(2,), dtype="float32", dropout=0.2), data["x"], device=device)
        columns = {name: backend.move(array, device) for name, array in data.items()}
        spec = Optimizer("adam", lr=0.05, clip_norm=0.5)
        made = segment(columns, [node("n", model, "x", device)], [loss("mse", "n y", device)], spec)
        program = backend.build(made)
        program.seed(4)
        clear()
        means = program.train_steps(tuple(columns.values()), [None, None], 0, 4, 2)
        settle()
        program.close()
        return model, backend.to_host(means), backend.state(model)

    return run


def test_a_simulated_device_computes_as_the_cpu_without_synchronizing(trained):
    _, means, state = trained(CPU)
    with simulate(1, float64=False) as (sim,):
        counts = []
        model, losses, after = trained(SIM0, sim.clear, lambda: counts.append((sim.syncs, sim.transfers.into.number)))
        assert counts == [(0, 0)]
        assert all(isinstance(value, SimArray) and value.on is sim for value in model.parameters.values())
    np.testing.assert_allclose(losses, means, rtol=1e-6)
    assert means[-1, 0] != means[0, 0]
    for name, value in state.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-7)


def test_pullbacks_free_their_memory_on_a_simulated_device(backend, built, draw):
    x = draw(2, 1, 6, 6)
    with simulate(1) as (sim,):
        model, images = built(small(), x, device=SIM0), backend.move(x, SIM0)
        before = sim.used
        given = model.apply(dict(model.parameters), (images,), train=True, key=0)
        gradients, (back,) = given.pullback((given.outputs[0] * 0 + 1,))
        assert {value.device for value in (*gradients.values(), back)} == {SIM0}
        assert sim.used > before
        del given, gradients, back
        assert sim.used == before


def test_convolutions_use_device_memory_and_refuse_other_devices(backend, built, draw):
    x = draw(64, 1, 8, 8)
    with simulate(1, capacity=200_000):
        model = built(small(), x, device=SIM0)
        with pytest.raises(DeviceMismatchError, match="operands are on sim:0 and cpu:0"):
            model(x)
        with pytest.raises(OutOfMemoryError, match=r"not enough memory for \d+ bytes on sim:0"):
            model(backend.move(x, SIM0))


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Conv2d(0), "Conv2d: channels=0 is not a positive int."),
        (lambda: Conv2d(2, 4), "Conv2d: kernel_size=4 is not odd."),
        (lambda: Conv2d(2, True), "Conv2d: kernel_size=True is not a positive int."),
        (lambda: MaxPool2d(1.5), "MaxPool2d: size=1.5 is not a positive int."),
        (lambda: SequentialCNN(pool=0), "SequentialCNN: pool=0 is not a positive int."),
    ],
)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value).startswith(words)
    assert caught.value.hint


IMAGE = TensorSpec((1, 8, 8), "float32")


@pytest.mark.parametrize(
    ("module", "inputs", "words"),
    [
        (lambda: Conv2d(2), [TensorSpec((8, 8), "float32")], "Conv2d takes one input [channels, height, width], got"),
        (lambda: Conv2d(2), [IMAGE, IMAGE], "got float32[1, 8, 8], float32[1, 8, 8]"),
        (lambda: Conv2d(2), [TensorSpec((1, 8, 8), "int64")], "Conv2d(2) computes in float32, got int64[1, 8"),
        (lambda: MaxPool2d(2), [TensorSpec((8, 8), "float32")], "MaxPool2d(2) takes samples [channels, height, width]"),
        (lambda: MaxPool2d(2), [IMAGE, IMAGE], "MaxPool2d takes one input, got 2"),
        (lambda: Flatten(), [IMAGE, IMAGE], "Flatten takes one input, got 2"),
        (lambda: SequentialCNN(), [TensorSpec((64,), "float32")], "SequentialCNN takes one input [channels, height, "),
        (lambda: SequentialCNN(), [TensorSpec((1, 3, 8), "float32")], "2 poolings by 2 leave nothing of an image of "
                                                                      "shape [1, 3, 8]"),
        (lambda: SequentialCNN(), [TensorSpec((1, 8, 8), "float64")], "computes in float32, got float64[1"),
    ],
)  # fmt: skip
def test_inputs_of_wrong_shape_or_dtype_are_refused(module, inputs, words, backend):
    with pytest.raises(ShapeError) as caught:
        backend.infer(module(), inputs, 0)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((8, 8, 1), "Conv2d(8) takes samples [1, height, width], got float32[8, 8, 1]. Hint: store"),
        ((8, 8), "Conv2d(8) takes samples [1, height, width], got float32[8, 8]. Hint: store"),
        ((1, 16, 8), "Dense(1) takes samples with 64 features, got float32[128]"),
    ],
)  # fmt: skip
def test_a_built_cnn_reports_both_shapes(shape, words, backend):
    cnn = SequentialCNN()
    backend.infer(cnn, [IMAGE], 0)
    with pytest.raises(ShapeError) as caught:
        backend.infer(cnn, [TensorSpec(shape, "float32")], 0)
    assert words in str(caught.value)
