"""Ten minutes: train with one call: the notebook of docs/tutorial as a script."""

from __future__ import annotations

import torch
from torch import nn

import anyaccel as aa
from anyaccel.data import digits

data = digits()
print(data)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


fit = aa.fit(
    build(),
    data,
    loss="cross_entropy",
    validation=0.2,
    metrics="accuracy",
    epochs=30,
    early_stopping=3,
    optimizer=aa.Optimizer("adam", lr=1e-2),
    accelerator="auto",
    progress="none",
)
print(fit)

print(fit.plan)

axes = fit.plot()

fit.predict(data.array("pixels")[:5])

fit.save("digits")

again = aa.load("digits", models={"model": build()})
again.predict(data.array("pixels")[:5])
