"""A loop with accumulation, clipping, a schedule, and checkpoints to resume from."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa

loop = aa.Loop(framework="torch", accumulate=4)
torch.manual_seed(0)
x = torch.randn(256, 6)
data = TensorDataset(x, (x[:, 0] > 0).long())
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
net, optimizer, schedule, loader = loop.prepare(net, optimizer, schedule, DataLoader(data, batch_size=16))
for epoch in loop.epochs(4, save="runs/loop"):
    total = 0.0
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loop.backward(loss)
        loop.clip_grad_norm_(net, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loop.reduce(loss).item()
    loop.print(f"epoch {epoch}: loss {total / len(loader):.4f}")
