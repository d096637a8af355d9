"""A diagnosis of images: read once, look at shallow features, weigh, judge. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from stablenet.diagnose import bank
from stablenet.diagnose.backbone import ShallowStages
from stablenet.diagnose.collect import Collected, Extract, choose_images, collect
from stablenet.diagnose.context import study_context
from stablenet.diagnose.findings import Diagnosis
from stablenet.diagnose.subject import Subject
from stablenet.diagnose.telling import measure_telling, one_hot, principal_axes
from stablenet.diagnose.verdict import HAND_MADE, NETWORK, Bars, judge_images
from stablenet.diagnose.weigh import weigh_labels
from stablenet.errors import UserError

Report = Callable[[str, int, int], None]  # what is done, how many, of how many
BANK_SIDE = 64  # statistics of colour and texture change little above this
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
    found = collect(chosen, extract, side, _bind(report, "reading images"))
    return _judge(found, features, bars, report)


def _judge(found: Collected, features: str, bars: Bars, report: Report | None) -> Diagnosis:
    subject = found.subject
    codes = torch.from_numpy(subject.y)
    y = codes.unique(return_inverse=True)[1]
    whole, border = (measure_telling(z, one_hot(codes)) for z in (found.whole, found.border))
    trades, weights = weigh_labels(principal_axes(found.whole), y, _bind(report, "solving weights"))
    context = None
    if subject.context is not None:
        context = study_context(subject.contexts, torch.from_numpy(subject.context), y, found.whole, weights)
    return Diagnosis(
        name=subject.name,
        classes=tuple(subject.classes[code] for code in codes.unique().tolist()),
        y=y,
        features=features,
        whole=whole,
        border=border,
        trades=tuple(trades),
        weights=weights,
        context=context,
        thumbnails=found.thumbnails,
        notes=subject.notes,
        bars=bars,
        verdict=judge_images(whole, border, trades[-1], context, bars),
    )


def _choose_features(choices: ImageChoices, own_side: int | None) -> tuple[Extract, int, str]:
    if choices.backbone:
        stages = ShallowStages(choices.backbone, choices.pretrained, choices.root)
        return stages, NETWORK_SIDE, stages.description
    return bank.extract_bank, min(own_side or BANK_SIDE, BANK_SIDE), bank.DESCRIPTION


def _bind(report: Report | None, what: str) -> Callable[[int, int], None] | None:
    if report is None:
        return None
    return lambda done, total: report(what, done, total)
