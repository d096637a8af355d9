"""StableNet: cross-entropy under sample weights that make features independent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from stablenet.algorithms.base import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.data.pipeline import Batch
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import SettingError, check_fields, read_values
from stablenet.weighting import DatasetOffsets, DatasetWeighting, Solution, StableWeighting, effective_sample_size
from stablenet.weighting.dataset import PRETRAINED_PENALTY, RAMP, dataset_settings
from stablenet.weighting.judge import CLEAR, context_use
from stablenet.weighting.offsets import BESIDE_WEIGHTS, PRETRAINED_COMPONENTS, check_components
from stablenet.weighting.presets import settings_of
from stablenet.weighting.settings import WeightingSettings

SHALLOW = ("stage1", "stage2")  # context survives there; the last layer mostly encodes the label


@dataclass(frozen=True, kw_only=True)
class StableNetSettings:
    """preset: of the weighting: paper, published or recommended.
    taps: which features; None takes the preset's: the last layer, for `recommended` the first two stages, pooled.
    solve: weights for each batch joined to a memory (the paper), or for the whole training set between epochs; None
        takes the preset's: batch, for `recommended` dataset.
    collect: with solve="dataset", features of a pass before the epoch, without augmentation and dropout, or those of
        the epoch's own batches, which cost nothing and serve the epoch after.
    every: with solve="dataset", epochs between two solves; 0 solves once, before training: the shallow layers of an
        untrained or pretrained network show the context and know nothing of the label yet.
    strength: with solve="dataset", how far the weights go, 1 + strength·(w − 1); None takes 1, for `recommended` with
        offsets on a pretrained body 0: such a network soon fits every image, and what is fitted cannot be weighed.
    ramp: with solve="dataset", the share of the epochs over which the weights grow from ones to that.
    offset: with solve="dataset", how much of what shallow features tell of the label is added to the logits in
        training (`solve_offsets`); None takes 0, for `recommended` 0.5 beside weights and 1 in their place, unless the
        first tap is the last layer. Halved after every epoch whose source validation shows that the network answers
        against the context (`context_use`; not with validation="plain").
    components: offsets are solved from so many leading components of all taps; 0 takes the shallowest tap as it is;
        None takes 0, for `recommended` on a pretrained body `PRETRAINED_COMPONENTS`.
    validation: with solve="dataset", epochs are ranked by source validation under weights that are solved for the
        validation samples as for training, because plain accuracy there prefers a network that uses the context;
        "plain" ranks by that nevertheless. Plain figures are recorded in both cases. Where the two
        clearly differ (`context_use`), the network uses the context, and the epoch ranks lower by the difference.
    overrides: any field of `WeightingSettings`. Unless given, the weighting's seed is the run's, and the penalty of
        `recommended` is larger for a pretrained body (`PRETRAINED_PENALTY`).
    """

    preset: str = "recommended"
    taps: tuple[str, ...] | None = None
    solve: Literal["batch", "dataset"] | None = None
    collect: Literal["pass", "epoch"] = "pass"
    every: int = 0
    strength: float | None = None
    ramp: float = RAMP
    offset: float | None = None
    components: int | None = None
    validation: Literal["weighted", "plain"] = "weighted"
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.every < 0:
            raise UserError(f"method.parameters.every must be 0 (once) or more epochs, got {self.every}")
        if not 0 <= self.ramp <= 1:
            raise UserError(f"method.parameters.ramp must be a share of the epochs, 0..1, got {self.ramp}")
        if not 0 <= (self.strength or 0) <= 1:
            raise UserError(f"method.parameters.strength must lie in 0..1, got {self.strength}")
        if (self.offset or 0) < 0:
            raise UserError(f"method.parameters.offset must be 0 or more, got {self.offset}")
        check_components(self.components or 0)
        if self.components and self.offset == 0:
            raise UserError(
                "method.parameters.components are those of offsets, which method.parameters.offset=0 turns off: leave "
                "one of the two away"
            )
        for name in ("strength", "offset", "components"):
            if getattr(self, name) and not self.solves_whole_set:
                raise UserError(
                    f"method.parameters.{name} needs the whole training set: set method.parameters.solve=dataset"
                )
        if self.collect == "epoch" and not self.every:
            raise UserError(
                "method.parameters.collect=epoch solves after epochs: set method.parameters.every to 1 or more"
            )
        if self.taps is not None and not self.taps:
            raise UserError("method.parameters.taps is empty: name at least one tap, for example 'last'")
        if any(str(tap).endswith(":maps") for tap in self.taps or ()):
            raise UserError("StableNet weighs feature vectors: a tap of the form 'maps' cannot be used")
        self._check_overrides()

    def _check_overrides(self) -> None:
        """Wrong ones are found here, before anything is built."""
        read_values(WeightingSettings, self.overrides, "overrides")
        choose = dataset_settings if self.solves_whole_set else settings_of
        try:
            choose(self.preset, self.overrides)
        except SettingError as error:
            raise error.within("overrides") from error

    @property
    def solves_whole_set(self) -> bool:
        """`recommended` is made for it, the paper's presets for batches."""
        return (self.solve or ("dataset" if self.preset == "recommended" else "batch")) == "dataset"

    @property
    def _recommends(self) -> bool:
        return self.preset == "recommended" and self.solves_whole_set

    def choose_overrides(self, seed: int, pretrained: bool) -> dict[str, Any]:
        """Of the weighting, what a run says beside the preset."""
        careful = {"penalty": PRETRAINED_PENALTY} if self._recommends and pretrained else {}
        return {"seed": seed, **careful, **self.overrides}

    @property
    def _offsets(self) -> bool:
        """Whether there are offsets; those of the last layer would tell all that is to be learned."""
        if self.offset is not None:
            return self.offset > 0
        return self._recommends and (self.taps is None or self.taps[0] != LAST)

    def choose_strength(self, pretrained: bool) -> float:
        """How far the weights go."""
        if self.strength is not None:
            return self.strength
        return 0.0 if self._recommends and self._offsets and pretrained else 1.0

    def choose_offset(self, pretrained: bool) -> float:
        """Weights and offsets both remove the dependence of label and context: whole ones of both would do it twice."""
        if self.offset is not None:
            return self.offset
        return 1 - (1 - BESIDE_WEIGHTS) * self.choose_strength(pretrained) if self._offsets else 0.0

    def choose_components(self, pretrained: bool) -> int:
        """Of how many components offsets are solved; a pretrained network's features as they are name the object."""
        if self.components is not None:
            return self.components
        return PRETRAINED_COMPONENTS if self._recommends and pretrained else 0


