"""The training of keras_theirs.py with `anyaccel.fit`: the same numbers."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

import anyaccel as aa

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int64")
data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
data.add_splits({"train": range(480), "val": range(480, 600)})

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(32, activation="relu"),
        layers.Dense(2),
    ]
)
fit = aa.fit(
    model,
    data["train"],
    validation=data["val"],
    loss="cross_entropy",
    metrics="accuracy",
    optimizer=keras.optimizers.Adam(1e-2),
    epochs=10,
    sampler=aa.SimpleSampler(32, shuffle=False),
    progress="none",
)
fit.save("model")
scores = fit.evaluate(data["val"], metrics=["accuracy"])
loss, accuracy = fit.results.loss[-1], scores.metrics["accuracy"]
print(f"loss {loss:.4f}, val_loss {scores.loss:.4f}, accuracy {accuracy:.4f}")
print(fit.predict(x[480:485]))
