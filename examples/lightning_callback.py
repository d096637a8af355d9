"""Lightning, with an unmodified module: a callback adds the weights and logs their diagnostics.

`python -m examples.lightning_callback`
"""

import lightning.pytorch as pl
import torch
from examples.lightning_module import make_loader
from torch import Tensor, nn

from stablenet.integrations.lightning import StableCallback


class PlainClassifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return self.criterion(self.model(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


def train(**options) -> pl.Trainer:
    weights = StableCallback(taps=["model.1"], log_every=1, seed=0)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[weights], **options
    )
    trainer.fit(PlainClassifier(), make_loader())
    print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    return trainer


if __name__ == "__main__":
    train()
