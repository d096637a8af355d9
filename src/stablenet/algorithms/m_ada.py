"""M-ADA: domains made of adversarial images, and a network that meta-learns from them.

In order: the pool of augmented images, the source images in the forms that are needed, the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, Stepper, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.randomness import combine, combine_seed
from stablenet.replay import record
from stablenet.values import Count, NonNegative, Whole, check_fields
from stablenet.weighting.memory import adopt_saved_shapes

HIDDEN, CODE, CRITIC = 400, 20, 128  # widths
RATE, FIT_BATCH = 1e-3, 32  # of Adam, for coder and critic
ADVERSARY = 100.0  # weight of the critic's word beside the reconstruction's


class WassersteinAutoencoder(nn.Module):
    r"""values-400-20-400-values, and a critic 20-128-1 that distinguishes codes from draws of N(0, I).

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
class MADASettings:
    """domains: augmented ones; 0 is plain cross-entropy.   interval: of the steps that a new domain comes before, the
    first before step `interval`, counted from 1.
    ascent_steps, ascent_rate: on pixels; the rate as published, for a mean over a batch of 32 images of 32 × 32 pixels.
    relaxation: how strongly the autoencoder's reconstructions are driven apart.   constraint: how strongly the features
        are held together.
    inner_rate: of the inner step.
    autoencoder_epochs: for each augmented domain.   copy_size: side of the copy that the autoencoder sees.
    largest_domain: images of an augmented domain at most; None takes all, as published.
    """

    domains: Whole = 3
    interval: Whole = 100
    ascent_steps: Count = 25
    ascent_rate: NonNegative = 1.0
    relaxation: NonNegative = 2000.0
    constraint: NonNegative = 1.0
    inner_rate: NonNegative = 1e-4
    autoencoder_epochs: Count = 20
    copy_size: Count = 32
    largest_domain: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def shrink(images: Tensor, side: int) -> Tensor:
    """Images (b, 3, s, s) averaged, or repeated, to side × side pixels and flattened: (b, 3·side²)."""
    return functional.adaptive_avg_pool2d(images, side).flatten(1)


