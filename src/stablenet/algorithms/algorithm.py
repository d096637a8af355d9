"""The interface between methods and the engine: a method defines the loss, the engine does everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.data.loader import Batch
from stablenet.data.manifest import Manifest
from stablenet.models import Network
from stablenet.values import read_fields
from stablenet.weighting import distributed

S = TypeVar("S")
# The labels beyond the class that a method needs, marked wherever it is named (`Algorithm.marks`).
DOMAINS, GROUPS, SELECTION = "*", "‡", "§"
MARKS = {
    DOMAINS: "learns from domain labels",
    GROUPS: "an oracle: learns from group labels (class × domain)",
    SELECTION: "its paper chose settings by group labels, which are not used here",
}


@dataclass(frozen=True)
class StepOutput:
    """What a method computes for one batch.

    per_sample_loss: (b,) with its graph.   weights: (b,) with mean one over the batch or the set, None for ones.
    diagnostics: scalars on the device under names that stay the same throughout an epoch; the engine decides when to
        read them. NaN means that there is no value yet.
    """

    per_sample_loss: Tensor
    weights: Tensor | None = None
    diagnostics: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a method may know of the run. num_samples: rows of the training part; a batch's index lies below it.

    num_validation: rows of the validation part, 0 where the split has none.
    pretrained: whether the body starts from weights that were trained on other images.
    num_domains: of the whole split, targets included; a batch's domain lies below it.
    training_domains: those that training samples come from, rising.
    """

    num_classes: int
    num_domains: int
    num_samples: int
    epochs: int
    seed: int
    training_domains: tuple[int, ...] = (0,)
    num_validation: int = 0
    pretrained: bool = False

    @classmethod
    def of_split(cls, manifest: Manifest, epochs: int, seed: int, pretrained: bool) -> Context:
        """Of a run over a split."""
        return cls(
            num_classes=len(manifest.classes),
            num_domains=len(manifest.domains),
            num_samples=len(manifest.part("train")),
            epochs=epochs,
            seed=seed,
            training_domains=manifest.domains_of("train"),
            num_validation=len(manifest.part("validation")),
            pretrained=pretrained,
        )


class TrainingSet(Protocol):
    """The training samples between epochs, for methods that look at all of them; or the validation samples."""

    def batches(self) -> Iterator[Batch]:
        """Every sample once, without augmentation; each of several processes gets its share."""

    def pixels(self) -> Iterator[Batch]:
        """As `batches`, but x holds the pixels as they are stored, (b, H, W, 3) uint8, and index places in the set.

        These differ from row numbers where images could not be read.
        """

    def read_taps(
        self,
        network: Network,
        taps: Sequence[str],
        collect: Callable[[Tensor, Mapping[str, Tensor], Tensor], None],
        reuse: bool = False,
    ) -> None:
        """Pass every sample through the current network, and collect index (b,), features (b, m) by tap, labels (b,).

        reuse: whether other runs may need the same features, because the network has not been trained yet.
        """
        network.read_taps(
            taps,
            ((batch, batch.x) for batch in self.batches()),
            lambda batch, features: collect(batch.index, features, batch.y),
        )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a method found in an epoch's source validation; all empty where it found nothing.

    figures: go into the epoch's record as `judged`.   penalty: subtracted from the accuracy by which the epoch is
        ranked.
    note: one plain sentence without a full stop, shown after the epoch's figures.
    """

    figures: dict[str, float] = field(default_factory=dict)
    penalty: float = 0.0
    note: str = ""


class EpochJudge:
    """How a method takes part in the ranking of epochs by source validation; overriding any of its steps is optional.

    What has to survive an interruption is kept in the method's buffers: a resumed run creates a new judge and does not
    `start` it again.
    """

    def start(self, validation_set: TrainingSet) -> None:
        """Called once, after `Algorithm.start_epoch` of the first epoch; the images are not trained on."""

    def weights(self) -> Tensor | None:
        """How much every row of the validation part counts when epochs are ranked, (n,); None counts all alike."""
        return None

    def judge(self, figures: Mapping[str, Any]) -> Judgement:
        """Called by all processes after every epoch with the figures of its source validation.

        The method may adjust the rest of the training.
        """
        return Judgement()


class Stepper(Protocol):
    """What the engine offers to `Algorithm.step`."""

    def loss(self, batch: Batch) -> StepOutput:
        """`Algorithm.loss` with the run's precision, and with gradients joined over processes."""

    def descend(self, output: StepOutput) -> None:
        """Reduce the loss, differentiate it, step the optimiser."""


