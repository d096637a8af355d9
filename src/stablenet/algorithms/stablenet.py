"""StableNet: cross-entropy under sample weights that make features independent (Eq. 8, overall).

One method, two strategies: `BatchByBatch` finds the weights of each batch, joined to a memory, in every step, as in the
paper; `WholeTrainingSet` finds weights and offsets of all training samples before epochs and looks them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import (
    Algorithm,
    Context,
    EpochJudge,
    Judgement,
    StepOutput,
    TrainingSet,
    classify,
)
from stablenet.algorithms.strategy import BatchByBatchSettings, StableNetSettings, Strategy
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.values import NonNegative, Share, Whole, read_fields, require
from stablenet.weighting import (
    DatasetWeighting,
    WholeSet,
    recommended,
)
from stablenet.weighting.chunks import MemorySize
from stablenet.weighting.dataset import dataset_settings
from stablenet.weighting.evidence import EvidenceSums, describe_pixels
from stablenet.weighting.recommended import WholeSetPlan
from stablenet.weighting.samples import PLACES, names_place
from stablenet.weighting.settings import WeightingSettings

WHERE = "method.parameters"


@dataclass(frozen=True, kw_only=True)
class WholeSetSettings(StableNetSettings):
    """preset: of the weighting: paper, paper-covariance, published or recommended.
    taps: which features; None takes the preset's: the last layer, for `recommended` early stages (`choose_taps`).
    solve: weights for each batch joined to a memory (the paper), or for the whole training set between epochs; None
        takes the preset's: batch, for `recommended` dataset. All other settings but overrides need the whole set.
    overrides: any field of `WeightingSettings`. Unless given, the weighting's seed is the run's, and the penalty of
        `recommended` is larger for a pretrained body.
    collect: features of a pass before the epoch, without augmentation and dropout, or those of the epoch's own batches,
        which cost nothing and serve the epoch after: the first epoch then trains without weights and offsets.
    every: epochs between two solves; 0 solves once, before training (with collect="epoch" after the first epoch): the
        shallow layers of an untrained or pretrained network show the context and do not encode the label yet.
    strength: how far the weights go, 1 + strength·(w − 1); None takes 1, for `recommended` what `recommend` chooses.
    ramp: the share of the epochs over which the weights grow from ones to that.
    offset: how much of what shallow features predict of the label is added to the logits in training (`solve_offsets`);
        None takes 0, for `recommended` what `recommend` chooses. Halved after every epoch whose source validation shows
        that the network predicts against the context (`context_use`; not with validation="plain").
    components: offsets are solved from so many leading components of all taps; 0 takes the shallowest tap as it is;
        None takes 0, for `recommended` what `recommend` chooses.
    act: "auto" decides from pixels and labels of the training part whether context and label are correlated
        (`recommended.decide`), and if they are not trains plainly, bit for bit; several named domains there that
        do not predict the label keep it from acting. "domains" decides by these alone; "always" does not check. None
        takes auto for `recommended`, else always.
    validation: epochs are ranked by source validation under weights that are solved for the validation samples as for
        training, because plain accuracy there prefers a network that uses the context; "plain" ranks by that
        nevertheless. Plain figures are recorded in both cases. Where the two clearly differ (`context_use`), the
        network uses the context, and the epoch ranks lower by the difference.
    memory: what a solve may take beside the features, such as "4GiB"; None takes half of what is free, at most 4GiB. A
        set that needs more is solved chunk by chunk, which is the same to rounding.
    features: where the collected features are kept until they are solved from: on the "device", on the "host", or in a
        file that is mapped into memory, in a folder on a fast disk, such as "./features". The weights are the same.
    """

    collect: Literal["pass", "epoch"] = "pass"
    every: Whole = 0
    strength: Share | None = None
    ramp: Share = recommended.RAMP
    offset: NonNegative | None = None
    components: Whole | None = None
    act: Literal["auto", "domains", "always"] | None = None
    validation: Literal["weighted", "plain"] = "weighted"
    memory: MemorySize | None = None
    features: str = "device"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(names_place(self.features), "features", PLACES, self.features)
        used = not (self.components and self.offset == 0)
        require(used, "components", "left out with offset=0, because they concern only offsets", self.components)

    def choose_weighting(self, chosen: Mapping[str, Any]) -> WeightingSettings:
        return dataset_settings(self.preset, {**chosen, **self.overrides})

    @property
    def decides(self) -> bool:
        """Whether a decision from the training data comes first."""
        return (self.act or (recommended.ACT if self.preset == recommended.NAME else "always")) != "always"

    def plan(self, pretrained: bool) -> WholeSetPlan:
        """What training does with the whole set: the preset's choices where nothing was given."""
        if self.preset == recommended.NAME:
            return recommended.recommend(
                pretrained=pretrained,
                first_tap=self.taps[0] if self.taps else recommended.TAPS[0],
                strength=self.strength,
                ramp=self.ramp,
                offset=self.offset,
                components=self.components,
            )
        strength = 1.0 if self.strength is None else self.strength
        return WholeSetPlan(
            strength=strength, ramp=self.ramp, offset=self.offset or 0.0, components=self.components or 0
        )

    def build(self, network: Network, context: Context) -> Strategy:
        return WholeTrainingSet(network, self, context)


