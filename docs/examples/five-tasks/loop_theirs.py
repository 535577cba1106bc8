"""The same with Accelerate."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=4)
torch.manual_seed(0)
x = torch.randn(256, 6)
data = TensorDataset(x, (x[:, 0] > 0).long())
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
net, optimizer, schedule, loader = accelerator.prepare(net, optimizer, schedule, DataLoader(data, batch_size=16))
saved = sorted(Path("runs/loop").glob("*"))
if saved:
    accelerator.load_state(saved[-1])
for epoch in range(len(saved), 4):
    total = 0.0
    for inputs, targets in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        total += accelerator.reduce(loss.detach(), "mean").item()
    accelerator.print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    accelerator.save_state(f"runs/loop/{epoch:03}")
