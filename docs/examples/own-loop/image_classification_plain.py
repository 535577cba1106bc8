"""Image classification with an evaluation after each epoch, as in Accelerate's complete_cv_example.py."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
labels = torch.arange(203) % 4
images = 0.8 * torch.randn(203, 1, 8, 8)
images[labels % 2 == 0, :, :4] += 1
images[labels < 2, :, :, :4] += 1
train = DataLoader(TensorDataset(images[:150], labels[:150]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(images[150:], labels[150:]), batch_size=16)

backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
for parameter in backbone.parameters():
    parameter.requires_grad = False
net = nn.Sequential(backbone, nn.Linear(72, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-2 / 25)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-2, epochs=3, steps_per_epoch=len(train))

for epoch in range(3):
    net.train()
    for x, y in train:
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    net.eval()
    right = n_rows = 0
    for x, y in test:
        with torch.no_grad():
            predictions = net(x).argmax(dim=1)
        right += (predictions == y).sum().item()
        n_rows += len(y)
    print(f"epoch {epoch}: {right} of {n_rows} right, rate {schedule.get_last_lr()[0]:.6f}")
