"""A LightningModule and a Trainer, with early stopping and the best checkpoint."""

from __future__ import annotations

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 8)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int64")
train = TensorDataset(torch.from_numpy(x[:480]), torch.from_numpy(y[:480]))
val = TensorDataset(torch.from_numpy(x[480:]), torch.from_numpy(y[480:]))


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        outputs = self.net(inputs)
        self.log("val_loss", nn.functional.cross_entropy(outputs, targets))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-2)


pl.seed_everything(0)
model = Classifier()
best = ModelCheckpoint(monitor="val_loss", dirpath="checkpoints")
trainer = pl.Trainer(
    max_epochs=60,
    gradient_clip_val=1.0,
    callbacks=[EarlyStopping("val_loss", patience=3), best],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(model, DataLoader(train, batch_size=32), DataLoader(val, batch_size=32))
print(f"{trainer.current_epoch} epochs, best val_loss {best.best_model_score:.4f}")
