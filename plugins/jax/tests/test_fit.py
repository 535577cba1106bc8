"""fit, save and load with models of JAX: what is loaded predicts the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
import anyaccel_jax
from anyaccel.errors import ConfigError

rng = np.random.default_rng(0)
X = rng.normal(3.0, 2.0, size=(60, 3)).astype(np.float32)
TABLE = {"p": X[:, 0], "q": X[:, 1], "r": X[:, 2], "kind": np.where(X[:, 0] > 3.0, "large", "small")}


def linen():
    from flax import linen as nn

    return nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(2)])


def nnx():
    from flax import nnx

    return nnx.Sequential(nnx.Linear(3, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 2, rngs=nnx.Rngs(0)))


def equinox():
    import equinox
    import jax

    return equinox.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))


@pytest.mark.parametrize("make", [linen, nnx, equinox])
def test_a_saved_model_predicts_the_same(make, tmp_path):
    fitted = aa.fit(make(), TABLE, target="kind", loss="cross_entropy", epochs=2, validation=0.2, progress="none")
    fitted.save(tmp_path)
    with pytest.raises(ConfigError, match=r"pass it: models={'model'"):
        aa.load(tmp_path)
    again = aa.load(tmp_path, models={"model": make()})
    np.testing.assert_array_equal(again.predict(TABLE, outputs=True), fitted.predict(TABLE, outputs=True))
    assert set(again.predict(TABLE)) <= {"large", "small"}


def test_a_model_with_a_name_need_not_be_given(tmp_path):
    scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler()
    model = anyaccel_jax.SequentialMLP(2)
    fitted = aa.fit(model, TABLE, target="kind", loss="cross_entropy", epochs=2, scaler=scaler, progress="none")
    fitted.save(tmp_path)
    again = aa.load(tmp_path)
    np.testing.assert_array_equal(again.predict(TABLE, outputs=True), fitted.predict(TABLE, outputs=True))
