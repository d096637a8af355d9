"""What the two strategies of StableNet share, and the paper's: `BatchByBatch` finds the weights of each batch.

Weights are found in every step, for the batch joined to a memory. The other strategy is `WholeTrainingSet` of
`stablenet.algorithms.stablenet`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from stablenet.algorithms.algorithm import Context, EpochJudge, StepOutput, TrainingSet, UsedWeights, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import SettingError, check_fields, require
from stablenet.weighting import Solution, StableWeighting, effective_sample_size, recommended
from stablenet.weighting.kernels import decides_on_device
from stablenet.weighting.settings import WeightingSettings, settings_of


@dataclass(frozen=True, kw_only=True)
class StableNetSettings:
    """preset: of the weighting: paper, paper-covariance, published or recommended.
    taps: which features; None takes the preset's: the last layer, for `recommended` early stages (`choose_taps`).
    solve: weights for each batch joined to a memory (the paper), or for the whole training set between epochs; None
        takes the preset's: batch, for `recommended` dataset.
    overrides: any field of `WeightingSettings`. Unless given, the weighting's seed is the run's.
    """

    preset: str = "recommended"
    taps: tuple[str, ...] | None = None
    solve: Literal["batch", "dataset"] | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.taps is None or bool(self.taps), "taps", "at least one tap, for example ['last']", self.taps)
        maps = any(str(tap).endswith(":maps") for tap in self.taps or ())
        require(not maps, "taps", "feature vectors, which the form 'maps' is not", self.taps)
        try:
            self.choose_weighting({})
        except SettingError as error:
            raise error.within("overrides") from error

    def choose_weighting(self, chosen: Mapping[str, Any]) -> WeightingSettings:
        """The settings of the weighting: the preset's, then what the run chooses, then the overrides."""
        raise NotImplementedError

    def choose_taps(self, network: Network, pretrained: bool = False) -> tuple[str, ...]:
        """The taps that were named, or those that the preset is made for."""
        if self.taps is not None:
            return self.taps
        return recommended.choose_taps(network.stages, pretrained) if self.preset == recommended.NAME else (LAST,)

    def build(self, network: Network, context: Context) -> Strategy:
        """The strategy of these settings around a network."""
        raise NotImplementedError


class Strategy(nn.Module, ABC):
    """How the weights of a batch are obtained."""

    replayable: bool = False  # as `Algorithm.replayable`

    @abstractmethod
    def loss(self, batch: Batch, logits: Tensor, features: dict[str, Tensor]) -> StepOutput:
        """The weighted loss of a batch.   logits: (b, classes).   features: (b, m) by tap."""

    def start_epoch(self, epoch: int, training_set: TrainingSet) -> Mapping[str, float | str]:
        """As `Algorithm.start_epoch`."""
        return {}

    def end_epoch(self, epoch: int) -> Mapping[str, float | str]:
        """As `Algorithm.end_epoch`."""
        return {}

    def judge_epochs(self) -> EpochJudge | None:
        """As `Algorithm.judge_epochs`."""
        return None

    @abstractmethod
    def sample_columns(self) -> dict[str, Tensor]:
        """As `Algorithm.sample_columns`."""


@dataclass(frozen=True, kw_only=True)
class BatchByBatchSettings(StableNetSettings):
    """StableNet batch by batch."""

    def choose_weighting(self, chosen: Mapping[str, Any]) -> WeightingSettings:
        return settings_of(self.preset, {**chosen, **self.overrides})

    def build(self, network: Network, context: Context) -> Strategy:
        return BatchByBatch(network, self, context)


class BatchByBatch(Strategy):
    """Weights of each batch, found first in each step for features cut off from the graph.

    Eqs. 7, 9 and 10, learning_weight, concat_w and save_w.
    """

    def __init__(self, network: Network, settings: BatchByBatchSettings, context: Context) -> None:
        super().__init__()
        network.tap(settings.choose_taps(network), detach=True)
        overrides = {"num_classes": context.num_classes, "seed": context.seed, **settings.overrides}
        self.weighting = StableWeighting(settings.preset, **overrides)
        self.replayable = decides_on_device(self.weighting.settings)
        self.used = UsedWeights(context.num_samples)

    def loss(self, batch: Batch, logits: Tensor, features: dict[str, Tensor]) -> StepOutput:
        per_sample, accuracy = classify(logits, batch.y)
        weights = self.weighting(features, labels=batch.y)
        if self.training:
            self.used.keep(batch.index, weights)
        return StepOutput(
            per_sample, weights, {"accuracy": accuracy, **describe(self.weighting.last_solution, weights)}
        )

    def sample_columns(self) -> dict[str, Tensor]:
        return {"weight": self.used.weights}


def describe(solution: Solution | None, weights: Tensor) -> dict[str, Tensor]:
    """The latest solve as scalars on the device; NaN before the first one."""
    if solution is None:
        nothing = weights.new_full((), float("nan"))
        return {"dependence_before": nothing, "dependence_after": nothing, "ess_ratio": nothing}
    before, after = solution.dependence.float().unbind()
    ess = effective_sample_size(solution.weights) / len(solution.weights)
    return {"dependence_before": before, "dependence_after": after, "ess_ratio": ess}
