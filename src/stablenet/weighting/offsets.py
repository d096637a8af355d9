"""Offsets: what the context predicts of the label, added to the logits in training so that the network learns the rest.

Weights lose their force where a network fits every sample: a loss near zero stays near zero under any weight. They also
cannot raise what is not there: a class that no training image shows in some context. Offsets have neither weakness.
With p(y | c) what the context c of a sample tells of its label, training on

    CE(g(f(x)) + log p(· | c) − log p(·), y)

lets the network explain only what the context leaves open; it is used without the offset. Under the model
p(y | x) ∝ p_object(y | x)·p(y | c)/p(y) the logits g(f(x)) then are those of the object alone.

The context is not known. Shallow features stand for it: p(y | c) is a logistic regression on them, cross-fitted, so
that no sample's own label takes part in its offset, and its ridge is the one that predicts held-out labels best.

On all features such a regression may name the object, too. What it explains of the label's entropy, U, says how far to
trust it: offsets are multiplied by √U, as a correlation is the root of a share of variance. A pretrained network's
features name the object more than the context. There the few components in which samples differ most, with their
products, stand for the context (`components`): they show the style and less of the object, and are trusted whole.
Labels that features do not predict leave every offset at zero. Where features tell nearly everything they name the
object, or nothing would be left to learn: as U goes from 1 − `LEFT` to 1 the offsets fade to none.

Offsets can go too far, beside weights above all, and most where labels are noisy: the network then answers against the
context. Held-out source samples show it (`context_use`), and `DatasetOffsets.weaken` is the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.errors import UserError
from stablenet.weighting.dataset import SampleStore
from stablenet.weighting.fourier import standardize
from stablenet.weighting.inputs import Features, check_finite, join_layers

LEAST = 1e-5  # of all variance: a component with less is rounding


def leading_components(z: Tensor, count: int) -> Tensor:
    """The `count` leading components of features z (n, m), their squares and pairwise products, all standardized.

    Squares and products let a linear model draw ellipses around groups of samples, as domains are.
    Returns (n, k + k·(k + 1)/2), k at most n and m; components without variance are zeros.
    """
    z = standardize(z)
    tall = len(z) >= z.shape[1]
    variances, vectors = torch.linalg.eigh((z.T @ z if tall else z @ z.T) / len(z))  # rising; the smaller matrix
    chosen = torch.arange(len(variances) - 1, max(-1, len(variances) - 1 - count), -1, device=z.device)
    scores = z @ vectors[:, chosen] if tall else vectors[:, chosen]
    leading = standardize(scores) * (variances[chosen] > LEAST * variances.sum())
    first, second = torch.triu_indices(len(chosen), len(chosen), device=z.device)
    return torch.cat([leading, standardize(leading[:, first] * leading[:, second])], 1)


LEFT = 0.1  # of the label's entropy: offsets that leave less to be learned fade. By argument; published runs have more
FOLDS = 5
RIDGES = (1.0, 0.1, 0.01, 0.001, 0.0001)  # the mean loss is of order one, features are standardized
STEPS = 100  # of L-BFGS for every ridge, starting from the one before


@dataclass(frozen=True)
class Offsets:
    """values: (N, C), what is added to the logits.   explained: U, of the label's entropy, 0 to 1.
    ridge: the chosen one.
    """

    values: Tensor
    explained: float
    ridge: float


@torch.no_grad()
def solve_offsets(
    features: Features, labels: Tensor, num_classes: int | None = None, *, components: int = 0, seed: int = 0
) -> Offsets:
    """Offsets of all N samples.

    features: (N, m), or a dict of layers by name: of layers that show the context, not yet the object.
    labels: (N,) integer classes below num_classes; None takes those that occur.   seed: of the folds.
    components: 0 regresses on all features and trusts them by √U; more on so many leading components, trusted whole.
        Both fade as U goes from 1 − `LEFT` to 1.

    >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> offsets = solve_offsets(x, (x[:, 0] > 0).long())
    >>> offsets.values.shape, offsets.explained > 0.8
    (torch.Size([200, 2]), True)
    """
    check_components(components)
    z, layers = join_layers(features)
    _check_classes(labels, len(z), num_classes)
    check_finite(z, layers)
    labels = labels.long()
    classes = num_classes or int(labels.max()) + 1
    log_prior = (torch.bincount(labels, minlength=classes) / len(labels)).log()  # −inf for a class without samples
    entropy = -float(log_prior[labels].mean())
    with torch.autocast(z.device.type, enabled=False):
        context = leading_components(z, components) if components else _scale(z)
        predicted, loss, ridge = cross_fit(context, labels, classes, deal_folds(labels, seed))
    explained = max(0.0, 1 - loss / entropy) if entropy > 0 else 0.0
    trust = (1.0 if components else explained**0.5) * min(1.0, (1 - explained) / LEFT)
    values = trust * (predicted - log_prior) if explained else torch.zeros_like(predicted)
    return Offsets(torch.where(log_prior.isfinite(), values, 0.0), explained, ridge)


def cross_fit(z: Tensor, y: Tensor, classes: int, fold: Tensor) -> tuple[Tensor, float, float]:
    """Log-probabilities (n, C) of every sample by a regression that was not shown its fold; their log-loss; the ridge.

    z: (n, m) standardized.   y: (n,).   fold: (n,) from 0. From the largest ridge down until held-out labels are
    predicted worse again.
    """
    shown = (fold != torch.arange(int(fold.max()) + 1, device=fold.device)[:, None]).to(z)
    shares = shown / shown.sum(1, keepdim=True).clamp_min(1)
    slopes = z.new_zeros(len(shown), z.shape[1], classes)
    levels = z.new_zeros(len(shown), 1, classes)
    best: tuple[Tensor, float, float] | None = None
    for ridge in RIDGES:
        fit_logistic(z, y, shares, ridge, slopes, levels)
        rows = (z @ slopes + levels)[fold, torch.arange(len(z), device=z.device)]
        told = functional.log_softmax(rows, 1)
        loss = float(functional.nll_loss(told, y))
        if best is not None and loss >= best[1]:
            break
        best = told, loss, ridge
    assert best is not None
    return best


def fit_logistic(z: Tensor, y: Tensor, shares: Tensor, ridge: float, slopes: Tensor, levels: Tensor) -> None:
    """min over every problem k of Σ_i shares_ki·CE_i + ridge·‖slopes_k‖², all k at once, in place.

    z: (n, m).   y: (n,).   shares: (k, n).   slopes: (k, m, C) and levels: (k, 1, C), from where they are.
    """
    optimizer = torch.optim.LBFGS([slopes, levels], max_iter=STEPS, line_search_fn="strong_wolfe")
    truth = functional.one_hot(y, slopes.shape[2]).to(z)

    def loss() -> Tensor:
        told = functional.log_softmax(z @ slopes + levels, 2)
        misses = shares[..., None] * (told.exp() - truth)  # the slope of the loss in the logits
        slopes.grad = z.T @ misses + 2 * ridge * slopes
        levels.grad = misses.sum(1, keepdim=True)
        return ridge * slopes.square().sum() - (shares[..., None] * truth * told).sum()

    optimizer.step(loss)
    slopes.grad = levels.grad = None


def deal_folds(labels: Tensor, seed: int, folds: int = FOLDS) -> Tensor:
    """(n,) every sample's fold, drawn; the samples of a class are spread evenly."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels), device=labels.device) % min(folds, len(labels))
    return fold


