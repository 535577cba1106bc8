"""A loop with Hugging Face Accelerate: accumulation, clipping, and an evaluation."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)
x = torch.randn(256, 4)
data = TensorDataset(x, x.sum(dim=1, keepdim=True))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

net, optimizer, loader, test = accelerator.prepare(
    net,
    optimizer,
    DataLoader(data, batch_size=32),
    DataLoader(data, batch_size=64),
)
for _ in range(5):
    for inputs, targets in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.mse_loss(net(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

outputs = []
with torch.no_grad():
    for inputs, targets in test:
        outputs.append(accelerator.gather_for_metrics(net(inputs) - targets))
error = torch.cat(outputs).abs().mean().item()
accelerator.print(f"mean error {error:.4f}")
