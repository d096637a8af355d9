"""A timm training loop: its models, optimiser, schedule and mixup, with StableNet as `loss_fn(output, target)`.

`python examples/timm_loop.py`
"""

import timm
import torch
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter

from stablenet.integrations import StableCriterion


def train(epochs: int = 2, steps: int = 2) -> AverageMeter:
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=4)
    stages = [stage["module"] for stage in model.feature_info[1:3]]  # the first two stages, without the stem
    loss_fn = StableCriterion(model, taps=stages, seed=0)
    mixup = Mixup(mixup_alpha=0.2, num_classes=4, label_smoothing=0.0)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
    schedule = CosineLRScheduler(optimizer, t_initial=epochs)
    losses = AverageMeter()
    for epoch in range(epochs):
        model.train()
        for _ in range(steps):
            inputs, target = mixup(torch.rand(8, 3, 32, 32), torch.arange(8) % 4)
            loss = loss_fn(model(inputs), target)  # soft targets also serve as label columns for the weights
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), len(inputs))
        schedule.step(epoch + 1)
    return losses


if __name__ == "__main__":
    print(f"mean loss {train().avg:.3f}")
