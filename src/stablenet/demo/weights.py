"""The weights that all training samples had, as the runs kept them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.data.pipeline import Samples
from stablenet.engine.runs import Run
from stablenet.weighting import effective_sample_size
from stablenet.weighting.dataset import dataset_settings

PRESET = "recommended"


@dataclass(frozen=True)
class SampleWeights:
    """weights: (n,), mean one.   agrees: (n,) bool, whether a sample has its class's dominant background.
    dependence: of the features on the label under uniform and under these weights.
    told: share of the label's entropy that the offsets tell.
    ess: effective share of samples.   floor: the least share the settings allow.
    shares: weighted share of the dominant background, mean over classes, under uniform and under these weights.
    """

    samples: Samples
    weights: Tensor
    agrees: Tensor
    dependence: tuple[float, float]
    told: float
    ess: float
    floor: float
    shares: tuple[float, float]

    @property
    def mean_agreeing(self) -> float:
        return float(self.weights[self.agrees].mean())

    @property
    def mean_disagreeing(self) -> float:
        return float(self.weights[~self.agrees].mean())


def weigh_samples(run: Run) -> SampleWeights:
    """What entered the run's loss in its last epoch, as the run kept it."""
    samples, table = run.open_part("train"), run.weights()
    weights = torch.tensor(table["weight"].to_numpy())
    agrees = find_agreeing(run, samples)
    (solve,) = (record for record in run.records if record["kind"] == "solve")  # once, before training
    return SampleWeights(
        samples=samples,
        weights=weights,
        agrees=agrees,
        dependence=(solve["dependence_before"], solve["dependence_after"]),
        told=solve["context_explains"],
        ess=float(effective_sample_size(weights)) / len(weights),
        floor=dataset_settings(PRESET, {}).min_ess,
        shares=(
            share_dominant(torch.ones_like(weights), samples.y, agrees),
            share_dominant(weights, samples.y, agrees),
        ),
    )


def find_agreeing(run: Run, samples: Samples) -> Tensor:
    """(n,) bool: whether the background is the one that dominates the sample's class in training."""
    manifest = run.manifest
    named = manifest.parameters["dominant"]
    assert isinstance(named, dict)
    dominant = torch.tensor([manifest.domains.index(str(named[name])) for name in manifest.classes])
    return samples.domain == dominant[samples.y]


def share_dominant(weights: Tensor, y: Tensor, agrees: Tensor) -> float:
    """Weighted share of samples with the dominant background, mean over classes."""
    shares = [weights[(y == k) & agrees].sum() / weights[y == k].sum() for k in y.unique().tolist()]
    return float(torch.stack(shares).mean())
