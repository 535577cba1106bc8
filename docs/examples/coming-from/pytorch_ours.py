"""The training loop of pytorch_theirs.py with `anyaccel.fit`."""

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
train_loader = DataLoader(train, batch_size=32)
val_loader = DataLoader(val, batch_size=32)

fit = aa.fit(
    net,
    train_loader,
    validation=val_loader,
    loss="cross_entropy",
    metrics="accuracy",
    epochs=60,
    early_stopping=3,
    optimizer=aa.Optimizer("adam", lr=3e-2, clip_norm=1.0),
    accelerator="auto",
    progress="none",
)
fit.save("net")
losses = fit.results.figure("val_loss")
print(f"{len(losses)} epochs, best val_loss {min(losses):.4f}")
