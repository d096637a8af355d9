"""Small networks and a bare loop, for what a method's own paper claims."""

import torch
from torch import nn

from stablenet.algorithms import Context, build_algorithm
from stablenet.data.loader import Batch
from stablenet.models.network import Backbone, Network


class Pooled(nn.Module):
    """Two convolutions, then the mean over positions: it can be cut at its maps."""

    num_features = 16

    def __init__(self):
        super().__init__()
        width = self.num_features
        first = (nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2))
        self.maps = nn.Sequential(*first, nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())

    def forward_maps(self, images):
        return self.maps(images)

    def forward_tail(self, maps):
        return maps.mean((2, 3))

    def forward(self, images):
        return self.forward_tail(self.forward_maps(images))


class Placed(nn.Module):
    """A convolution and a layer that knows where its inputs stand, for images of 12 pixels."""

    num_features = 16

    def __init__(self):
        super().__init__()
        first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3))
        self.layers = nn.Sequential(*first, nn.Flatten(), nn.Linear(8 * 16, self.num_features), nn.ReLU())

    def forward(self, images):
        return self.layers(images)


def build(method, parameters, body, seed=0, samples=512, classes=2):
    """A method around a new network of `body()`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = body()
        network = Network(Backbone(made, made.num_features), classes)
        context = Context(num_classes=classes, num_domains=1, num_samples=samples, epochs=1, seed=seed)
        return build_algorithm(method, parameters, network, context).train()


def fit(algorithm, x, y, steps, batch=32, rate=0.05, seed=0):
    """Steps on batches drawn from images x (n, 3, s, s) of classes y (n,)."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(algorithm.parameters(), rate, momentum=0.9)
    algorithm.start_epoch(0, None)
    for _ in range(steps):
        index = torch.randint(0, len(x), (batch,), generator=generator)
        output = algorithm.loss(Batch(x[index], y[index], torch.zeros_like(index), index))
        optimizer.zero_grad()
        output.per_sample_loss.mean().backward()
        optimizer.step()
    return algorithm


@torch.no_grad()
def measure_accuracy(algorithm, x, y):
    return (algorithm.predictor().eval()(x).argmax(1) == y).float().mean().item()


def compare_with_erm(algorithm, erm, batch):
    """Loss and gradient of a method, and those of ERM with the same network, in pairs."""
    erm.network.load_state_dict(algorithm.network.state_dict())
    found = []
    for each in (algorithm, erm):
        torch.manual_seed(0)  # dropout
        output = each.loss(batch)
        output.per_sample_loss.mean().backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in each.network.parameters()])
        found.append((output.per_sample_loss.detach(), gradient))
    return zip(*found, strict=True)
