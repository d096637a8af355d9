"""CORAL: features whose means and covariances are alike in all domains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import NonNegative, check_fields


@dataclass(frozen=True, kw_only=True)
class CORALSettings:
    """strength: γ of the distance between domains."""

    strength: NonNegative = 1.0  # DomainBed

    def __post_init__(self) -> None:
        check_fields(self)


class CORAL(Algorithm[CORALSettings]):
    r"""min CE + γ·mean over pairs of domains of ‖μ_d − μ_e‖²/m + ‖C_d − C_e‖²_F/m² (Sun & Saenko, 2016).

    μ_d and C_d are the mean and the covariance, with n_d − 1, of the m last features over domain d's samples.

    Departures: as in DomainBed, source domains are aligned with each other instead of a source with a target, the means
    as well, and the distance is not divided by four. A domain with a single sample in the batch has no covariance and
    stays out.
    """

    title = "means and covariances of features alike in all domains"
    settings_type = CORALSettings
    uses_domains = True
    several_processes = False  # means and covariances are those of the whole batch

    def __init__(self, network: Network, settings: CORALSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        network.tap((LAST,))

    def loss(self, batch: Batch) -> StepOutput:
        logits, features = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        with torch.autocast(batch.x.device.type, enabled=False):
            distance = domain_distance(features[LAST].float(), batch.domain)
        told = {"accuracy": accuracy, "distance": distance.detach()}
        return StepOutput(per_sample + self.settings.strength * distance, None, told)


def domain_distance(z: Tensor, domain: Tensor) -> Tensor:
    r"""Mean over pairs of domains of the squared differences of means and covariances.   z: (b, m).   domain: (b,).

    With K domains and ⟨·,·⟩ the sum of products, Σ_{d<e} ‖C_d − C_e‖² = K·Σ_d ‖C_d‖² − ‖Σ_d C_d‖², and
    ⟨C_d, C_e⟩ = Σ_{i∈d, j∈e} (x_i·x_j)² / ((n_d − 1)(n_e − 1)) for rows x_i centred within their domains: no covariance
    matrix is formed, and the cost does not depend on the number of domains. Returns a scalar.
    """
    same = (domain[:, None] == domain).to(z.dtype)
    count = same.sum(1)
    once = (count > 1) / count  # sums to one over a domain that has two samples
    domains = once.sum()
    z = z - z.mean(0)  # changes no difference, and keeps the numbers that are subtracted small
    mean = same @ z / count[:, None]
    means = domains * (once @ mean.square().sum(1)) - (once @ mean).square().sum()
    rows = z - mean
    per_row = (count > 1) / (count - 1).clamp_min(1)
    products = torch.outer(per_row, per_row) * (rows @ rows.T).square()
    covariances = domains * (same * products).sum() - products.sum()
    pairs = (domains * (domains - 1) / 2).clamp_min(1.0)
    return (means / z.shape[1] + covariances / z.shape[1] ** 2) / pairs