def read_settings(parameters: Mapping[str, Any]) -> StableNetSettings:
    """The settings of the strategy that the parameters ask for."""
    preset = parameters.get("preset", recommended.NAME)
    solve = parameters.get("solve") or (recommended.SOLVE if preset == recommended.NAME else "batch")
    if solve != "batch":  # an unknown one is refused there
        return read_fields(WholeSetSettings, parameters, WHERE)
    beyond = {field.name for field in fields(WholeSetSettings)} - {field.name for field in fields(BatchByBatchSettings)}
    for name in sorted(beyond & set(parameters)):
        given = parameters[name]
        if given is not None if name == "strength" else given:  # 0 turns all others off
            raise UserError(f"{WHERE}.{name} needs the whole training set: set {WHERE}.solve=dataset")
    return read_fields(
        BatchByBatchSettings, {name: parameters[name] for name in parameters if name not in beyond}, WHERE
    )


class WholeTrainingSet(Strategy):
    """Weights and offsets of all samples, found before epochs and looked up in each step."""

    def __init__(self, network: Network, settings: WholeSetSettings, context: Context) -> None:
        super().__init__()
        self.settings, self._epochs = settings, context.epochs
        self._taps = settings.choose_taps(network, context.pretrained)
        self._network = [network]  # in a list: it is the method's module, not this one's
        self.replayable = settings.collect == "pass"  # collected rows are counted on the host
        network.tap(self._taps, detach=True)
        if settings.collect == "pass":
            network.tap(())  # steps need no features
        plan = settings.plan(context.pretrained)
        overrides = {"seed": context.seed, **plan.overrides, **settings.overrides}
        self.whole_set = WholeSet(
            plan,
            context.num_samples,
            context.num_classes,
            preset=settings.preset,
            fold_seed=context.seed,
            overrides=overrides,
            memory=settings.memory,
            place=settings.features,
        )
        self._num_classes = context.num_classes
        named = settings.decides and len(context.training_domains) > 1
        self._num_contexts = context.num_domains if named else 0
        weighs = settings.validation == "weighted" and context.num_validation > 0
        self.judging: DatasetWeighting | None = None
        if weighs:
            self.judging = DatasetWeighting(
                context.num_validation,
                settings.preset,
                memory=settings.memory,
                place=settings.features,
                **overrides,
            )

    def loss(self, batch: Batch, logits: Tensor, features: dict[str, Tensor]) -> StepOutput:
        weights, offsets = self.whole_set(batch.index)
        per_sample, accuracy = classify(logits, batch.y, offsets)
        if self._gathers:
            self.whole_set.collect(batch.index, features, batch.y)
        return StepOutput(per_sample, weights, {"accuracy": accuracy, **self.whole_set.diagnose_step(logits.device)})

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_set: TrainingSet) -> Mapping[str, float | str]:
        self.whole_set.set_epoch(epoch, self._epochs)
        decided = self._decide(training_set) if epoch == 0 and self.settings.decides else {}
        if not self.whole_set.act or not self._solves_before(epoch):
            return decided
        self._read(self.whole_set.collect, training_set, reuse=epoch == 0)
        return {**decided, **self.whole_set.solve()}

    def end_epoch(self, epoch: int) -> Mapping[str, float | str]:
        every = self.settings.every
        due = self._gathers and (not every or (epoch + 1) % every == 0)
        return {**self.whole_set.solve()} if due and not self.whole_set.lost else {}

    def _decide(self, training_set: TrainingSet) -> Mapping[str, float | str]:
        """The decision whether to act, from the pixels of all images and without the network."""
        sums = EvidenceSums(self._num_classes, self._num_contexts, shared=True)
        for batch in training_set.pixels():
            sums.add(batch.y, batch.index, describe_pixels(batch.x), batch.domain)
        decision = recommended.decide(sums.weigh(), by_contexts=self.settings.act == "domains")
        self.whole_set.settle(decision)
        return decision.figures

    def judge_epochs(self) -> EpochJudge | None:
        read = partial(self._read, reuse=True)
        return None if self.judging is None else ContextJudge(self.judging, self.whole_set, read)

    def sample_columns(self) -> dict[str, Tensor]:
        return self.whole_set.describe_samples()

    def _read(
        self, collect: Callable[[Tensor, Mapping[str, Tensor], Tensor], None], samples: TrainingSet, *, reuse: bool
    ) -> None:
        """Features of all samples, by the network as it is, without augmentation and dropout."""
        [network] = self._network
        samples.read_taps(network, self._taps, collect, reuse)

    @property
    def _gathers(self) -> bool:
        """Whether the features of the epoch's own batches are collected."""
        again = self.settings.every > 0 or not self.whole_set.solved
        return self.settings.collect == "epoch" and self.whole_set.act and again

    def _solves_before(self, epoch: int) -> bool:
        if self.settings.collect == "epoch":
            return self.whole_set.lost  # then a pass makes up for it
        return epoch % self.settings.every == 0 if self.settings.every else epoch == 0


