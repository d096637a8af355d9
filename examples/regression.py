"""Regression: squared error, features against the target itself. `python examples/regression.py`"""

import torch
from torch import nn

from stablenet.integrations import StableCriterion


def train(steps: int = 30) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    criterion = StableCriterion(model, taps=["1"], loss="regression", seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(64, 6)
    y = x[:, 0] - 0.5 * x[:, 1]
    losses = []
    for _ in range(steps):
        loss = criterion(model(x), y)  # outputs (64, 1), targets (64,)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train()
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}")
