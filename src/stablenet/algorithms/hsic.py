"""HSIC weighting: StableNet's weight problem with the exact criterion in place of its Fourier estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from stablenet.algorithms.base import Algorithm, Context, StepOutput, UsedWeights, classify
from stablenet.algorithms.hsic_pairs import HsicPairs
from stablenet.algorithms.stablenet import describe
from stablenet.data.pipeline import Batch
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import Count, Filled, NonNegative, Positive, Share, check_fields, require
from stablenet.weighting import Solution, WeightingSettings, standardize
from stablenet.weighting.inputs import check_finite, join_layers
from stablenet.weighting.presets import settings_of
from stablenet.weighting.solver import solve_weights


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
