"""DomainBed: the calls of its training script, with StableNet as the algorithm.

`python examples/domainbed_algorithm.py`
"""

import torch

from stablenet.integrations.domainbed import DomainBedStableNet


def train(steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    hparams = {"lr": 1e-3, "weight_decay": 0.0, "resnet18": True}
    algorithm = DomainBedStableNet(input_shape=(3, 28, 28), num_classes=2, num_domains=3, hparams=hparams)
    algorithm.train()
    losses = []
    for _ in range(steps):
        minibatches = [(torch.rand(8, 3, 28, 28), torch.arange(8) % 2) for _ in range(3)]  # one per domain
        losses.append(algorithm.update(minibatches, None)["loss"])
    algorithm.eval()
    with torch.no_grad():
        algorithm.predict(torch.rand(4, 3, 28, 28))
    return losses


if __name__ == "__main__":
    print(train())
