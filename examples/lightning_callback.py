"""Lightning, with an unmodified module, on the bundled digits: a callback does the rest.

`python examples/lightning_callback.py`
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stablenet
from stablenet.integrations import Indexed
from stablenet.integrations.lightning import DatasetCallback


class PlainClassifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        stages = nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.ReLU()), nn.Sequential(nn.Conv2d(16, 32, 5, 2), nn.ReLU())
        self.model = nn.Sequential(*stages, nn.Flatten(), nn.Linear(512, 10))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        x, y = batch
        return self.criterion(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)


def train(epochs: int = 10, **options) -> tuple[pl.Trainer, DatasetCallback]:
    pl.seed_everything(0)
    data = stablenet.datasets.load("embedded", split="adversarial", ratio=0.9)
    callback = DatasetCallback(["model.0", "model.1"], data.train, num_classes=10, held_out=data.validation)
    module = PlainClassifier()
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback], **options
    )
    trainer.fit(module, DataLoader(Indexed(data.train), batch_size=64, shuffle=True))
    module.load_state_dict(callback.kept)  # the network of the best epoch
    return trainer, callback


if __name__ == "__main__":
    train()
