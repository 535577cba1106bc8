"""The loop that the guides of Flax and Optax show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

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
rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)


@nnx.jit
def step(model, optimizer, inputs, targets):
    def loss_of(model):
        logits = model(inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


losses = []
for _ in range(10):
    total = 0.0
    for i in range(0, len(x), 32):
        loss = step(model, optimizer, x[i : i + 32], y[i : i + 32])
        total += float(loss) * len(x[i : i + 32])
    losses.append(total / len(x))
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(Path("orbax").absolute(), nnx.state(model))
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
print(np.asarray(model(x[:5]).argmax(1)))