class StableNet(Algorithm[StableNetSettings]):
    r"""min_{f,g} Σ_i w_i·CE(g(f(x_i)), y_i), w = argmin_w Σ_{i<j} ‖Σ̂_{Z_i Z_j; w}‖²_F.

    Eqs. 8 and 7, overall and learning_weight.
    CE is that of the logits and the sample's offsets, where `offset` is not 0; the network is used without them.
    Batch by batch, as in the paper, the weights are found first in each step, for features cut off from the graph, then
    the network takes its step. For the whole set they are found before epochs and looked up in each step.
    """

    title = "weights that make features independent"
    settings_type = WholeSetSettings  # those of `BatchByBatchSettings` and more; `read_settings` chooses

    def __init__(self, network: Network, settings: StableNetSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.strategy = settings.build(network, context)
        self.replayable = self.strategy.replayable
        self.register_load_state_dict_pre_hook(adopt_first_release)  # type: ignore[no-untyped-call]

    @classmethod
    def read_settings(cls, parameters: Mapping[str, Any]) -> StableNetSettings:
        return read_settings(parameters)

    @classmethod
    def version(cls, parameters: Mapping[str, Any]) -> str:
        whole = parameters.get("solve") != "batch" and parameters.get("preset", recommended.NAME) == recommended.NAME
        return recommended.CURRENT if whole else ""

    @classmethod
    def restate(cls, parameters: Mapping[str, Any], version: str, pretrained: bool) -> dict[str, Any]:
        return recommended.restate(parameters, version, pretrained)

    def loss(self, batch: Batch) -> StepOutput:
        logits, features = self.run_network(batch.x)
        return self.strategy.loss(batch, logits, features)

    def start_epoch(self, epoch: int, training_set: TrainingSet) -> Mapping[str, float | str]:
        return self.strategy.start_epoch(epoch, training_set)

    def end_epoch(self, epoch: int) -> Mapping[str, float | str]:
        return self.strategy.end_epoch(epoch)

    def judge_epochs(self) -> EpochJudge | None:
        return self.strategy.judge_epochs()

    def sample_columns(self) -> dict[str, Tensor]:
        return self.strategy.sample_columns()


class ContextJudge(EpochJudge):
    """Validation samples, weighted as the training samples are, show whether the network uses the context.

    weighting: of the validation samples, a part of the method's state.   whole_set: whose offsets are halved after
        every epoch whose network clearly predicts against the context; where it does not act, nothing is judged.
    read: collects the features of all samples of a set.
    In the record: context_use (see there) where it is clear, and offsets_left, 0 to 1, where they were halved. The
    penalty is that of `recommended.penalize`.
    """

    def __init__(
        self,
        weighting: DatasetWeighting,
        whole_set: WholeSet,
        read: Callable[[Callable[..., None], TrainingSet], None],
    ) -> None:
        self._weighting, self._whole_set, self._read = weighting, whole_set, read

    @torch.no_grad()
    def start(self, validation_set: TrainingSet) -> None:
        if not self._whole_set.act:
            return
        self._read(self._weighting.collect, validation_set)
        self._weighting.solve()

    def weights(self) -> Tensor | None:
        handed = self._weighting.handed
        return None if bool((handed == 1).all()) else handed  # ones are plain figures, bit for bit

    def judge(self, figures: Mapping[str, Any]) -> Judgement:
        if self._weighting.settings.pairs != "labels" or "weighted_accuracy" not in figures:
            return Judgement()
        found, penalty, note = self._whole_set.answer(
            figures["accuracy"], figures["weighted_accuracy"], figures["weighted_count"]
        )
        return Judgement(figures=found, penalty=penalty, note=note)


FIRST_RELEASE = {"_judging.": "strategy.judging.", "offsets.": "strategy.whole_set.offsets."}


def adopt_first_release(method: StableNet, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Checkpoints of release 0.1 held the parts of the strategy in the method itself; even weights were solved, too."""
    if any(name.startswith(f"{prefix}strategy.") for name in state):
        return
    own = dict(method.named_modules())
    weighting = "strategy.weighting." if "strategy.weighting" in own else "strategy.whole_set.weighting."
    for name in [name for name in state if name.startswith(prefix)]:
        for old, new in {**FIRST_RELEASE, "weighting.": weighting}.items():
            if name.startswith(prefix + old):
                value = state.pop(name)
                if new.rstrip(".") in own:
                    state[prefix + new + name.removeprefix(prefix + old)] = value


def read_dependence(records: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The dependence before and after weighting, by a run's records; None where they have none.

    Of the latest solve of the whole set, or the mean over the batches of the last epoch.
    """
    solves = [record for record in records if record["kind"] == "solve"]
    epochs = [record["train"] for record in records if record["kind"] == "epoch"]
    for found in (*solves[-1:], *epochs[-1:]):
        before, after = found.get("dependence_before"), found.get("dependence_after")
        if before is not None and after is not None:
            return before, after
    return None
