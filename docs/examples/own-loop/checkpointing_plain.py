"""A run that is saved after each epoch and resumed; the argument is the number of epochs."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
x = torch.randn(107, 5)
train = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)

net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

first, checkpoint = 0, Path("checkpoint.pt")
if checkpoint.exists():
    state = torch.load(checkpoint)
    first = state["epoch"] + 1
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"])
for epoch in range(first, int(sys.argv[1])):
    for inputs, targets in train:
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save({**state, "epoch": epoch, "random": torch.get_rng_state()}, checkpoint)
    print(f"epoch {epoch}: loss {loss.item():.7f}, rate {schedule.get_last_lr()[0]:.6f}")