def ascend(
    images: Tensor, labels: Tensor, look: Look, autoencoder: WassersteinAutoencoder, settings: MADASettings
) -> Tensor:
    r"""Move every image along the gradient of CE + relaxation·MSE(V(x⁺), V(x)) − constraint·MSE(f(x⁺), f(x)).

    images: x, (b, 3, s, s) in [0, 1], and there may be steps beyond it.   labels: (b,).
    look: f and its classifier.   autoencoder: V.   Returns x⁺, (b, 3, s, s).
    Each image moves for itself, whatever batch it comes in. The rate grows with the number of pixels, because the
    gradient of one pixel falls with it: otherwise images of 224 pixels would hardly move.
    """
    with torch.no_grad():
        features, _ = look(images)
        reconstructions = autoencoder(shrink(images, settings.copy_size))
    rate = settings.ascent_rate / BATCH * images.shape[-2] * images.shape[-1] / SIDE**2
    moved = images.clone()
    for _ in count_steps(settings.ascent_steps, "moving images"):
        moved.requires_grad_()
        seen, logits = look(moved)
        far = _distance(autoencoder(shrink(moved, settings.copy_size)), reconstructions)
        near = _distance(seen, features)
        objective = functional.cross_entropy(logits, labels, reduction="none")
        objective = objective + settings.relaxation * far - settings.constraint * near
        (gradient,) = torch.autograd.grad(objective.sum(), moved)
        moved = (moved + rate * gradient).detach()
    return moved


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Mean squared difference of every row: (b, m), (b, m) -> (b,)."""
    return (one - other).square().mean(1)


class AugmentedPool(nn.Module):
    """images: (n, 3, s, s) in half precision, finer than the 8 bits images come in.   labels: (n,).
    domain: (n,) the number of the augmented domain.
    """

    images: Tensor
    labels: Tensor
    domain: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.domains = 0  # how many are in it, on the host
        self.register_buffer("images", torch.empty(0, dtype=torch.float16))
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("domain", torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, images: Tensor, labels: Tensor) -> None:
        """A new domain: images (b, 3, s, s), labels (b,)."""
        images = images.half()
        self.images = torch.cat([self.images, images]) if len(self) else images
        self.labels = torch.cat([self.labels, labels])
        self.domain = torch.cat([self.domain, torch.full_like(labels, self.domains)])
        self.domains += 1

    def draw(self, number: int, seed: int, step: Tensor) -> tuple[Tensor, Tensor]:
        """`number` images of all domains with their labels, a function of the seed and the step (a scalar)."""
        keys = combine(seed, step, torch.arange(number, device=step.device))
        rows = keys.remainder(len(self))
        return self.images[rows].float(), self.labels[rows]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        adopt_saved_shapes(self, ("images", "labels", "domain"), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.domains = int(self.domain[-1]) + 1 if len(self) else 0


class PixelScale(nn.Module):
    """Between the network's inputs and [0, 1], by the smallest and largest value of every channel in the source.

    Where some pixel is black and some white this undoes the normalisation, which a method does not know.
    """

    low: Tensor
    span: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(1, 3, 1, 1))
        self.register_buffer("span", torch.ones(1, 3, 1, 1))

    def measure(self, training_set: TrainingSet) -> None:
        """Look at all source images."""
        extremes = [torch.stack([b.x.amin((0, 2, 3)), b.x.amax((0, 2, 3))]) for b in training_set.batches()]
        low, high = torch.stack(extremes)[:, 0].amin(0), torch.stack(extremes)[:, 1].amax(0)
        self.low.copy_(low.view(1, 3, 1, 1))
        self.span.copy_((high - low).clamp(min=1e-6).view(1, 3, 1, 1))  # a channel may be constant

    def to_unit(self, inputs: Tensor) -> Tensor:
        return (inputs - self.low) / self.span

    def to_input(self, images: Tensor) -> Tensor:
        return images * self.span + self.low


def copy_source(training_set: TrainingSet, scale: PixelScale, side: int) -> Tensor:
    """All source images, small: (n, 3·side²) in [0, 1]."""
    return torch.cat([shrink(scale.to_unit(batch.x), side) for batch in training_set.batches()])


def pick_source(training_set: TrainingSet, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The images (b, 3, s, s) and labels (b,) of samples whose index is set in chosen (num_samples,)."""
    rows = []
    for batch in training_set.batches():
        kept = chosen[batch.index]
        rows.append((batch.x[kept], batch.y[kept]))
    images, labels = zip(*rows, strict=True)
    return torch.cat(images), torch.cat(labels)


def choose_rows(total: int, number: int, generator: torch.Generator) -> Tensor:
    """A mask (total,) with `number` places set, or all where there are fewer."""
    mask = torch.zeros(total, dtype=torch.bool, device=generator.device)
    mask[torch.randperm(total, generator=generator, device=generator.device)[:number]] = True
    return mask


LEAST_AT_ONCE = 64  # images that ascend together; they do not know of each other
NUMBERS_AT_ONCE = 1024 * 3 * 28**2  # of small images as many as hold so many numbers


