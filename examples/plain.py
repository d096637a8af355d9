"""`recommended` in plain PyTorch, on the bundled digits, whose backgrounds mislead. `python examples/plain.py`

The criterion reads the training set once and says what it found; after every epoch it says whether to keep the network.
"""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader

import stablenet
from stablenet.integrations import DatasetCriterion, Indexed


def make_network() -> nn.Module:
    first = nn.Sequential(nn.Conv2d(3, 32, 5), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(32, 64, 5), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, second, nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))


def train(epochs: int = 15, **options) -> float:
    """Accuracy on the test images.   options: of `DatasetCriterion`."""
    torch.manual_seed(0)
    data = stablenet.datasets.load("embedded", split="adversarial", ratio=0.9)
    model = make_network()
    criterion = DatasetCriterion(
        model, ["0", "1"], data.train, num_classes=10, epochs=epochs, held_out=data.validation, **options
    )
    print(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    loader = DataLoader(Indexed(data.train), batch_size=64, shuffle=True)
    kept = model.state_dict()
    for _ in range(epochs):
        for index, x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y, index).backward()
            optimizer.step()
        found = criterion.judge(model)
        print(found)
        if found.is_best:
            kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return measure(model, data.test)


@torch.no_grad()
def measure(model: nn.Module, samples: torch.utils.data.Dataset) -> float:
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in DataLoader(samples, batch_size=500)]
    return float(torch.cat(right).mean())


if __name__ == "__main__":
    print(f"{train():.1%} of the test images, whose backgrounds are those of other digits")
