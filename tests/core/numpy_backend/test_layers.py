"""Layers against finite differences in float64 and written-out values, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter.model_specs import MLPSpec
from anyaccel.errors import ShapeError, SpecError
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Dropout, Module, Sequential, SequentialMLP, VjpResult
from anyaccel.segment import TensorSpec


class TwoToThree(Module):
    """Two inputs and three outputs, one of which has no pullback to speak of."""

    def __init__(self):
        super().__init__()
        self.parameters["a"] = np.array([0.5, -2.0])

    def apply(self, values, inputs, *, train, key):
        (x, y), a = inputs, values["a"]

        def pullback(cotangents):
            p, q, r = cotangents
            return {"a": np.sum(p * x, axis=0)}, (p * a + q * y, q * x + r)

        return VjpResult((x * a, x * y, y), pullback)


def tied() -> Sequential:
    dense = Dense(3, dtype="float64")
    return Sequential(dense, Activation("tanh"), dense)


MODULES = {
    "dense": lambda: (Dense(4, dtype="float64"), [(5, 3)]),
    "dense without bias": lambda: (Dense(2, bias=False, dtype="float64"), [(5, 3)]),
    "dense over time": lambda: (Dense(2, dtype="float64"), [(4, 3, 2)]),
    **{name: lambda name=name: (Activation(name), [(4, 3)]) for name in ("relu", "tanh", "sigmoid", "identity")},
    "dropout": lambda: (Dropout(0.4), [(6, 3)]),
    "batch norm": lambda: (BatchNorm(dtype="float64"), [(6, 3)]),
    "sequential": lambda: (Sequential(Dense(4, dtype="float64"), BatchNorm(dtype="float64"), Dropout(0.2)), [(6, 3)]),
    "nested and tied": lambda: (Sequential(tied(), Dense(2, dtype="float64")), [(4, 3)]),
    "mlp": lambda: (SequentialMLP((2, 2), 3, 5, "tanh", dtype="float64"), [(4, 3)]),
    "mlp with dropout": lambda: (SequentialMLP((1,), 2, 5, "sigmoid", 0.3, "float64"), [(4, 3)]),
    "mlp of two inputs": lambda: (SequentialMLP(dtype="float64"), [(4, 3), (4, 2, 2)]),
    "two to three": lambda: (TwoToThree(), [(4, 2), (4, 2)]),
}


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_pullbacks_agree_with_finite_differences(name, train, draw, slopes, built):
    module, shapes = MODULES[name]()
    inputs = tuple(draw(*shape) for shape in shapes)
    built(module, *inputs)
    for values in (module.parameters, module.buffers):
        values.update({key: np.abs(draw(*value.shape)) + 0.1 for key, value in values.items()})
    values = {**module.parameters, **module.buffers}
    given = module.apply(values, inputs, train=train, key=7)
    cotangents = tuple(draw(*output.shape) for output in given.outputs)
    gradients, back = given.pullback(cotangents)

    def total():
        outputs = module.apply(values, inputs, train=train, key=7).outputs
        return sum(float(np.sum(c * y)) for c, y in zip(cotangents, outputs, strict=True))

    assert set(gradients) == set(module.parameters)
    for key, gradient in gradients.items():
        np.testing.assert_allclose(gradient, slopes(total, values[key]), atol=1e-7)
    for x, cotangent in zip(inputs, back, strict=True):
        np.testing.assert_allclose(cotangent, slopes(total, x), atol=1e-7)


def test_dense_is_the_sum_of_products_and_a_bias(built):
    x = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
    dense = built(Dense(2), x)
    dense.parameters.update(weight=np.array([[1, 0], [2, -1]], "float32"), bias=np.array([10, 20], "float32"))
    np.testing.assert_array_equal(dense(x), [[11, 20], [13, 22]])
    assert dense(x).dtype == np.float32


def test_activations_by_their_formulas():
    x = np.array([[-1000.0, -1.0, 0.0, 2.0]])
    np.testing.assert_allclose(Activation("relu")(x), [[0, 0, 0, 2]])
    np.testing.assert_allclose(Activation("tanh")(x), [[-1, -0.7615941559557649, 0, 0.9640275800758169]])
    np.testing.assert_allclose(Activation("sigmoid")(x), [[0, 0.2689414213699951, 0.5, 0.8807970779778823]])
    assert Activation("identity")(x) is x


def test_dropout_keeps_the_mean_repeats_by_key_and_is_off_in_evaluation():
    x, layer = np.ones((100, 100), "float32"), Dropout(0.25)
    (first,), (again,), (other,) = (layer.apply({}, (x,), train=True, key=key).outputs for key in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert set(np.unique(first)) == {np.float32(0), np.float32(4 / 3)}
    assert abs(first.mean() - 1) < 0.02
    assert first.dtype == np.float32
    assert layer(x) is x


def test_batch_norm_normalizes_and_keeps_running_statistics(built):
    x = np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0]])
    layer = built(BatchNorm(momentum=0.5, dtype="float64"), x)
    given = layer.apply({**layer.parameters, **layer.buffers}, (x,), train=True, key=0)
    np.testing.assert_allclose(given.outputs[0].mean(axis=0), [0, 0], atol=1e-12)
    np.testing.assert_allclose(given.outputs[0].std(axis=0), [1, 1], atol=1e-4)
    np.testing.assert_allclose(given.buffers["running_mean"], [1.5, 10])
    np.testing.assert_allclose(given.buffers["running_var"], [0.5 + 0.5 * 4, 0.5 + 0.5 * 100])
    np.testing.assert_array_equal(layer.buffers["running_mean"], [0, 0])
    np.testing.assert_allclose(layer(x), x / np.sqrt(1 + 1e-5))


def test_the_mlp_has_the_weights_of_its_spec(built, draw):
    x = draw(4, 3).astype("float32")
    mlp = built(SequentialMLP((2, 3), n_layers=3), x, seed=5)
    spec = MLPSpec((2, 3), n_layers=3).weights([(3,)], 5)
    assert list(mlp.parameters) == list(spec)
    for name, value in spec.items():
        np.testing.assert_array_equal(mlp.parameters[name], value)
    assert mlp(x).shape == (4, 2, 3)


def test_the_mlp_is_restored_from_its_configuration():
    mlp = SequentialMLP((2,), 3, 8, "tanh", 0.1, "float64")
    assert SequentialMLP(**mlp.get_config()).get_config() == mlp.get_config()
    assert mlp.get_config()["hidden_dim"] == 8


def test_a_layer_at_two_positions_has_its_parameters_once(built, draw):
    module = built(tied(), draw(4, 3))
    assert list(module.parameters) == ["0.weight", "0.bias"]
    module.parameters["0.bias"] = np.zeros(3)
    assert module.layers[2].parameters["bias"] is module.parameters["0.bias"]
    del module.parameters["0.bias"]
    assert list(module.layers[0].parameters) == ["weight"]


def test_building_twice_changes_nothing_and_weights_depend_on_the_seed(built, draw):
    x = draw(4, 3)
    module = built(Sequential(Dense(4, dtype="float64"), Dense(4, dtype="float64")), x, seed=1)
    before = dict(module.parameters)
    assert all(built(module, x, seed=2).parameters[name] is value for name, value in before.items())
    assert not np.array_equal(before["0.bias"], before["1.bias"])
    other = built(Sequential(Dense(4, dtype="float64")), x, seed=2)
    assert not np.array_equal(other.parameters["0.bias"], before["0.bias"])
    bound = 1 / np.sqrt(3)
    assert np.all(np.abs(before["0.weight"]) <= bound)


def test_calling_a_module_returns_one_array_or_several(draw):
    x, y = draw(4, 2), draw(4, 2)
    assert len(TwoToThree()(x, y)) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dense(0), "features=0 is not a positive int"),
        (lambda: Dense(2.0), "features=2.0"),
        (lambda: Dropout(1.0), "rate=1.0 is not in [0, 1)"),
        (lambda: Activation("swish"), "unknown activation 'swish'. Available: relu, tanh, sigmoid, identity"),
        (lambda: SequentialMLP(n_layers=0), "n_layers=0"),
    ],
)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(SpecError) as caught:
        make()
    assert words in str(caught.value)


FLOATS, INTS = TensorSpec((3,), "float32"), TensorSpec((3,), "int64")


@pytest.mark.parametrize(
    ("module", "inputs", "words"),
    [
        (Dense(2), [INTS], "Dense(2) computes in float32, got int64[3]. Hint: cast the features to float32"),
        (Dense(2), [TensorSpec((3,), "float64")], "computes in float32, got float64[3]"),
        (Dense(2), [FLOATS, FLOATS], "Dense takes one input with at least one axis, got float32[3], "),
        (Dense(2), [TensorSpec((), "float32")], "at least one axis, got float32[]"),
        (BatchNorm(), [TensorSpec((3, 2), "float32")], "BatchNorm takes one input with one axis"),
        (SequentialMLP(), [INTS], "computes in float32, got int64[3]"),
        (Activation("tanh"), [FLOATS, FLOATS], "tanh takes one input, got 2. Hint: join them"),
    ],
)  # fmt: skip
def test_inputs_of_wrong_shape_or_dtype_are_refused(module, inputs, words, backend):
    with pytest.raises(ShapeError) as caught:
        backend.infer(module, inputs, 0)
    assert words in str(caught.value)


def test_a_built_layer_reports_both_shapes(backend):
    dense = Dense(2)
    backend.infer(dense, [FLOATS], 0)
    with pytest.raises(ShapeError, match=r"Dense\(2\) takes samples with 3 features, got float32\[5\]"):
        backend.infer(dense, [TensorSpec((5,), "float32")], 0)
