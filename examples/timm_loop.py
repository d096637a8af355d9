"""A timm training loop, on the bundled digits: its models, optimiser and schedule, with StableNet as the loss.

`python examples/timm_loop.py`
"""

import copy

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter
from torch.utils.data import DataLoader

import stablenet
from stablenet.integrations import DatasetCriterion, Indexed


def train(epochs: int = 4, size: int = 32) -> AverageMeter:
    """size: of the images, stored at this size once."""
    torch.manual_seed(0)
    data = stablenet.datasets.load("embedded", split="adversarial", ratio=0.9, size=size)
    model = timm.create_model("resnet10t", num_classes=10)  # with pretrained=True here, say so to the criterion, too
    stages = [stage["module"] for stage in model.feature_info[1:3]]  # the first two stages, without the stem
    loss_fn = DatasetCriterion(model, stages, data.train, num_classes=10, epochs=epochs, held_out=data.validation)
    print(loss_fn)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
    schedule = CosineLRScheduler(optimizer, t_initial=epochs)
    losses, kept = AverageMeter(), model.state_dict()
    for epoch in range(epochs):
        model.train()
        for index, inputs, target in DataLoader(Indexed(data.train), batch_size=64, shuffle=True):
            loss = loss_fn(model(inputs), target, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), len(inputs))
        found = loss_fn.judge(model)
        print(found)
        if found.is_best:
            kept = copy.deepcopy(model.state_dict())
        schedule.step(epoch + 1)
    model.load_state_dict(kept)
    return losses


if __name__ == "__main__":
    print(f"mean loss {train().avg:.3f}")
