"""Lightning, in your own module: the criterion is a submodule, so checkpoints include its memory.

`python -m examples.lightning_module`
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stablenet.integrations import StableCriterion


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
        self.criterion = StableCriterion(self.model, taps=["1"], seed=0)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return self.criterion(self.model(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


def make_loader() -> DataLoader:
    x = torch.rand(32, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, (x.mean((1, 2, 3)) > 0.5).long()), batch_size=8)


def train(**options) -> pl.Trainer:
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, **options)
    trainer.fit(Classifier(), make_loader())
    return trainer


if __name__ == "__main__":
    train()