class StableNet(Algorithm[StableNetSettings]):
    r"""min_{f,g} Σ_i w_i·CE(g(f(x_i)), y_i), w = argmin_w Σ_{i<j} ‖Σ̂_{Z_i Z_j; w}‖²_F (Eq. overall, learning_weight).

    CE is that of the logits and the sample's offsets, where `offset` is not 0; the network is used without them.
    Batch by batch, as in the paper, the weights are found first in each step, for features cut off from the graph, then
    the network takes its step. For the whole set they are found before epochs and looked up in each step.
    """

    title = "weights that make features independent"
    settings_type = StableNetSettings

    def __init__(self, network: Network, settings: StableNetSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        # Weights of the whole set are looked up; a batch's own are counted on the host, and so are collected rows.
        self.replayable = settings.solves_whole_set and settings.collect == "pass"
        self._taps = settings.taps or choose_taps(settings.preset, network)
        network.tap(self._taps, detach=True)
        overrides = settings.choose_overrides(context.seed, context.pretrained)
        self.weighting: StableWeighting | DatasetWeighting
        if not settings.solves_whole_set:
            overrides = {"num_classes": context.num_classes, **overrides}
            self.weighting = StableWeighting(settings.preset, **overrides)
        else:
            self.weighting = DatasetWeighting(context.num_samples, settings.preset, **overrides)
            if settings.collect == "pass":
                network.tap(())  # steps need no features
        self.offsets: DatasetOffsets | None = None
        if offset := settings.choose_offset(context.pretrained):
            components = settings.choose_components(context.pretrained)
            self.offsets = DatasetOffsets(
                context.num_samples, context.num_classes, strength=offset, components=components, seed=context.seed
            )
        weighs = settings.solves_whole_set and settings.validation == "weighted" and context.num_validation > 0
        self._judging = DatasetWeighting(context.num_validation, settings.preset, **overrides) if weighs else None

    def loss(self, batch: Batch) -> StepOutput:
        logits, features = self.run_network(batch.x)
        offsets = None if self.offsets is None else self.offsets(batch.index)
        per_sample, accuracy = classify(logits, batch.y, offsets)
        if isinstance(self.weighting, StableWeighting):
            weights = self.weighting(features, labels=batch.y)
            told = describe(self.weighting.last_solution, weights)
        else:
            weights = self.weighting(batch.index)
            if self.settings.collect == "epoch":
                self._collect(self.weighting, batch, features)
            before, after = self.weighting.dependence.unbind()
            told = {"dependence_before": before, "dependence_after": after, "ess_ratio": self.weighting.ess}
        return StepOutput(per_sample, weights, {"accuracy": accuracy, **told})

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        if not isinstance(self.weighting, DatasetWeighting):
            return {}
        self.weighting.set_strength(self._strength(epoch))
        if not self._solves_before(epoch):
            return {}
        self._read(self.weighting, training_set)
        return self._solve(self.weighting)

    @torch.no_grad()
    def start_validation(self, validation_set: TrainingSet) -> None:
        if self._judging is not None:
            self._read(self._judging, validation_set)
            self._judging.solve()

    def validation_weights(self) -> Tensor | None:
        if self._judging is None or bool((self._judging.handed == 1).all()):  # ones are plain figures, bit for bit
            return None
        return self._judging.handed

    def after_validation(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """Say where the network clearly uses the context; where it answers against it, the offsets are halved."""
        weighted = self._judging is not None and self._judging.settings.pairs == "labels"
        if not weighted or "weighted_accuracy" not in figures:
            return {}
        use = context_use(figures["accuracy"], figures["weighted_accuracy"], figures["weighted_count"])
        if not abs(use) > CLEAR:
            return {}
        told = {"context_use": use}
        if use < 0 and self.offsets is not None and bool(self.offsets.offsets.any()):
            told["offsets_left"] = self.offsets.weaken()
        return told

    def _read(self, weighting: DatasetWeighting, samples: TrainingSet) -> None:
        """Features of all samples, by the network as it is, without augmentation and dropout."""
        self.network.tap(self._taps, detach=True)
        self.network.eval()
        for batch in samples.batches():
            _, *features = self.network.forward_taps(batch.x)
            named = {str(tap): feature for tap, feature in zip(self.network.taps, features, strict=True)}
            self._collect(weighting, batch, named)
        self.network.train()
        if self.settings.collect == "pass":
            self.network.tap(())

    def _collect(self, weighting: DatasetWeighting, batch: Batch, features: dict[str, Tensor]) -> None:
        """Weights and leading components are solved from all taps, other offsets from the shallowest."""
        weighting.collect(batch.index, features, batch.y)
        if self.offsets is not None and weighting is self.weighting:
            shallowest = next(iter(features.values()))
            self.offsets.collect(batch.index, features if self.offsets.components else shallowest, batch.y)

    def _solve(self, weighting: DatasetWeighting) -> dict[str, float]:
        """Weights and offsets of the training samples, in numbers for the records."""
        told = read_solution(weighting.solve())
        return told if self.offsets is None else {**told, "context_explains": self.offsets.solve().explained}

    def end_epoch(self, epoch: int) -> dict[str, float]:
        collected = isinstance(self.weighting, DatasetWeighting) and self.settings.collect == "epoch"
        if not collected or (epoch + 1) % self.settings.every:
            return {}
        assert isinstance(self.weighting, DatasetWeighting)
        return self._solve(self.weighting)

    def _solves_before(self, epoch: int) -> bool:
        if self.settings.collect == "epoch":
            return False
        return epoch % self.settings.every == 0 if self.settings.every else epoch == 0

    def _strength(self, epoch: int) -> float:
        length = self.settings.ramp * self.context.epochs
        grown = min(1.0, epoch / length) if length else 1.0
        return grown * self.settings.choose_strength(self.context.pretrained)


def choose_taps(preset: str, network: Network) -> tuple[str, ...]:
    """The features a preset is made for."""
    if preset != "recommended":
        return (LAST,)
    if not all(stage in network.stages for stage in SHALLOW):
        raise UserError(
            "the preset 'recommended' weighs the first two stages, and this backbone names none: set "
            "method.parameters.taps to modules of it, or to ['last']"
        )
    return SHALLOW


def describe(solution: Solution | None, weights: Tensor) -> dict[str, Tensor]:
    """The latest solve as scalars on the device; NaN before the first one."""
    if solution is None:
        nothing = weights.new_full((), float("nan"))
        return {"dependence_before": nothing, "dependence_after": nothing, "ess_ratio": nothing}
    before, after = solution.dependence.float().unbind()
    ess = effective_sample_size(solution.weights) / len(solution.weights)
    return {"dependence_before": before, "dependence_after": after, "ess_ratio": ess}


def read_solution(solution: Solution) -> dict[str, float]:
    """A solve of the whole set in numbers."""
    before, after = solution.dependence.tolist()
    weights = solution.weights
    return {
        "dependence_before": before,
        "dependence_after": after,
        "ess_ratio": float(effective_sample_size(weights)) / len(weights),
        "largest_weight": float(weights.max()),
    }