class MADA(Algorithm[MADASettings]):
    r"""min_θ ½·[L(S; θ) + L(S⁺; θ − η∇L(S; θ))], S a batch of the source, S⁺ of the augmented domains.

    Learning to learn single domain generalization (Qiao, Zhao and Peng, 2020). The gradient goes through the inner
    step (second order). An augmented domain starts from source images, and from those of earlier augmented domains,
    which climb CE + 2000·MSE(V(x⁺), V(x)) − MSE(f(x⁺), f(x)) with the network f as it stands, in evaluation mode, and
    an autoencoder V that is trained anew on the latest domain; labels stay. Domain k is 1/k of the source in size,
    1/k of it from the source. Until the first domain is made this is plain cross-entropy.

    Departures: V works on a copy of 32 × 32 pixels, which is all there is of the published digits but a blurred
    view of larger images; the ascent's rate grows with the number of pixels. Images are scaled to
    [0, 1] by the training set's own extremes of every channel, and the autoencoder's targets are clipped to it. The
    critic adds each code's own log density, where the published code adds that of a draw. Augmented images are kept
    in half precision, drawn with replacement, and not cropped or coloured further; batch normalisation, which the
    published network does not have, sees source and augmented batches one after the other.
    """

    title = "adversarial domains from an autoencoder, met after an inner step"
    settings_type = MADASettings
    replayable = True
    one_plain_pass = False  # a second pass, with other weights, through which the first one is differentiated
    several_processes = False  # an augmented domain is made of all samples

    steps: Tensor

    def __init__(self, network: Network, settings: MADASettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.pool = AugmentedPool()
        self.scale = PixelScale()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, batch: Batch) -> StepOutput:
        # The fused kernels of attention have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            logits, _ = self.run_network(batch.x)
            per_sample, accuracy = classify(logits, batch.y)
            if not len(self.pool):
                nothing = torch.full_like(accuracy, torch.nan)
                return StepOutput(per_sample, None, {"accuracy": accuracy, "augmented_loss": nothing})
            augmented = self._lose_after_step(per_sample.mean(), len(batch.y))
        diagnostics = {"accuracy": accuracy, "augmented_loss": augmented.detach().mean()}
        return StepOutput((per_sample + augmented) / 2, None, diagnostics)

    def step(self, batch: Batch, stepper: Stepper) -> StepOutput:
        """One plain update; the number of updates so far determines what is drawn from the pool."""
        output = super().step(batch, stepper)
        self.steps += 1
        return output

    def start_step(self, step: int, training_set: TrainingSet) -> dict[str, float]:
        made = self.pool.domains
        due = (made + 1) * self.settings.interval - 1
        if made == self.settings.domains or step < due:
            return {}
        return self._make_domain(made, training_set)

    def _lose_after_step(self, loss: Tensor, number: int) -> Tensor:
        """Losses (number,) of augmented images under the weights that one step on `loss` would give."""
        images, labels = self.pool.draw(number, self.context.seed, self.steps)
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        stepped = take_step(loss, trained, self.settings.inner_rate)
        augmented, _ = classify(functional_call(self.network, stepped, (images,)), labels)
        return augmented

    def _make_domain(self, made: int, training_set: TrainingSet) -> dict[str, float]:
        """Augmented domain number `made`, from 0."""
        generator = torch.Generator(self.steps.device)
        generator.manual_seed(combine_seed(self.context.seed, made))
        if made == 0:
            self.scale.measure(training_set)
        autoencoder = self._train_autoencoder(made, training_set, generator)
        images, labels = self._choose_images(made, training_set, generator)
        self.network.eval()
        chunk = max(LEAST_AT_ONCE, NUMBERS_AT_ONCE // images.shape[1:].numel())
        chunks = zip(images.split(chunk), labels.split(chunk), strict=True)
        moved = torch.cat([ascend(x, y, self._look, autoencoder, self.settings) for x, y in chunks])
        self.network.train()
        self.pool.add(self.scale.to_input(moved), labels)
        change = (moved - images).square().mean().sqrt()
        return {"augmented_domain": made + 1.0, "augmented_images": float(len(labels)), "pixel_change": float(change)}

    def _train_autoencoder(
        self, made: int, training_set: TrainingSet, generator: torch.Generator
    ) -> WassersteinAutoencoder:
        """On the latest domain: the source, or the one before."""
        side = self.settings.copy_size
        if made == 0:
            copies = copy_source(training_set, self.scale, side)
        else:
            latest = self.pool.images[self.pool.domain == made - 1].float()
            copies = shrink(self.scale.to_unit(latest), side).clamp(0, 1)
        return fit_autoencoder(copies, self.settings.autoencoder_epochs, generator, graphs=self.graphs)

    def _choose_images(self, made: int, training_set: TrainingSet, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images of source and augmented domains, all in equal shares, to start from; with their labels."""
        total = self.context.num_samples
        number = min(total // (made + 1), self.settings.largest_domain or total)
        from_source = -(-number // (made + 1))
        images, labels = pick_source(training_set, choose_rows(total, from_source, generator))
        if made > 0:
            again = choose_rows(len(self.pool), number - from_source, generator)
            images = torch.cat([images, self.pool.images[again].float()])
            labels = torch.cat([labels, self.pool.labels[again]])
        return self.scale.to_unit(images), labels

    def _look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of images in [0, 1]."""
        features = self.network.forward_features(self.scale.to_input(images))
        return features, self.network.forward_head(features)


def take_step(loss: Tensor, parameters: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """The parameters after one step of gradient descent, as functions of the parameters before it."""
    gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True, materialize_grads=True)
    return {name: p - rate * gradient for (name, p), gradient in zip(parameters.items(), gradients, strict=True)}
