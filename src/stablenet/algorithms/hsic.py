"""HSIC weighting: StableNet's weight problem with the exact criterion in place of its Fourier estimate.

With p = w/Σw and K_i the Gaussian kernel matrix of feature i, the weighted HSIC of a pair is

    HSIC_ij(p) = pᵀ(K_i∘K_j)p − 2·pᵀ(K_i p ∘ K_j p) + (pᵀK_i p)(pᵀK_j p)

which for equal weights is tr(K_i H K_j H)/n². Summed over i < j it is the dependence of the Fourier features with
their products U_i U_iᵀ replaced by K_i, which they estimate: D/q² → Σ_{i<j} HSIC_ij as q grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, UsedWeights, classify
from stablenet.algorithms.strategy import describe
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import Count, Filled, NonNegative, Positive, Share, check_fields, require
from stablenet.weighting import Solution, WeightingSettings, standardize
from stablenet.weighting.fourier import median_distance
from stablenet.weighting.inputs import check_finite, join_layers
from stablenet.weighting.presets import settings_of
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
        return settings_of("recommended", {"pairs": "features", "objective": "relative", "groups": 0, **own})


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
