"""Plain PyTorch: a drop-in replacement for `nn.CrossEntropyLoss`. `python examples/plain.py`"""

import torch
from torch import nn

from stablenet.integrations import StableCriterion


def train(steps: int = 20) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    criterion = StableCriterion(model, taps=["1"], seed=0)  # features of the first stage against the label
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(32, 3, 12, 12)
    y = (x.mean((1, 2, 3)) > 0.5).long()
    for _ in range(steps):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(f"loss {train():.3f}")
