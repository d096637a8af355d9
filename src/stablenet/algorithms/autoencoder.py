"""Two tools of M-ADA: a Wasserstein autoencoder of small images, and the ascent that makes harder images with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.long_work import count_steps
from stablenet.replay import record

HIDDEN, CODE, CRITIC = 400, 20, 128  # widths
RATE, FIT_BATCH = 1e-3, 32  # of Adam, for coder and critic
ADVERSARY = 100.0  # weight of the critic's word beside the reconstruction's


class WassersteinAutoencoder(nn.Module):
    r"""values-400-20-400-values, and a critic 20-128-1 that tells codes from draws of N(0, I).

    Coder: min Σ BCE(reconstruction, x) + 100·BCE(C(z̃) + log p(z̃), 1); critic: min BCE(C(z) + log p(z), 1) +
    BCE(C(z̃) + log p(z̃), 0), with codes z̃, draws z and the density p of N(0, I), the best critic's known part.
    """

    def __init__(self, values: int, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(values, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, values))
        self.critic = nn.Sequential(nn.Linear(CODE, CRITIC), nn.ReLU(), nn.Linear(CRITIC, 1))
        self.to(generator.device)
        with torch.no_grad():
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    bound = 1 / math.sqrt(layer.in_features)  # as torch does it, by a generator of our own
                    layer.weight.uniform_(-bound, bound, generator=generator)
                    layer.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        """(b, values) -> reconstructions (b, values) in (0, 1)."""
        reconstructions: Tensor = torch.sigmoid(self.decoder(self.encoder(images)))
        return reconstructions

    def judge(self, codes: Tensor) -> Tensor:
        """The critic's logit (b,) for codes (b, 20) being draws of the prior."""
        logits: Tensor = self.critic(codes).squeeze(1) + log_density(codes)
        return logits


def log_density(codes: Tensor) -> Tensor:
    """log p(z) of N(0, I): (b, d) -> (b,)."""
    return -0.5 * (codes.square().sum(1) + codes.shape[1] * math.log(2 * math.pi))


def fit_autoencoder(
    images: Tensor, epochs: int, generator: torch.Generator, *, graphs: bool = True
) -> WassersteinAutoencoder:
    """A new autoencoder of images (n, values) in [0, 1], on their device and the generator's.

    graphs: replay its steps as a CUDA graph where that is possible.
    """
    model = WassersteinAutoencoder(images.shape[1], generator)
    on_gpu = images.device.type == "cuda"
    coder, critic = (
        torch.optim.Adam([p for part in parts for p in part.parameters()], RATE, fused=on_gpu)
        for parts in ((model.encoder, model.decoder), (model.critic,))
    )

    def step(batch: Tensor) -> None:
        _step(model, batch, coder, critic, generator)

    replay: Callable[[Tensor], None] = step  # of whole batches, from the second on
    for epoch in count_steps(epochs, "training the autoencoder"):
        order = torch.randperm(len(images), generator=generator, device=images.device)
        for number, rows in enumerate(order.split(FIT_BATCH)):
            whole = len(rows) == FIT_BATCH
            if graphs and on_gpu and whole and epoch == 0 and number == 1:
                recording = record(
                    "M-ADA's autoencoder", step, [images[rows]], generator=generator, optimizers=(coder, critic)
                )
                replay = step if recording is None else recording.replay
            (replay if whole else step)(images[rows])
    return model.requires_grad_(False)


def _step(
    model: WassersteinAutoencoder,
    images: Tensor,
    coder: torch.optim.Optimizer,
    critic: torch.optim.Optimizer,
    generator: torch.Generator,
) -> None:
    """One step of the critic, then one of the coder."""
    codes = model.encoder(images)
    draws = torch.randn(codes.shape, generator=generator, device=codes.device)
    critic_loss = _cross_entropy(model.judge(draws), 1.0) + _cross_entropy(model.judge(codes.detach()), 0.0)
    critic.zero_grad()
    critic_loss.backward()
    critic.step()
    reconstruction = functional.binary_cross_entropy_with_logits(model.decoder(codes), images, reduction="sum")
    coder.zero_grad()
    (reconstruction + ADVERSARY * _cross_entropy(model.judge(codes), 1.0)).backward()
    coder.step()


def _cross_entropy(logits: Tensor, target: float) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


Look = Callable[[Tensor], tuple[Tensor, Tensor]]  # images in [0, 1] -> features (b, width), logits (b, classes)
BATCH, SIDE = 32, 32  # the published rate is that of a mean over 32 images of 32 pixels


@dataclass(frozen=True, kw_only=True)
class Ascent:
    """steps, rate: of the ascent; the rate as published, for a mean over a batch of 32 images of 32 × 32 pixels.
    relaxation: weight of the reconstructions' distance.   constraint: weight of the features' distance.
    copy_size: side of the copy that the autoencoder sees.
    """

    steps: int
    rate: float
    relaxation: float
    constraint: float
    copy_size: int


def shrink(images: Tensor, side: int) -> Tensor:
    """Images (b, 3, s, s) averaged, or repeated, to side × side pixels and flattened: (b, 3·side²)."""
    return functional.adaptive_avg_pool2d(images, side).flatten(1)


def ascend(images: Tensor, labels: Tensor, look: Look, autoencoder: WassersteinAutoencoder, ascent: Ascent) -> Tensor:
    r"""Move every image along the gradient of CE + relaxation·MSE(V(x⁺), V(x)) − constraint·MSE(f(x⁺), f(x)).

    images: x, (b, 3, s, s) in [0, 1], and there may be steps beyond it.   labels: (b,).
    look: f and its classifier.   autoencoder: V.   Returns x⁺, (b, 3, s, s).
    Each image moves for itself, whatever batch it comes in. The rate grows with the number of pixels, because the
    gradient of one pixel falls with it: otherwise images of 224 pixels would hardly move.
    """
    with torch.no_grad():
        features, _ = look(images)
        reconstructions = autoencoder(shrink(images, ascent.copy_size))
    rate = ascent.rate / BATCH * images.shape[-2] * images.shape[-1] / SIDE**2
    moved = images.clone()
    for _ in count_steps(ascent.steps, "moving images"):
        moved.requires_grad_()
        seen, logits = look(moved)
        far = _distance(autoencoder(shrink(moved, ascent.copy_size)), reconstructions)
        near = _distance(seen, features)
        objective = functional.cross_entropy(logits, labels, reduction="none")
        objective = objective + ascent.relaxation * far - ascent.constraint * near
        (gradient,) = torch.autograd.grad(objective.sum(), moved)
        moved = (moved + rate * gradient).detach()
    return moved


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Mean squared difference of every row: (b, m), (b, m) -> (b,)."""
    return (one - other).square().mean(1)
