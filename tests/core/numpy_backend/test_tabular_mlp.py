"""TabularMLP on NumPy: gradients against finite differences, dropout of categories, codes that are none."""

from __future__ import annotations

import numpy as np

from anyaccel import TabularMLP
from anyaccel.segment import TensorSpec

draw = np.random.default_rng(0)
X = np.concatenate([draw.standard_normal((20, 2)), draw.integers(0, [3, 7], (20, 2))], axis=1)


def built(**settings):
    model = TabularMLP(2, (3, 7), 2, **{"hidden": (5,), "dropout": 0.0, "dtype": "float64", **settings})
    model.build([TensorSpec((4,), "float64")], 5)
    return model


def test_gradients_are_the_finite_differences():
    model = built()
    cotangent = draw.standard_normal((20, 2))

    def value(values, x):
        (y,) = model.apply(values, (x,), train=True, key=0).outputs
        return float((y * cotangent).sum())

    gradients, (of_x,) = model.apply(model.parameters, (X,), train=True, key=0).pullback((cotangent,))
    assert gradients.keys() == model.parameters.keys()
    for name, array in model.parameters.items():
        for index in np.ndindex(array.shape):
            step = np.zeros_like(array)
            step[index] = 1e-6
            ahead, behind = ({**model.parameters, name: array + sign * step} for sign in (1, -1))
            expected = (value(ahead, X) - value(behind, X)) / 2e-6
            assert abs(gradients[name][index] - expected) < 1e-6, (name, index)
    step = np.zeros_like(X)
    step[3, 1] = 1e-6
    expected = (value(model.parameters, X + step) - value(model.parameters, X - step)) / 2e-6
    assert abs(of_x[3, 1] - expected) < 1e-6
    assert not of_x[:, 2:].any()


def test_training_replaces_a_share_of_the_codes_by_the_unknown_one():
    model = built(category_dropout=0.4)
    many = np.tile(X, (200, 1))
    evaluated = model.apply(model.parameters, (many,), train=False, key=1).outputs[0]
    trained = model.apply(model.parameters, (many,), train=True, key=1).outputs[0]
    expected = {}
    for kept in np.ndindex(2, 2):
        changed = np.concatenate([many[:, :2], many[:, 2:] * kept], axis=1)
        expected[kept] = model.apply(model.parameters, (changed,), train=False, key=1).outputs[0]
    np.testing.assert_array_equal(expected[1, 1], evaluated)
    known = many[:, 2:].all(axis=1)  # with code 0 one cannot see whether it was replaced
    shares = {kept: np.isclose(trained, rows).all(axis=1)[known].mean() for kept, rows in expected.items()}
    for kept, share in shares.items():
        assert abs(share - np.prod([0.6 if it else 0.4 for it in kept])) < 0.03, shares


def test_a_code_that_is_none_makes_its_row_nan_and_no_other():
    model, rows = built(), X.copy()
    rows[0, 2], rows[1, 3], rows[2, 2], rows[3, 3] = 3, -1, 0.5, np.nan
    (y,) = model.apply(model.parameters, (rows,), train=False, key=0).outputs
    assert np.isnan(y[:4]).all() and not np.isnan(y[4:]).any()
