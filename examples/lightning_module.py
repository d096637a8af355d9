"""Lightning, in your own module, on the bundled digits: the criterion is a submodule, so checkpoints include its state.

`python examples/lightning_module.py`
"""

import copy

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stablenet
from stablenet.integrations import DatasetCriterion, Indexed


class Classifier(pl.LightningModule):
    """kept: the network of the best epoch so far."""

    def __init__(self, data: stablenet.datasets.SplitDatasets, epochs: int) -> None:
        super().__init__()
        stages = nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.ReLU()), nn.Sequential(nn.Conv2d(16, 32, 5, 2), nn.ReLU())
        self.model = nn.Sequential(*stages, nn.Flatten(), nn.Linear(512, 10))
        self.criterion = DatasetCriterion(
            self.model, ["0", "1"], data.train, num_classes=10, epochs=epochs, held_out=data.validation
        )
        self.kept = self.model.state_dict()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], number: int) -> Tensor:
        index, x, y = batch
        return self.criterion(self.model(x), y, index)

    def on_train_epoch_end(self) -> None:
        found = self.criterion.judge(self.model)
        print(found)
        self.log("held_out_accuracy", found.accuracy)
        if found.is_best:
            self.kept = copy.deepcopy(self.model.state_dict())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)


def train(epochs: int = 10, **options) -> pl.Trainer:
    pl.seed_everything(0)
    data = stablenet.datasets.load("embedded", split="adversarial", ratio=0.9)
    module = Classifier(data, epochs)
    print(module.criterion)
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, **options)
    trainer.fit(module, DataLoader(Indexed(data.train), batch_size=64, shuffle=True))
    module.model.load_state_dict(module.kept)
    return trainer


if __name__ == "__main__":
    train()
