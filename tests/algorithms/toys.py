"""Methods around networks of a few numbers, trained on all samples at once: small enough to see what a term does."""

import torch
from torch import nn

from stablenet.algorithms import Context, build_algorithm
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.models.network import Backbone


def toy_batch(rows, y, domain=None):
    """rows: (n, k) as images of one pixel with k channels."""
    domain = torch.zeros_like(y) if domain is None else domain
    return Batch(rows[:, :, None, None].float(), y, domain, torch.arange(len(y)))


def toy_method(name, parameters, body, width, classes=2, domains=1, seed=0):
    """A method around `body`, which gives `width` features of flat rows; the seed is that of the weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in body.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        network = Network(Backbone(nn.Sequential(nn.Flatten(), body), width), classes)
    context = Context(
        num_classes=classes,
        num_domains=domains,
        num_samples=1,
        epochs=1,
        seed=seed,
        training_domains=tuple(range(domains)),
    )
    return build_algorithm(name, parameters, network, context)


def fit(algorithm, batch, steps, rate=0.05):
    """Adam on the whole batch; the trained network in eval mode."""
    optimizer = torch.optim.Adam(algorithm.parameters(), rate)
    algorithm.train().start_epoch(0, None)
    for _ in range(steps):
        optimizer.zero_grad()
        reduce(algorithm.loss(batch)).backward()
        optimizer.step()
    return algorithm.network.eval()


def reduce(output):
    """The engine's reduction: the weighted mean."""
    weights = 1.0 if output.weights is None else output.weights
    return (weights * output.per_sample_loss).mean()


@torch.no_grad()
def accuracy(network, batch):
    return (network(batch.x).argmax(1) == batch.y).float().mean().item()


def loss_and_gradient(algorithm, batch, seed=0):
    """The reduced loss and the gradient of every parameter of the network; the seed is that of dropout."""
    algorithm.zero_grad()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loss = reduce(algorithm.train().loss(batch))
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in algorithm.network.parameters())]
