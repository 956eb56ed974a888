"""A LightningModule. Lightning itself need not be installed: the base below behaves as its own without a Trainer."""

import torch
import torch.nn.functional as F
from torch import nn

try:
    from lightning import LightningModule
except ImportError:

    class LightningModule(nn.Module):
        automatic_optimization = True
        _trainer = None

        def log(self, name, value, **options):
            raise RuntimeError("self.log needs a Trainer")

        @property
        def trainer(self):
            if self._trainer is None:
                raise RuntimeError("not attached to a Trainer")
            return self._trainer

        @trainer.setter
        def trainer(self, trainer):
            self._trainer = trainer


class LitClassifier(LightningModule):
    def __init__(self, width=64, learning_rate=1e-3):
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10)}


class LitWarmUp(LitClassifier):
    """Its schedule asks the Trainer how long the job is."""

    def configure_optimizers(self):
        steps = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)]


class LitWithData(LitClassifier):
    """Its schedule asks for the data, which only a job has."""

    def configure_optimizers(self):
        steps = len(self.trainer.datamodule.train_dataloader())
        optimizer = torch.optim.SGD(self.parameters(), lr=self.learning_rate)
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)]


class LitGAN(LitClassifier):
    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.Adam(self.net[1].parameters()), torch.optim.Adam(self.net[3].parameters())]
