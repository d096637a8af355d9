"""Does a map show what the network has learned? (Adebayo et al., Sanity checks for saliency maps, NeurIPS 2018)

A map that stays the same when the parameters are drawn anew shows the picture's edges, not the network.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
MapMaker = Callable[[nn.Module, int], Tensor]  # a network and a seed for the noise -> maps (n, s, s)


@dataclass(frozen=True)
class Sanity:
    """Mean rank correlations over the images whose maps are not zero everywhere; None where all are.

    repeated: of two maps of the same network with other noise, what agreement can be expected at best.
    randomised: of the network's map with that of the same network with random parameters.
    """

    repeated: float | None
    randomised: float | None

    @property
    def passed(self) -> bool:
        """The maps lose at least half of their agreement with the parameters."""
        if self.repeated is None or self.randomised is None:
            return False
        return self.randomised <= self.repeated / 2


def check_maps(model: nn.Module, maps: Tensor, make_maps: MapMaker, seed: int = 0) -> Sanity:
    """Compare the maps (n, s, s) of a network with those of other noise and of random parameters."""
    return Sanity(
        repeated=_mean(rank_correlation(maps, make_maps(model, seed + 1))),
        randomised=_mean(rank_correlation(maps, make_maps(randomise_parameters(model, seed), seed))),
    )


def randomise_parameters(model: Model, seed: int) -> Model:
    """A copy with weights drawn anew, of mean zero and the same size; vectors (biases, norms) are shuffled.

    Shuffled weights would do for most networks, but where their mean is far below zero no unit stays on.
    """
    generator = torch.Generator().manual_seed(seed)
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            if parameter.ndim > 1:
                drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.copy_(drawn * parameter.square().mean().sqrt())
            else:
                order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return copy


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's of every pair of maps (n, s, s): (n,), −1 to 1, NaN where a map has one value only."""
    ranks = [_rank(maps.flatten(1).double()) for maps in (first, second)]
    a, b = (rank - rank.mean(1, keepdim=True) for rank in ranks)
    return (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()


def _rank(values: Tensor) -> Tensor:
    """Places (n, p) in rising order; equal values share the mean of theirs, as black borders do."""
    ranks = []
    for row in values:
        _, inverse, counts = row.unique(return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        ranks.append((last - (counts.double() - 1) / 2)[inverse])
    return torch.stack(ranks)


def _mean(values: Tensor) -> float | None:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else None
