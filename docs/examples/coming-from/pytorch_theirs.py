"""A training loop in PyTorch, with validation, early stopping and a saved model."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int64")
train = TensorDataset(torch.from_numpy(x[:480]), torch.from_numpy(y[:480]))
val = TensorDataset(torch.from_numpy(x[480:]), torch.from_numpy(y[480:]))

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net.to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-2)
train_loader = DataLoader(train, batch_size=32)
val_loader = DataLoader(val, batch_size=32)

best, best_state, waited, history = float("inf"), None, 0, []
for _ in range(60):
    net.train()
    for inputs, targets in train_loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    net.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for inputs, targets in val_loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = net(inputs)
            loss = nn.functional.cross_entropy(outputs, targets, reduction="sum")
            total += loss.item()
            correct += (outputs.argmax(1) == targets).sum().item()
    val_loss = total / len(val)
    history.append((val_loss, correct / len(val)))
    if val_loss < best:
        best, best_state, waited = val_loss, copy.deepcopy(net.state_dict()), 0
    else:
        waited += 1
        if waited == 3:
            break

net.load_state_dict(best_state)
torch.save(net.state_dict(), "net.pt")
print(f"{len(history)} epochs, best val_loss {best:.4f}")
