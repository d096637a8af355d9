"""A diagnosis of images: read once, measure shallow features, weigh, judge. Nothing is trained.

The weights are those that a run kept, or are solved as training with the preset `recommended` solves them.

Those without a network are `stablenet.weighting.border`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stablenet.diagnose.measure import (
    Trade,
    effective_share,
    measure_explained,
    one_hot,
    read_own,
    share_left,
    study_context,
    weigh_labels,
)
from stablenet.diagnose.subject import Collected, Extract, Subject, choose_images, extract_features
from stablenet.diagnose.verdict import HAND_MADE, NETWORK, Bars, Diagnosis, judge_images
from stablenet.errors import UserError
from stablenet.models import FeatureTaps, build_network
from stablenet.weighting import border, pool_maps, recommended
from stablenet.weighting.border import Described, pool_border
from stablenet.weighting.evidence import EvidenceSums
from stablenet.weighting.recommended import TAPS, Decision

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # what published ImageNet weights were trained with


class ShallowStages:
    """Features of the first two stages; the network is run no further."""

    def __init__(self, name: str, pretrained: str, root: Path | None = None) -> None:
        if not pretrained:
            raise UserError(
                f"the backbone {name} has no weights: give --pretrained imagenet or a .safetensors file, "
                "or leave --backbone out to use the hand-made features"
            )
        network = build_network(name, 1, pretrained=pretrained, root=root).eval()
        missing = [stage for stage in TAPS if stage not in network.stages]
        if missing:
            raise UserError(f"the backbone {name} has no {missing[0]}: choose one with stages, such as resnet50")
        self._body = network.body
        self._taps = FeatureTaps(network.body, TAPS, stages=network.stages, pool=_pool_both)
        self.description = f"{name} with the weights {Path(pretrained).name}: pooled maps of its first two stages"

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """pixels: (b, s, s, 3) uint8.   Returns features of the whole image and of its border, (b, m) each."""
        images = pixels.permute(0, 3, 1, 2).float() / 255
        with self._taps.stop_early():
            self._body((images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None])
        whole, border = torch.cat(list(self._taps.take().values()), 2)
        return whole, border


def _pool_both(maps: Tensor) -> Tensor:
    """Maps (b, c, h, w) pooled over the image and over its border: (2, b, 2c)."""
    if maps.ndim != 4:
        raise UserError("the stages of this backbone give no maps of positions: choose a convolutional one")
    return torch.stack([pool_maps(maps), pool_border(maps)])


Report = Callable[[str, int, int], None]  # what is done, how many, of how many
NETWORK_SIDE = 128  # the first stages see textures well there, at a third of the usual cost


@dataclass(frozen=True, kw_only=True)
class ImageChoices:
    """backbone, pretrained: as `stablenet.models.build_network` takes them; "" for the hand-made features.
    root: folder the weights may lie below.   limit: images looked at, drawn at random.   seed: draws them.
    """

    backbone: str = ""
    pretrained: str = ""
    root: Path | None = None
    limit: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pretrained and not self.backbone:
            raise UserError("--pretrained needs --backbone: name the network the weights belong to, such as resnet50")


def diagnose_images(subject: Subject, choices: ImageChoices, report: Report | None = None) -> Diagnosis:
    """Does context predict the label, what could weights do about it, and which samples would they raise?"""
    extract, side, features = _choose_features(choices, subject.side)
    bars = NETWORK if choices.backbone else HAND_MADE
    chosen = choose_images(subject, choices.limit, choices.seed)
    seen = Observed(extract)
    found = extract_features(chosen, seen, side, _bind(report, "reading images"))
    return _judge(found, seen, features, bars, choices, report)


class Observed:
    """Features of images, and beside them those that the decision of `recommended` rests on, in the same order."""

    def __init__(self, extract: Extract) -> None:
        self._extract = extract
        self._parts: list[Described] = []

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        seen = border.describe_pixels(pixels)
        self._parts.append(seen)
        return seen[:2] if self._extract is border.extract_bank else self._extract(pixels)

    def decide(self, y: Tensor, contexts: Tensor | None = None) -> Decision:
        """What training decides with act="auto".   y, contexts: (n,) of all images that were read, from 0 on."""
        sums = EvidenceSums(int(y.max()) + 1, 0 if contexts is None else int(contexts.max()) + 1)
        described = Described(*(torch.cat(parts) for parts in zip(*self._parts, strict=True)))
        sums.add(y, torch.arange(len(y)), described, contexts)
        return recommended.decide(sums.weigh())


def _judge(
    found: Collected, seen: Observed, features: str, bars: Bars, choices: ImageChoices, report: Report | None
) -> Diagnosis:
    subject = found.subject
    codes = torch.from_numpy(subject.y)
    y = codes.unique(return_inverse=True)[1]
    whole, outer = (measure_explained(z, one_hot(codes)) for z in (found.whole, found.border))
    named = None if subject.context is None else torch.from_numpy(subject.context)
    decision = seen.decide(y, named)
    trades, weights, origin = _weigh(found, y, choices)
    if report is not None:
        report("weights", 1, 1)
    context = None
    if named is not None:
        context = study_context(subject.contexts, named, y, found.whole, weights)
    return Diagnosis(
        name=subject.name,
        classes=tuple(subject.classes[code] for code in codes.unique().tolist()),
        y=y,
        features=features,
        whole=whole,
        border=outer,
        trades=tuple(trades),
        weights=weights,
        weights_from=origin,
        context=context,
        scores=read_own(whole.scores, y) / 2 + read_own(outer.scores, y) / 2,
        ids=tuple(subject.ids),
        paths=tuple(subject.paths),
        show=subject.show,
        notes=subject.notes,
        bars=bars,
        verdict=judge_images(whole, outer, trades[-1], decision, context, bars),
    )


def _weigh(found: Collected, y: Tensor, choices: ImageChoices) -> tuple[list[Trade], Tensor, str]:
    """The way to the weights, the weights (n,), and where they come from."""
    subject, pretrained = found.subject, bool(choices.backbone)
    if subject.weights is None:
        trades, weights = weigh_labels(found.whole, y, pretrained=pretrained, seed=choices.seed)
        kind = "pretrained network" if pretrained else "network trained from scratch"
        return trades, weights, f"{subject.weights_note}solved with the preset `{recommended.NAME}` for a {kind}"
    weights = torch.from_numpy(subject.weights)
    left = None if subject.dependence is None else share_left(*subject.dependence)
    return [Trade(1.0, left, effective_share(weights))], weights, subject.weights_note


def _choose_features(choices: ImageChoices, own_side: int | None) -> tuple[Extract, int, str]:
    if choices.backbone:
        stages = ShallowStages(choices.backbone, choices.pretrained, choices.root)
        return stages, NETWORK_SIDE, stages.description
    return border.extract_bank, own_side or border.SIDE, border.DESCRIPTION


def _bind(report: Report | None, what: str) -> Callable[[int, int], None] | None:
    if report is None:
        return None
    return lambda done, total: report(what, done, total)
