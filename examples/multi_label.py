"""Multi-label classification: binary cross-entropy, features against all labels. `python examples/multi_label.py`"""

import torch
from torch import nn

from stablenet.integrations import StableCriterion


def train(steps: int = 30) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    criterion = StableCriterion(model, taps=["1"], loss="multi-label", seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(64, 6)
    y = x[:, :3] > 0  # (64, 3): any number of labels may be true
    losses = []
    for _ in range(steps):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train()
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}")
