"""CNBB: weights under which every feature, taken as a treatment, leaves the other features balanced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, UsedWeights, classify
from stablenet.data.loader import Batch
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import NonNegative, Whole, check_fields
from stablenet.weighting import effective_sample_size

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

    Departures: a network that ends in a ReLU has tanh in its place, any other has tanh behind it. A feature with all
    samples on one side is no treatment and stays out. No weight falls below a millionth of the mean. In the engine
    the weights sum to n.

    On ResNets it fails, as the StableNet paper reports, in one of two ways, and the diagnostics tell which. The balance
    rises: on an ImageNet ResNet-50 and PACS (batches of 16, two steps) from 2.0e5 to 3.4e5, with an effective sample of
    18 %. The published rate is too long a step for hundreds of treatments: on an untrained ResNet-18 at 32 pixels the
    balance rises with it and falls at a hundredth. Or there is nothing to balance: pooled features are means of what a
    ReLU gave, never negative, and in an untrained ResNet-18 none of them is zero from 128 pixels on, so that no feature
    has two sides (`compared` tells which share has) and weights stay equal. It is not refused there.
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
            weights, told = balance_weights(g.detach(), self.settings)
            # The sum over the batch, where the engine takes means.
            sharpness = self.settings.quantisation * len(g) * g.square().sum(1)
        if self.training:
            self.used.keep(batch.index, weights)
        return StepOutput(weights * per_sample - sharpness, None, {"accuracy": accuracy, **told})

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
    told = {
        "balance_before": before,
        "balance_after": measure_balance(g, treated, w),
        "compared": two_sided.float().mean(),
        "ess_ratio": effective_sample_size(w) / len(w),
    }
    return len(w) * w, told


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
