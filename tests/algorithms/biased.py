"""A made-up set in which a context tells nearly every label, and a bare loop that trains any method on it."""

import torch
from torch import nn

from stablenet.algorithms import Context, TrainingSet, build_algorithm
from stablenet.data.loader import Batch, BatchSettings, order_epoch
from stablenet.models import Network
from stablenet.models.network import Backbone

SAMPLES, BATCH, RATE = 1000, 25, 0.02


class Rows(TrainingSet):
    """A `TrainingSet` of rows (n, k) as images of one pixel."""

    def __init__(self, rows, y, domain):
        self.x, self.y, self.domain = rows[:, :, None, None], y, domain

    def take(self, index):
        return Batch(self.x[index], self.y[index], self.domain[index], index)

    def batches(self):
        return (self.take(index) for index in torch.arange(len(self.y)).split(64))


def draw(samples, ratio, seed):
    """Two classes, two contexts; a context is seen in its own class with the share `ratio`.

    A column tells the context at once, four others the class between them, each with much noise.
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 2
    context = torch.where(torch.rand(samples, generator=generator) < ratio, y, 1 - y)
    core = 0.4 * (2.0 * y[:, None] - 1) + 0.4 * torch.randn(samples, 4, generator=generator)
    shortcut = 3 * (2.0 * context[:, None] - 1) + 0.3 * torch.randn(samples, 1, generator=generator)
    return Rows(torch.cat([core, shortcut], 1), y, context)


def train(name, parameters=None, *, ratio=0.95, epochs=5, seed=0, validation=None):
    """The method after its epochs; sampling, refitting and judging as the engine does them."""
    samples = draw(SAMPLES, ratio, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Flatten(), nn.Linear(5, 16), nn.Tanh())
        network = Network(Backbone(body, 16), 2)
        context = Context(
            num_classes=2,
            num_domains=2,
            num_samples=SAMPLES,
            epochs=epochs,
            seed=seed,
            training_domains=(0, 1),
            num_validation=0 if validation is None else len(validation.y),
        )
        algorithm = build_algorithm(name, parameters or {}, network, context).train()
        optimizer = torch.optim.SGD(algorithm.parameters(), RATE, momentum=0.9)
        for epoch in range(epochs):
            algorithm.start_epoch(epoch, samples)
            if epoch == 0 and validation is not None:
                algorithm.judge_epochs().start(validation)
            settings = BatchSettings(batch_size=BATCH, seed=seed)
            order = order_epoch(samples.domain, epoch, settings, algorithm.sampling_weights())
            for index in order.position.split(BATCH):
                output = algorithm.loss(samples.take(index))
                weights = 1.0 if output.weights is None else output.weights
                optimizer.zero_grad()
                (weights * output.per_sample_loss).mean().backward()
                optimizer.step()
            algorithm.end_epoch(epoch)
            algorithm.refit(samples)
    return algorithm


@torch.no_grad()
def worst_group(algorithm, seed=100):
    """The lowest accuracy over pairs of class and context, where they are equally frequent."""
    test = draw(2000, 0.5, seed)
    right = (algorithm.predictor().eval()(test.x).argmax(1) == test.y).double()
    return min(right[(test.y == y) & (test.domain == c)].mean().item() for y in (0, 1) for c in (0, 1))
