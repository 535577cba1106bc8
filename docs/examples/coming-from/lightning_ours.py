"""The training of lightning_theirs.py: a plain module, and `anyaccel.fit`."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int64")
train = TensorDataset(torch.from_numpy(x[:480]), torch.from_numpy(y[:480]))
val = TensorDataset(torch.from_numpy(x[480:]), torch.from_numpy(y[480:]))

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

fit = aa.fit(
    net,
    DataLoader(train, batch_size=32),
    validation=DataLoader(val, batch_size=32),
    loss="cross_entropy",
    optimizer=aa.Optimizer("adam", lr=3e-2, clip_norm=1.0),
    epochs=60,
    early_stopping=3,
    checkpoint=aa.Checkpoint("checkpoints", keep_best="val_loss"),
    progress="none",
)
losses = fit.results.figure("val_loss")
print(f"{len(losses)} epochs, best val_loss {min(losses):.4f}")
