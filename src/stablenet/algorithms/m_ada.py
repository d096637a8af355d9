"""M-ADA: domains made of adversarial images, and a network that meta-learns from them.

In order: the pool of augmented images, the source images in the forms that are needed, the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, Stepper, TrainingSet, classify
from stablenet.algorithms.autoencoder import Ascent, WassersteinAutoencoder, ascend, fit_autoencoder, shrink
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.randomness import combine, combine_seed
from stablenet.values import Count, NonNegative, Whole, check_fields
from stablenet.weighting.memory import adopt_saved_shapes


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


@dataclass(frozen=True, kw_only=True)
class MADASettings:
    """domains: augmented ones; 0 is plain cross-entropy.   interval: of the steps that a new domain comes before, the
    first before step `interval`, counted from 1.
    ascent_steps, ascent_rate: on pixels, see `Ascent`.   relaxation: how much the autoencoder's reconstructions shall
    differ.   constraint: how much the features shall not.   inner_rate: of the inner step.
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

    @property
    def ascent(self) -> Ascent:
        return Ascent(
            steps=self.ascent_steps,
            rate=self.ascent_rate,
            relaxation=self.relaxation,
            constraint=self.constraint,
            copy_size=self.copy_size,
        )


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
        """One plain update; the count of them says what is drawn from the pool."""
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
        moved = torch.cat([ascend(x, y, self._look, autoencoder, self.settings.ascent) for x, y in chunks])
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
