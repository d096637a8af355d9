"""Several taps, and a checkpoint from which training resumes exactly. `python examples/several_taps.py`"""

import torch
from torchvision.models import resnet18

from stablenet.integrations import StableCriterion


def train(steps: int = 2) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = resnet18(num_classes=3)
    criterion = StableCriterion(model, taps=["layer1", "layer2"], preset="recommended", seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x, y = torch.rand(12, 3, 32, 32), torch.arange(12) % 3
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(criterion.weighting.diagnostics)
    return {**model.state_dict(), **{f"criterion.{k}": v for k, v in criterion.state_dict().items()}}


if __name__ == "__main__":
    train()
