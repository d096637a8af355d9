"""The weights that all training samples had, found once more by the method's own code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms import StableNet
from stablenet.data.order import BatchSettings
from stablenet.data.pipeline import Batch, Loader, Samples
from stablenet.engine.runs import Run
from stablenet.engine.session import begin_again
from stablenet.weighting import DatasetWeighting


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


class _AllSamples:
    """`TrainingSet` over samples on the processor."""

    def __init__(self, samples: Samples, run: Run) -> None:
        self._loader = Loader(samples, BatchSettings(batch_size=256, shuffle=False), run.transform)

    def batches(self) -> Iterator[Batch]:
        yield from self._loader.epoch(0)


def weigh_samples(run: Run) -> SampleWeights:
    """Solve once more, as before the first epoch, with the network that the run began with."""
    samples, algorithm = run.open_part("train"), begin_again(run.config, run.manifest)
    assert isinstance(algorithm, StableNet)
    told = algorithm.start_epoch(0, _AllSamples(samples, run))
    assert isinstance(algorithm.weighting, DatasetWeighting), "the demo solves for the whole set"
    weights = algorithm.weighting.weights.clone()
    agrees = find_agreeing(run, samples)
    return SampleWeights(
        samples=samples,
        weights=weights,
        agrees=agrees,
        dependence=(told["dependence_before"], told["dependence_after"]),
        told=told["context_explains"],
        ess=told["ess_ratio"],
        floor=algorithm.weighting.settings.min_ess,
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