class Algorithm(nn.Module, ABC, Generic[S]):
    """A method: a network, whatever modules it adds, and the loss of a batch.

    All state lives in parameters and buffers, so that a checkpoint holds it. A subclass is final.
    """

    title: ClassVar[str]
    settings_type: ClassVar[type[Any]]
    _places: Tensor
    # Whether the network sees each batch exactly once a step, in training mode and as it comes, so that its passes
    # may be replayed as a CUDA graph.
    one_plain_pass: ClassVar[bool] = True
    # Whether a whole step is device work alone, with nothing that the host decides or counts, so that an epoch's steps
    # may be replayed as a CUDA graph; a module that counts is a `stablenet.replay.HostSide`. What changes between
    # epochs, or in a `start_step` that returns something, does not matter. An instance may decide it by its settings.
    replayable: bool = False
    # Whether work of the method's own may be replayed as CUDA graphs; the engine says so. No part of `Context`, which
    # is kept with exported models: it does not change what is computed.
    graphs: bool = True
    several_processes: ClassVar[bool] = True
    # Whether it chooses by `sampling_weights` how often samples are drawn. An instance may say it by its settings.
    draws_samples: bool = False
    # Whether it learns from domain labels, which most methods do without; see `marks`.
    uses_domains: ClassVar[bool] = False
    # Whether it learns from group labels, pairs of class and domain: what could be reached if contexts were known.
    uses_groups: ClassVar[bool] = False
    # Whether its paper's figures rest on settings or epochs that were chosen by group labels of held-out samples.
    selects_by_groups: ClassVar[bool] = False
    # Shown next to its figures if the method was not written from its full description; otherwise empty.
    approximation: ClassVar[str] = ""

    def __init__(self, network: Network, settings: S, context: Context) -> None:
        super().__init__()
        self.network = network
        self.settings = settings
        self.context = context
        self._runner: Callable[[Tensor], tuple[Tensor, ...]] = network.forward_taps
        places = torch.full((context.num_domains,), -1)
        places[list(context.training_domains)] = torch.arange(len(context.training_domains))
        self.register_buffer("_places", places, persistent=False)

    @classmethod
    def read_settings(cls, parameters: Mapping[str, Any]) -> S:
        """Settings from a config's `method.parameters`; a method of several strategies chooses among theirs."""
        settings: S = read_fields(cls.settings_type, parameters, "method.parameters")
        return settings

    @classmethod
    def marks(cls, parameters: Mapping[str, Any]) -> str:
        """The signs of `MARKS` behind its name, given the `method.parameters`."""
        return DOMAINS * cls.uses_domains + GROUPS * cls.uses_groups + SELECTION * cls.selects_by_groups

    @classmethod
    def version(cls, parameters: Mapping[str, Any]) -> str:
        """The version of the defaults that these parameters leave to the method; "" if they never changed."""
        return ""

    @classmethod
    def restate(cls, parameters: Mapping[str, Any], version: str, pretrained: bool) -> dict[str, Any]:
        """Current parameters that reproduce what a run of an earlier version did (see `version`)."""
        return dict(parameters)

    @abstractmethod
    def loss(self, batch: Batch) -> StepOutput:
        """The loss of every sample of the batch and its weight."""

    def step(self, batch: Batch, stepper: Stepper) -> StepOutput:
        """One update. A method that needs several passes overrides this and says why."""
        output = stepper.loss(batch)
        stepper.descend(output)
        return output

    def start_epoch(self, epoch: int, training_set: TrainingSet) -> Mapping[str, float | str]:
        """Called before epoch `epoch` (from 0), also before the first; what it returns goes into the records."""
        return {}

    def start_step(self, step: int, training_set: TrainingSet) -> dict[str, float]:
        """Called before step `step` of the run (from 0); what it returns goes into the records.

        For work that is due after a number of steps, such as making new data to train on. A resumed run calls it again
        for the step before which it was stopped, so the method's buffers must show what has been done already.
        """
        return {}

    def end_epoch(self, epoch: int) -> Mapping[str, float | str]:
        """Called after the last batch of epoch `epoch` (from 0); what it returns goes into the records.

        Use this rather than the next `start_epoch` for what the epoch's validation and models must include; after the
        last epoch there is no next one.
        """
        return {}

    def refit(self, training_set: TrainingSet) -> dict[str, float]:
        """Called before the predictor is validated: fit what depends on the current network, such as a last layer.

        After an epoch what it returns goes into the records. Whatever it changes must not enter the loss of later
        steps, because how often it is called depends on how often the run validates.
        """
        return {}

    def sampling_weights(self) -> Tensor | None:
        """How often every training sample is drawn relative to the others, (num_samples,); None draws each once.

        Read when an epoch starts or resumes, so it may change only between epochs. The length of an epoch does not
        change.
        """
        return None

    def judge_epochs(self) -> EpochJudge | None:
        """The judge of epochs besides plain source validation; called when a run with validation starts or resumes.

        None ranks them by plain figures.
        """
        return None

    def sample_columns(self) -> dict[str, Tensor]:
        """What entered the loss for every training sample, by name: weight, offset, context; empty where nothing did.

        Each (num_samples,) float in the manifest's order, or (num_samples, classes), of which the entry of the sample's
        own class is kept. Called by all processes after the last step, before `end_epoch`: what a method changes then
        was never used.
        """
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups for the optimiser; `rate_scale` multiplies the learning rate of a group.

        The optimiser and its schedule belong to the engine.
        """
        return [{"params": [p for p in self.parameters() if p.requires_grad], "rate_scale": 1.0}]

    def trains_predictor(self) -> bool:
        """Whether the latest step trained the predictor; a method may first learn something else.

        Weight averaging starts here, because the weights alone do not show whether they are untrained or unchanged.
        """
        return True

    def predictor(self) -> Network:
        """What is kept after training: images (b, 3, s, s) -> logits (b, classes).

        A method whose predictions are not those of its network returns another module here, built from its settings.
        """
        return self.network

    def validator(self) -> Callable[[Batch], Tensor]:
        """What source validation is measured with, once an epoch: batches to logits (b, classes).

        The predictor's, unless a method treats samples of its source domains differently from those of a target.
        """
        predictor = self.predictor()
        return lambda batch: predictor(batch.x)

    def place_domains(self, domain: Tensor) -> Tensor:
        """Domains (b,) of the split as places (b,) among `training_domains`, from 0; -1 for any other domain."""
        return self._places[domain]

    def split_rows(self, domain: Tensor) -> list[Tensor]:
        """The rows of each training domain in a batch with domains (b,); empty for those it lacks.

        Their number is needed on the host, so this waits for the device.
        """
        place = self.place_domains(domain)
        counts = torch.bincount(place, minlength=len(self.context.training_domains)).tolist()
        return list(place.argsort(stable=True).split(counts))

    def run_network(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (b, classes) and the tapped features by name."""
        logits, *features = self._runner(images)
        return logits, self.network.name_taps(features)

    def run_network_with(self, runner: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        """Let the engine replace `Network.forward_taps` by a faster equivalent."""
        self._runner = runner

    def forward(
        self, x: Tensor, y: Tensor, domain: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """`loss` in plain tensors, as wrappers for precision and several processes want it."""
        output = self.loss(Batch(x, y, domain, index))
        return output.per_sample_loss, output.weights, output.diagnostics


class UsedWeights(nn.Module):
    """The weight (num_samples,) that every training sample had when it was last in a batch; one before.

    For methods that compute weights batch by batch. Every process sees all samples: processes that train together share
    the first one's buffers, and its checkpoint is the checkpoint of all.
    """

    weights: Tensor

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(num_samples))

    @torch.no_grad()
    def keep(self, index: Tensor, weights: Tensor) -> None:
        """Remember the weights (b,) of the samples with these indices (b,)."""
        if distributed.processes() > 1:
            sizes = distributed.gather_sizes(len(index), index.device)
            index, weights = (distributed.gather_rows(rows, sizes) for rows in (index, weights))
        self.weights[index] = weights.to(self.weights)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        unknown = {f"{prefix}weights": torch.ones_like(self.weights)}  # for states from before they were kept
        super()._load_from_state_dict({**unknown, **state_dict}, prefix, *args)


def explain_marks(used: str) -> str:
    """What the `MARKS` among these signs mean, in one line; empty where there are none."""
    return "; ".join(f"{sign} {meaning}" for sign, meaning in MARKS.items() if sign in used)


def classify(logits: Tensor, y: Tensor, offsets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cross-entropy of every sample (b,), and the batch's accuracy, a scalar on the device.

    offsets: (b, classes), added to the logits for the cross-entropy; the accuracy is that of the logits alone.
    """
    shifted = logits.float() if offsets is None else logits.float() + offsets
    loss = functional.cross_entropy(shifted, y, reduction="none")
    return loss, (logits.detach().argmax(1) == y).float().mean()
