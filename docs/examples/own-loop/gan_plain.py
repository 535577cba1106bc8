"""A GAN: two models and two optimizers, which take turns in each batch."""

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
real = 0.3 * torch.randn(107, 2) + torch.tensor([2.0, -1.0])
noise = torch.randn(107, 2)  # in the data set, so that each row keeps its noise, whichever process computes it
loader = DataLoader(TensorDataset(real, noise), batch_size=16, shuffle=True)

generator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3)

for epoch in range(5):
    for x, z in loader:
        fake = generator(z)
        opt_d.zero_grad()
        loss_d = softplus(-discriminator(x)).mean() + softplus(discriminator(fake.detach())).mean()
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = softplus(-discriminator(fake)).mean()
        loss_g.backward()
        opt_g.step()
    print(f"epoch {epoch}: discriminator {loss_d.item():.7f}, generator {loss_g.item():.7f}")
