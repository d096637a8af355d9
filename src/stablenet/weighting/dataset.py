"""Weights for all N samples at once, and a store that collects features over an epoch and hands weights out by index.

The paper's objection to a global solve is storage: features of every sample. Pooled features are small (60,000
samples of 1,536 numbers in half precision: 184 MB), and one solve an epoch costs O(N·m·q·C) a step for label pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.weighting.inputs import Features, check_finite, check_labels, join_layers
from stablenet.weighting.presets import settings_of
from stablenet.weighting.problem import solve_problem
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import Solution, effective_sample_size
from stablenet.weighting.store import SampleStore

# What a solve over a whole set changes in a preset: no memory is needed, linear features keep N × m·q numbers small,
# and the steps can be many because the solves are few.
DATASET_OVERRIDES: dict[str, Any] = {"groups": 0, "num_functions": 0, "steps": 100}
# `recommended` is made for it: the share of the features that the label explains is lowered as far as the penalty and
# chance allow, so that little dependence means little weighting, and every class keeps its total.
RECOMMENDED_OVERRIDES: dict[str, Any] = {
    "groups": 0,
    "objective": "share",
    "penalty": 0.0006,
    "chance": 0.5,
    "totals": "classes",
    "tolerance": 1e-2,
    "steps": 500,
    "min_ess": 0.1,
}
# The first stages of a pretrained network show the object as well as its surroundings. On PACS a penalty this large
# removes four fifths of the dependence of domain and label that smaller ones do, at twice the effective samples.
PRETRAINED_PENALTY = 0.04
RAMP = 1 / 6  # the share of the epochs over which weights grow from ones: uneven ones disturb an untrained network


def dataset_settings(preset: str, overrides: dict[str, Any]) -> WeightingSettings:
    """The preset as a solve over the whole set uses it, with the user's overrides last."""
    own = RECOMMENDED_OVERRIDES if preset == "recommended" else DATASET_OVERRIDES
    if overrides.get("pairs", "labels") != "labels":  # what concerns labels alone has no meaning for other pairs
        own = {name: value for name, value in own.items() if name not in ("chance", "totals")}
    return settings_of(preset, {**own, **overrides})


@torch.no_grad()
def solve_dataset(
    features: Features, labels: Tensor | None = None, *, preset: str = "recommended", **overrides: Any
) -> Solution:
    """Weights of all N samples, solved together (Eq. learning_weight as it stands, no batches and no memory).

    features: (N, m), or a dict of layers by name.   labels: (N,) integer classes or (N, C) columns.
    overrides: fields of `WeightingSettings`, on top of what a whole set changes in the preset (see this module).
    Returns a `Solution` whose weights (N,) sum to N. Needs room for N × m·q numbers in float32, twice.

    >>> x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    >>> solution = solve_dataset(torch.cat([x, x], 1), pairs="features")
    >>> bool(solution.dependence[1] < solution.dependence[0])
    True
    """
    settings = dataset_settings(preset, overrides)
    z, layers = join_layers(features)
    check_labels(labels, len(z), needed=settings.pairs != "features")
    check_finite(z, layers)
    generator = torch.Generator(z.device).manual_seed(settings.seed)
    return solve_problem(z, labels, z.new_empty(0), len(z), settings, generator)


class DatasetWeighting(SampleStore):
    """Every sample's weight, kept until the next solve.

    >>> weighting = DatasetWeighting(num_samples=4)
    >>> weighting.collect(torch.arange(4), torch.randn(4, 3), labels=torch.tensor([0, 0, 1, 1]))
    >>> _ = weighting.solve()
    >>> weighting(torch.tensor([2, 0])).shape
    torch.Size([2])

    Over an epoch, `collect` each batch's pooled features with the samples' indices; then `solve`; during the next
    epoch, calling the module with a batch's indices gives its weights. They sum to N over the whole set, not to B in
    every batch, so `(w * loss).mean()` is an unbiased estimate of the weighted loss. Samples never collected weigh one.

    strength: how far the handed-out weights are from ones, 1 + strength·(w − 1); let it rise from 0 over the first
        epochs (`set_strength`), because uneven weights disturb a network that has learned nothing yet.
    storage: as `SampleStore` has it.
    """

    weights: Tensor
    strength: Tensor
    dependence: Tensor
    handed: Tensor
    ess: Tensor

    def __init__(
        self,
        num_samples: int,
        preset: str = "recommended",
        *,
        storage: torch.dtype = torch.float16,
        **overrides: Any,
    ) -> None:
        settings = dataset_settings(preset, overrides)
        super().__init__(num_samples, storage, with_labels=settings.pairs != "features")
        self.preset = preset
        self.settings = settings
        self.last_solution: Solution | None = None
        self.register_buffer("weights", torch.ones(num_samples))
        self.register_buffer("strength", torch.ones(()))
        self.register_buffer("dependence", torch.full((2,), float("nan")))  # of the latest solve, before and after
        self.register_buffer("handed", torch.ones(num_samples), persistent=False)  # the weights at their strength
        self.register_buffer("ess", torch.ones(()), persistent=False)  # of those, per sample

    @torch.no_grad()
    def forward(self, index: Tensor) -> Tensor:
        """The weights of the samples with these indices (B,); ones in `eval()`."""
        if not self.training:
            return torch.ones(len(index), device=self.weights.device)
        return self.handed[index.to(self.handed.device)]

    def set_strength(self, strength: float) -> None:
        """strength: from 0 (ones) to 1 (the weights as they were solved)."""
        if not 0 <= strength <= 1:
            raise UserError(f"the strength of weights must lie in 0..1, got {strength}")
        self.strength.fill_(strength)
        self._hand_out()

    @torch.no_grad()
    def solve(self) -> Solution:
        """Solve for the samples collected since the last solve, and forget the features.

        The solution's weights are those of the collected samples in the order of their indices.
        """
        chosen, z, labels = self._read()
        generator = torch.Generator(z.device).manual_seed(self.settings.seed)
        solution = solve_problem(z, labels, z.new_empty(0), len(z), self.settings, generator)
        self.weights.fill_(1.0)
        self.weights[chosen] = solution.weights
        self.dependence.copy_(solution.dependence)
        self._hand_out()
        self._forget()
        self.last_solution = solution
        return solution

    def _hand_out(self) -> None:
        """Once for all batches of an epoch, so that a step only looks its weights up."""
        self.handed.copy_(torch.lerp(torch.ones_like(self.weights), self.weights, self.strength))  # exact at both ends
        self.ess.copy_(effective_sample_size(self.handed) / self.num_samples)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._hand_out()
