"""Sample weights by other criteria of independence than StableNet's: HSIC weighting and CNBB.

HSIC weighting is StableNet's weight problem with the exact criterion in place of its Fourier estimate. With p = w/Σw
and K_i the Gaussian kernel matrix of feature i, the weighted HSIC of a pair is

    HSIC_ij(p) = pᵀ(K_i∘K_j)p − 2·pᵀ(K_i p ∘ K_j p) + (pᵀK_i p)(pᵀK_j p)

which for equal weights is tr(K_i H K_j H)/n². Summed over i < j it is the dependence of the Fourier features with
their products U_i U_iᵀ replaced by K_i, which they estimate: D/q² → Σ_{i<j} HSIC_ij as q grows.

Under CNBB's weights every feature, taken as a treatment, leaves the other features balanced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, UsedWeights, classify
from stablenet.algorithms.strategy import describe
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import Count, Filled, NonNegative, Positive, Share, Whole, check_fields, require
from stablenet.weighting import Solution, WeightingSettings, effective_sample_size, recommended, standardize
from stablenet.weighting.fourier import median_distance
from stablenet.weighting.inputs import check_finite, join_layers
from stablenet.weighting.settings import settings_of
from stablenet.weighting.solver import solve_weights

MOST_NUMBERS = 2**28  # in the kernel matrices of a batch, n²·m: 1 GiB


class HsicPairs:
    """Σ_{i<j} HSIC_ij(w) and its gradient, for the weight solver.

    z: (n, m) features.   bandwidth: (m,) σ_i of the kernels exp(−(x − x')²/2σ_i²); the median distance when left out.
    Memory and each evaluation grow as n²·m: small n only.
    """

    def __init__(self, z: Tensor, bandwidth: Tensor | None = None) -> None:
        check_size(*z.shape)
        scale = median_distance(z) if bandwidth is None else bandwidth
        # Centred, which changes the rounding alone: equal shifts of a kernel's functions have no covariance.
        kernels = centre_kernels(gaussian_kernels(z / scale))  # (m, n, n)
        self._pairs = kernels.sum(0).square() - torch.linalg.vecdot(kernels, kernels, dim=0)
        self._rows = kernels.view(-1, len(z))  # (m·n, n): one product for all kernels

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns the sum over pairs, a scalar, and its gradient (n,)."""
        size = w.sum()
        p = w / size
        each = (self._rows @ p).view(-1, len(p))  # (m, n), K_i p
        total, norms = each.sum(0), each @ p
        crossed = total.square() - each.square().sum(0)
        pairs_p = self._pairs @ p
        value = p @ (pairs_p - 2 * crossed) + norms.sum().square() - norms.square().sum()
        mixed = (p * (total - each)).flatten() @ self._rows  # Σ_i K_i (p∘(Kp − K_i p)), as every K_i is symmetric
        rest = (norms.sum() - norms) @ each
        slope = pairs_p - crossed - 2 * mixed + 2 * rest
        return 0.5 * value, (slope - p @ slope) / size  # through p = w/Σw


def gaussian_kernels(z: Tensor) -> Tensor:
    """exp(−(x_a − x_b)²/2) of every column of z (n, m).   Returns (m, n, n)."""
    columns = z.T.contiguous()  # or the result would inherit its order in memory, and every product be slow
    return (columns[:, :, None] - columns[:, None, :]).square_().mul_(-0.5).exp_()


def centre_kernels(kernels: Tensor) -> Tensor:
    """H K_i H with H = I − 11ᵀ/n, in place.   kernels: (m, n, n)."""
    rows = kernels.mean(2, keepdim=True)
    everything = rows.mean(1, keepdim=True)
    return kernels.sub_(rows).sub_(rows.mT).add_(everything)


def check_size(n: int, m: int) -> None:
    """Refuse what would fill the memory before it does."""
    if n * n * m > MOST_NUMBERS:
        raise UserError(
            f"exact HSIC of {m} features over {n} samples needs {n * n * m * 4 / 2**30:.1f} GiB of kernel matrices, at "
            f"most {MOST_NUMBERS * 4 / 2**30:.0f} GiB are allowed: choose smaller batches, fewer features (taps), or "
            "the method stablenet, whose Fourier features are the same at a fraction of the cost"
        )


@dataclass(frozen=True, kw_only=True)
class HSICSettings:
    """taps: which features.   steps, learning_rate, penalty, min_ess: of the weights, see `WeightingSettings`.

    The objective is the scale-free one of the preset `recommended`, so that one penalty serves any width.
    """

    taps: Annotated[tuple[str, ...], Filled()] = (LAST,)
    steps: Count = 20
    learning_rate: Positive = 0.05
    penalty: NonNegative = 0.3  # the paper's; with 0.02 a quarter of the sample was left and learning slow
    min_ess: Share = 0.2

    def __post_init__(self) -> None:
        check_fields(self)
        require(not any(tap.endswith(":maps") for tap in self.taps), "taps", "none of the form 'maps'", self.taps)
        self.solver()

    def solver(self) -> WeightingSettings:
        """The weight solver's settings, checked by itself."""
        own = {name: getattr(self, name) for name in ("steps", "learning_rate", "penalty", "min_ess")}
        return settings_of(recommended.NAME, {"pairs": "features", "objective": "relative", "groups": 0, **own})


class HSIC(Algorithm[HSICSettings]):
    r"""min_{f,g} Σ_i w_i·CE(g(f(x_i)), y_i), w = argmin_w Σ_{i<j} HSIC(Z_i, Z_j; w).

    HSIC is the exact biased criterion under the weighted distribution (Gretton et al., 2005), with Gaussian kernels of
    each feature's median distance on standardised features: what StableNet's random Fourier features estimate. The
    solver is StableNet's, with its guards.

    Its time and memory grow as n²·m in the samples n and features m, which is why the StableNet paper turns away from
    it (see results/hsic). So the weights are solved within each batch, without a memory of past ones, and batches whose
    kernel matrices would not fit are refused.
    """

    title = "weights that make features independent by exact HSIC: slow, small batches only"
    settings_type = HSICSettings
    several_processes = False  # one joint problem would need the batches of all

    def __init__(self, network: Network, settings: HSICSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        network.tap(settings.taps, detach=True)
        self.used = UsedWeights(context.num_samples)

    def loss(self, batch: Batch) -> StepOutput:
        logits, features = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        solution = None if not self.training else solve_hsic(features, self.settings.solver())
        weights = torch.ones_like(per_sample) if solution is None else solution.weights
        if self.training:
            self.used.keep(batch.index, weights)
        return StepOutput(per_sample, weights.detach(), {"accuracy": accuracy, **describe(solution, weights)})

    def sample_columns(self) -> dict[str, Tensor]:
        return {"weight": self.used.weights}


@torch.no_grad()
def solve_hsic(features: Tensor | dict[str, Tensor], settings: WeightingSettings) -> Solution:
    """Weights of a batch, (n,) summing to n, that minimise its pairwise HSIC.   features: (n, m), or several layers."""
    z, layers = join_layers(features)
    if z.device.type == "cpu":
        check_finite(z, layers)
    with torch.autocast(z.device.type, enabled=False):
        statistic = HsicPairs(standardize(z))
        return solve_weights(lambda step: [statistic], z.new_empty(0), len(z), settings)


LEAST_WEIGHT = 1e-6  # of a sample, as a share of the mean: a step too far must not divide by zero


@dataclass(frozen=True, kw_only=True)
class CNBBSettings:
    """steps, rate, decay: of the weights; steps = 0 leaves them equal.   quantisation: of the features towards ±1."""

    steps: Whole = 4
    rate: NonNegative = 1e-4
    decay: NonNegative = 1e-4
    quantisation: NonNegative = 3e-6

    def __post_init__(self) -> None:
        check_fields(self)


class CNBB(Algorithm[CNBBSettings]):
    r"""min Σ_i w_i·CE_i − γ·Σ_i ‖g_i‖², w = argmin_w Σ_j ‖Δ_j(w)‖² + δ·Σ_i w_i² (He, Shen & Cui, 2021).

    g_i ∈ (−1, 1)^m are the last features, bounded by tanh. Feature j is a treatment that sample i has where g_ij > 0;
    Δ_j is the difference between the weighted means of all other features over the treated and over the others.
    For each batch the weights start at 1/n and take a few gradient steps, renormalised after each. The second term of
    the loss drives features towards ±1, so that the treatments are clear-cut.

    Departures: in a network that ends in a ReLU, tanh replaces it; in any other, tanh follows the last layer. A feature
    with all samples on one side is not a treatment and is left out. No weight falls below a millionth of the mean. In
    the engine
    the weights sum to n.

    On ResNets it fails, as the StableNet paper reports, in one of two ways, and the diagnostics show which. The balance
    rises: on an ImageNet ResNet-50 and PACS (batches of 16, two steps) from 2.0e5 to 3.4e5, with an effective sample of
    18 %. The published rate is too long a step for hundreds of treatments: on an untrained ResNet-18 at 32 pixels the
    balance rises with it and falls at a hundredth. Or there is nothing to balance: pooled features are means of what a
    ReLU gave, never negative, and in an untrained ResNet-18 none of them is zero from 128 pixels on, so that no feature
    has two sides (`compared` is the share that has) and weights stay equal. Such networks are not refused.
    """

    title = "balances all features against each one as a treatment; made for AlexNet, fails on ResNets"
    settings_type = CNBBSettings
    several_processes = False  # a batch's weights are solved in one piece

    def __init__(self, network: Network, settings: CNBBSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        bound_features(network)
        network.tap((LAST,))
        self.used = UsedWeights(context.num_samples)

    def loss(self, batch: Batch) -> StepOutput:
        logits, features = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        g = features[LAST].float()
        with torch.autocast(g.device.type, enabled=False):
            weights, diagnostics = balance_weights(g.detach(), self.settings)
            # The sum over the batch, where the engine takes means.
            sharpness = self.settings.quantisation * len(g) * g.square().sum(1)
        if self.training:
            self.used.keep(batch.index, weights)
        return StepOutput(weights * per_sample - sharpness, None, {"accuracy": accuracy, **diagnostics})

    def sample_columns(self) -> dict[str, Tensor]:
        return {"weight": self.used.weights}


def bound_features(network: Network) -> None:
    """Let the network's last features lie in (−1, 1): tanh in place of a final ReLU, or behind everything."""
    last = [(path, m) for path, m in network.body.named_modules() if not isinstance(m, nn.Identity | nn.Dropout)][-1]
    parent, _, child = last[0].rpartition(".")
    # Only in a sequence is the last module known to be applied last, and once.
    if isinstance(last[1], nn.ReLU) and isinstance(network.body.get_submodule(parent), nn.Sequential):
        setattr(network.body.get_submodule(parent), child, nn.Tanh())
        return
    network.body = nn.Sequential(network.body, nn.Tanh())
    network.stages = {name: f"0.{path}" for name, path in network.stages.items()}


def balance_weights(g: Tensor, settings: CNBBSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Weights (n,) that sum to n, and what became of the balance.   g: (n, m) in (−1, 1)."""
    treated = g > 0
    two_sided = treated.any(0) & ~treated.all(0)
    w = g.new_full((len(g),), 1 / len(g))
    before = measure_balance(g, treated, w)
    for _ in count_steps(settings.steps, "balancing a batch"):
        w = w - settings.rate * (balance_slope(g, treated, w) + 2 * settings.decay * w)
        w = w.clamp_min(LEAST_WEIGHT / len(g))
        w = w / w.sum()
    diagnostics = {
        "balance_before": before,
        "balance_after": measure_balance(g, treated, w),
        "compared": two_sided.float().mean(),
        "ess_ratio": effective_sample_size(w) / len(w),
    }
    return len(w) * w, diagnostics


def measure_balance(g: Tensor, treated: Tensor, w: Tensor) -> Tensor:
    """Σ_j ‖Δ_j‖²: how much the other features differ between the two sides of each.

    g: (n, m).   treated: (n, m) boolean.   w: (n,) non-negative.   Returns a scalar; one-sided features count nothing.
    """
    return _differences(g, treated, w)[0].square().sum()


def balance_slope(g: Tensor, treated: Tensor, w: Tensor) -> Tensor:
    """The gradient of `measure_balance` with respect to w (n,)."""
    difference, on, off, total_on, total_off = _differences(g, treated, w)
    projected = g @ difference  # (n, m): sample i along Δ_j
    own_on, own_off = (w @ (on * projected)) / total_on, (w @ (off * projected)) / total_off
    parts = on * (projected - own_on) / total_on - off * (projected - own_off) / total_off
    return 2 * parts.sum(1)


def _differences(g: Tensor, treated: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Δ (m, m), column j that of treatment j; both sides (n, m) as numbers; their total weights (m,)."""
    on, off = treated.to(g.dtype), (~treated).to(g.dtype)
    tiny = torch.finfo(g.dtype).tiny
    total_on, total_off = (w @ on).clamp_min(tiny), (w @ off).clamp_min(tiny)
    difference = g.T @ (w[:, None] * (on / total_on - off / total_off))
    two_sided = treated.any(0) & ~treated.all(0)
    difference = difference * two_sided * ~torch.eye(g.shape[1], dtype=torch.bool, device=g.device)
    return difference, on, off, total_on, total_off
