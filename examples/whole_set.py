"""`recommended` in plain PyTorch: one line before the loop, an index in it. `python examples/whole_set.py`"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stablenet.integrations import DatasetCriterion, Indexed


def train(pretrained: bool = False, epochs: int = 12) -> float:
    """Accuracy of the network. pretrained: whether it was trained on other images, like a torchvision ResNet."""
    torch.manual_seed(0)
    stages = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
    model = nn.Sequential(stages, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.rand(400, 3, 12, 12), torch.arange(400) % 2
    x[y == 0, :, 5] += 1  # a horizontal bar
    x[y == 1, :, :, 5] += 1  # a vertical one
    samples = TensorDataset(x, y)

    criterion = DatasetCriterion(model, ["0.1", "0.3"], samples, num_classes=2, epochs=epochs, pretrained=pretrained)
    for _ in range(epochs):
        for index, images, labels in DataLoader(Indexed(samples), batch_size=50, shuffle=True):
            loss = criterion(model(images), labels, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return float((model.eval()(x).argmax(1) == y).float().mean())


if __name__ == "__main__":
    for pretrained in (False, True):
        print(f"pretrained={pretrained}: accuracy {train(pretrained):.0%}")
