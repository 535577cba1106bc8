"""The loop of accelerate_theirs.py with `anyaccel.Loop`."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa

loop = aa.Loop(framework="torch", accumulate=2)
torch.manual_seed(0)
x = torch.randn(256, 4)
data = TensorDataset(x, x.sum(dim=1, keepdim=True))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

net, optimizer, loader, test = loop.prepare(
    net,
    optimizer,
    DataLoader(data, batch_size=32),
    DataLoader(data, batch_size=64),
)
for _ in range(5):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(net(inputs), targets)
        loop.backward(loss)
        loop.clip_grad_norm_(net, 1.0)
        optimizer.step()
        optimizer.zero_grad()

with torch.no_grad():
    errors = loop.gather(net(inputs) - targets for inputs, targets in test)
loop.print(f"mean error {errors.abs().mean().item():.4f}")
