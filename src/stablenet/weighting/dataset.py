"""Weights for all N samples at once, and a store that collects features over an epoch and hands weights out by index.

The paper's objection to a global solve is storage: features of every sample. Pooled features are small (60,000
samples of 1,536 numbers in half precision: 184 MB), and one solve an epoch costs O(N·m·q·C) a step for label pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.weighting import distributed
from stablenet.weighting.inputs import Features, check_finite, check_labels, join_layers
from stablenet.weighting.memory import adopt_saved_shapes
from stablenet.weighting.presets import settings_of
from stablenet.weighting.problem import solve_problem
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import Solution, effective_sample_size

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
STATE = ("features", "labels", "seen", "weights")


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


class DatasetWeighting(nn.Module):
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
    storage: type of the stored features; float16 halves the memory and is enough for pooled activations.
    """

    features: Tensor
    labels: Tensor
    seen: Tensor
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
        super().__init__()
        if num_samples < 1:
            raise UserError(f"num_samples must be at least 1, got {num_samples}")
        self.num_samples = num_samples
        self.preset = preset
        self.settings = dataset_settings(preset, overrides)
        self._storage = storage
        self.last_solution: Solution | None = None
        self.register_buffer("features", torch.empty(0, dtype=storage))
        self.register_buffer("labels", torch.empty(0))
        self.register_buffer("seen", torch.zeros(num_samples, dtype=torch.bool))
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
    def collect(self, index: Tensor, features: Features, labels: Tensor | None = None) -> None:
        """Remember a batch.   index: (B,) in 0 … N−1.   features: (B, m) or layers.   labels: (B,) or (B, C).

        Of a sample that comes again only the latest features count. Several processes call it together, each with its
        part of the batch, and all of them remember the whole: wrappers that give the first one's buffers to all, and
        checkpoints, which the first one writes, then lose nothing.
        """
        z, _ = join_layers(features, least=1 if distributed.processes() == 1 else 0)
        check_labels(labels, len(z), needed=self.settings.pairs != "features")
        if index.shape != (len(z),):
            raise UserError(f"index must have one entry per sample, shape ({len(z)},), got {tuple(index.shape)}")
        z = z.to(self._storage)
        if distributed.processes() > 1:
            sizes = distributed.gather_sizes(len(z), z.device)
            index, z = (distributed.gather_rows(rows, sizes) for rows in (index.to(z.device), z))
            labels = None if labels is None else distributed.gather_rows(labels, sizes)
        if not self.features.numel():
            self._allocate(z, labels)
        self.features[index] = z
        self.seen[index] = True
        if self.labels.numel() and labels is not None:
            self.labels[index] = labels.detach().to(self.labels.dtype)

    @torch.no_grad()
    def solve(self) -> Solution:
        """Solve for the samples collected since the last solve, and forget the features.

        The solution's weights are those of the collected samples in the order of their indices.
        """
        chosen = self.seen.nonzero().squeeze(1)
        if not len(chosen):
            raise UserError("nothing was collected; call collect(index, features, labels) on the batches of an epoch")
        z = self.features[chosen].float()
        if not bool(torch.isfinite(z).all()):
            raise UserError(
                f"the collected features hold NaN or inf, or overflow {self._storage}; "
                "build DatasetWeighting with storage=torch.float32, or look for a diverging loss"
            )
        generator = torch.Generator(z.device).manual_seed(self.settings.seed)
        labels = self.labels[chosen] if self.labels.numel() else None
        solution = solve_problem(z, labels, z.new_empty(0), len(z), self.settings, generator)
        self.weights.fill_(1.0)
        self.weights[chosen] = solution.weights
        self.dependence.copy_(solution.dependence)
        self._hand_out()
        self.seen.fill_(False)
        self.features, self.labels = self.features.new_empty(0), self.labels.new_empty(0)
        self.last_solution = solution
        return solution

    def _hand_out(self) -> None:
        """Once for all batches of an epoch, so that a step only looks its weights up."""
        self.handed.copy_(torch.lerp(torch.ones_like(self.weights), self.weights, self.strength))  # exact at both ends
        self.ess.copy_(effective_sample_size(self.handed) / self.num_samples)

    def _allocate(self, z: Tensor, labels: Tensor | None) -> None:
        self.features = torch.zeros(self.num_samples, z.shape[1], dtype=self._storage, device=z.device)
        self.seen, self.weights = self.seen.to(z.device), self.weights.to(z.device)
        self.strength, self.dependence = self.strength.to(z.device), self.dependence.to(z.device)
        self.handed, self.ess = self.handed.to(z.device), self.ess.to(z.device)
        if labels is not None and self.settings.pairs != "features":
            self.labels = labels.detach().new_zeros(self.num_samples, *labels.shape[1:])

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        adopt_saved_shapes(self, STATE, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._hand_out()
