"""Hugging Face Trainer, on the bundled digits: its loss is the criterion's, its epochs are chosen by it.

`python examples/huggingface_trainer.py`
"""

import copy
import tempfile

from torch.utils.data import Dataset
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import stablenet
from stablenet.integrations import DatasetCriterion


class Records(Dataset):
    """Samples as the Trainer takes them, with their index."""

    def __init__(self, samples: Dataset) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict:
        pixels, label = self.samples[index]
        return {"pixel_values": pixels, "labels": label, "index": index}


class StableTrainer(Trainer):
    criterion: DatasetCriterion

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        index = inputs.pop("index")
        outputs = model(pixel_values=inputs["pixel_values"])
        loss = self.criterion.train(model.training)(outputs.logits, inputs["labels"], index)
        return (loss, outputs) if return_outputs else loss


class KeepBest(TrainerCallback):
    """kept: the network of the best epoch so far."""

    def __init__(self, criterion: DatasetCriterion) -> None:
        self.criterion, self.kept = criterion, {}

    def on_epoch_end(self, args, state, control, model, **_):
        found = self.criterion.judge(model)
        print(found)
        if found.is_best:
            self.kept = copy.deepcopy(model.state_dict())


def train(epochs: int = 4) -> Trainer:
    set_seed(0)
    data = stablenet.datasets.load("embedded", split="adversarial", ratio=0.9)
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10)
    model = ResNetForImageClassification(config)
    taps = ["resnet.encoder.stages.0", "resnet.encoder.stages.1"]
    criterion = DatasetCriterion(model, taps, data.train, num_classes=10, epochs=epochs, held_out=data.validation)
    print(criterion)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=32, learning_rate=5e-3, use_cpu=True,
            report_to=[], save_strategy="no", remove_unused_columns=False, label_names=["labels"],
        )  # fmt: skip
        best = KeepBest(criterion)
        trainer = StableTrainer(
            model, arguments, train_dataset=Records(data.train), eval_dataset=Records(data.test), callbacks=[best]
        )
        trainer.criterion = criterion
        trainer.train()
        model.load_state_dict(best.kept)
        print(trainer.evaluate())
    return trainer


if __name__ == "__main__":
    train()
