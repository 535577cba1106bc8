"""A run that is saved after each epoch and resumed; the argument is the number of epochs."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa

loop = aa.Loop()
torch.manual_seed(42)
x = torch.randn(107, 5)
train = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)

net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

net, optimizer, schedule, train = loop.prepare(net, optimizer, schedule, train)
for epoch in loop.epochs(int(sys.argv[1]), save="checkpoints"):
    for inputs, targets in train:
        loss = nn.functional.mse_loss(net(inputs), targets)
        loop.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
    loop.print(f"epoch {epoch}: loss {loop.reduce(loss):.7f}, rate {schedule.get_last_lr()[0]:.6f}")
