"""Hugging Face Trainer: the criterion as its `compute_loss_func`. `python examples/huggingface_trainer.py`

The Trainer's checkpoints contain only the model; a resumed run starts with an empty memory, which fills in one batch.
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

from stablenet.integrations import StableCriterion


class Images(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict:
        pixels = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(index))
        return {"pixel_values": pixels, "labels": index % 2}


def train(steps: int = 3) -> tuple[Trainer, StableCriterion]:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=2)
    model = ResNetForImageClassification(config)
    criterion = StableCriterion(model, taps=["resnet.encoder.stages.0", "resnet.encoder.stages.1"], seed=0)

    def compute_loss(outputs, labels, num_items_in_batch=None):
        return criterion(outputs.logits, labels)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=8, use_cpu=True, report_to=[], disable_tqdm=True,
            save_strategy="no",
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, train_dataset=Images(), eval_dataset=Images(), compute_loss_func=compute_loss
        )
        trainer.train()
        trainer.evaluate()
    return trainer, criterion


if __name__ == "__main__":
    trainer, criterion = train()
    print(criterion.weighting.diagnostics)
