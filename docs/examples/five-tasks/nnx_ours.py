"""A Flax NNX model with an Optax optimizer: train, store, predict."""

from __future__ import annotations

import numpy as np
import optax
from flax import nnx

import anyaccel as aa

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0.5).astype("int64")
rngs = nnx.Rngs(0)
model = nnx.Sequential(
    nnx.Linear(8, 32, rngs=rngs),
    nnx.relu,
    nnx.Linear(32, 2, rngs=rngs),
)
schedule = optax.cosine_decay_schedule(1e-2, 190)
fit = aa.fit(
    model,
    {"x": x, "y": y},
    target="y",
    loss="cross_entropy",
    optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule)),
    epochs=10,
    sampler=aa.SimpleSampler(32, shuffle=False),
    progress="none",
)
fit.save("model")
print(f"loss {fit.results.loss[0]:.4f} -> {fit.results.loss[-1]:.4f}")
print(fit.predict({"x": x[:5]}))