def check_components(components: int) -> None:
    """A whole number, 0 or more."""
    if components != int(components) or components < 0:
        raise UserError(f"components must be a whole number, 0 (all features) or more, got {components}")


class DatasetOffsets(SampleStore):
    """Every sample's offsets, kept until the next solve.

    >>> offsets = DatasetOffsets(num_samples=4, num_classes=2)
    >>> offsets.collect(torch.arange(4), torch.randn(4, 3), labels=torch.tensor([0, 0, 1, 1]))
    >>> _ = offsets.solve()
    >>> offsets(torch.tensor([2, 0])).shape
    torch.Size([2, 2])

    In training, `cross_entropy(logits + offsets(index), y)`; to evaluate, the logits alone. Keeps N × C numbers.

    strength: offsets are multiplied by it; beside weights that make context and label independent, whole offsets would
        remove the dependence twice.
    components: as in `solve_offsets`.
    `weaken` them where the network comes to answer against the context, see `context_use`.
    """

    offsets: Tensor
    left: Tensor  # what `weaken` has left of the strength

    def __init__(
        self,
        num_samples: int,
        num_classes: int,
        *,
        strength: float = 1.0,
        components: int = 0,
        seed: int = 0,
        storage: torch.dtype = torch.float16,
    ) -> None:
        super().__init__(num_samples, storage, with_labels=True)
        if strength < 0:
            raise UserError(f"the strength of offsets must be 0 or more, got {strength}")
        check_components(components)
        self.strength, self.components, self.seed = strength, components, seed
        self.register_buffer("offsets", torch.zeros(num_samples, num_classes))
        self.register_buffer("left", torch.ones(()))

    @torch.no_grad()
    def forward(self, index: Tensor) -> Tensor:
        """The offsets (B, C) of the samples with these indices (B,); zeros in `eval()`."""
        found = self.offsets[index.to(self.offsets.device)]
        return found if self.training else torch.zeros_like(found)

    @torch.no_grad()
    def weaken(self, factor: float = 0.5) -> float:
        """Multiply the offsets, also of later solves, by the factor. Returns what is left of the strength, 0 to 1."""
        if not 0 <= factor <= 1:
            raise UserError(f"offsets are weakened by a factor from 0 to 1, got {factor}")
        self.left *= factor
        self.offsets *= factor
        return float(self.left)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        whole = {f"{prefix}left": torch.ones(())}  # for states from before it could be less
        super()._load_from_state_dict({**whole, **state_dict}, prefix, *args)

    @torch.no_grad()
    def solve(self) -> Offsets:
        """Solve for the samples collected since the last solve, and forget the features.

        The solution is of the collected samples in the order of their indices, at full strength.
        """
        chosen, z, labels = self._read()
        assert labels is not None
        solution = solve_offsets(z, labels, self.offsets.shape[1], components=self.components, seed=self.seed)
        self.offsets.zero_()
        self.offsets[chosen] = self.strength * self.left * solution.values
        self._forget()
        return solution


def _scale(z: Tensor) -> Tensor:
    """Columns with mean 0 and standard deviation 1; constant ones become zeros."""
    centred = z - z.mean(0)
    deviation = centred.square().mean(0).sqrt()
    return centred / torch.where(deviation > 1e-6, deviation, 1.0) * (deviation > 1e-6)


def _check_classes(labels: Tensor, size: int, num_classes: int | None) -> None:
    if labels.shape != (size,) or labels.is_floating_point():
        raise UserError(
            f"offsets need one integer class per sample, shape ({size},), got {labels.dtype} {tuple(labels.shape)}"
        )
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or (num_classes is not None and most >= num_classes):
        raise UserError(f"labels must be classes from 0 on, below num_classes={num_classes}, got {least} to {most}")
