"""Text classification with accumulated gradients and a schedule, as in Accelerate's gradient_accumulation.py."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import anyaccel as aa

ACCUMULATE = 4
loop = aa.Loop(accumulate=ACCUMULATE)
torch.manual_seed(42)
labels = (torch.rand(260) < 0.5).long()
rows = [
    {"tokens": torch.randint(8 * label, 8 * label + 16, (12,)), "label": label, "text": f"text {i}"}
    for i, label in enumerate(labels)
]
train = DataLoader(rows[:192], batch_size=16, shuffle=True)
test = DataLoader(rows[192:], batch_size=32)

net = nn.Sequential(nn.Embedding(24, 16), nn.Flatten(), nn.Linear(192, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=9)

net, optimizer, schedule, train, test = loop.prepare(net, optimizer, schedule, train, test)
for epoch in range(3):
    net.train()
    for step, batch in enumerate(train):
        loss = nn.functional.cross_entropy(net(batch["tokens"]), batch["label"])
        loop.backward(loss)
        if (step + 1) % ACCUMULATE == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    net.eval()
    right = n_rows = 0
    for batch in test:
        with torch.no_grad():
            predictions = net(batch["tokens"]).argmax(dim=1)
        predictions, references = loop.gather((predictions, batch["label"]))
        right += (predictions == references).sum().item()
        n_rows += len(references)
    loop.print(f"epoch {epoch}: {right} of {n_rows} right, rate {schedule.get_last_lr()[0]:.6f}")
