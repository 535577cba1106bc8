"""`compile`, `fit`, `evaluate` and `predict` of Keras."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int64")

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(32, activation="relu"),
        layers.Dense(2),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x[:480],
    y[:480],
    validation_data=(x[480:], y[480:]),
    batch_size=32,
    epochs=10,
    shuffle=False,
    verbose=0,
)
model.save("model.keras")
loss = history.history["loss"][-1]
val_loss, accuracy = model.evaluate(x[480:], y[480:], verbose=0)
print(f"loss {loss:.4f}, val_loss {val_loss:.4f}, accuracy {accuracy:.4f}")
print(model.predict(x[480:485], verbose=0).argmax(1))
