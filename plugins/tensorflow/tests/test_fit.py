"""fit, save, load and prepare with Keras: what is loaded predicts the same bits, and a loop by hand is fed ahead."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import anyaccel as aa

rng = np.random.default_rng(0)
X = rng.normal(3.0, 2.0, size=(60, 3)).astype(np.float32)
TABLE = {"x": X, "kind": np.where(X[:, 0] > 3.0, "large", "small")}


def model():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])


def test_a_saved_model_predicts_the_same(tmp_path):
    fitted = aa.fit(model(), TABLE, target="kind", loss="cross_entropy", epochs=2, validation=0.2, progress="none")
    fitted.save(tmp_path)
    again = aa.load(tmp_path, models={"model": model()})
    np.testing.assert_array_equal(again.predict(TABLE, outputs=True), fitted.predict(TABLE, outputs=True))
    assert set(again.predict(X[:5])) <= {"large", "small"}


def test_a_data_set_is_streamed_and_prepared():
    dataset = tf.data.Dataset.from_tensor_slices((X, (X[:, 0] > 3.0).astype(np.int64))).batch(16)
    fitted = aa.fit(model(), dataset, loss="cross_entropy", epochs=2, validation=dataset, progress="none")
    assert np.isfinite(fitted.results.figure("val_loss")).all()
    net, batches = aa.prepare(fitted.graph["model"].model, dataset)
    assert [net(x).shape[0] for x, _ in batches] == [16, 16, 16, 12]
