"""What a mean accuracy hides: a network that predicts one class, one that guesses, a group that is always wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

FEWEST = 10  # images, of a part or of a group; fewer say nothing
CERTAIN = 2.0  # standard deviations above chance that a network which guesses hardly reaches

_LEARN = "train longer, change train.learning_rate, or start from pretrained weights (model.pretrained)"
_DOUBT = "if it fits its training images, look at labels and split (`stablenet data check`); else train longer, or "
_DOUBT += "change train.learning_rate"
_LOOK = "look at these images (`stablenet saliency`); where contexts are known, choose the epoch by --rule worst-group"


@dataclass(frozen=True)
class Failure:
    """said: what is wrong, of a run.   remedy: what to try."""

    kind: Literal["one class", "guessing", "lost group"]
    said: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.said}: {self.remedy}"


def find_failures(figures: Mapping[str, Any], images: str = "image") -> list[Failure]:
    """The gravest failure that the metrics of a part show, or none.   figures: see `GroupCounts.figures`.

    images: what the part holds, such as "held-out image".
    """
    per_class = figures.get("per_class") or {}
    if len(per_class) > 1 and figures["count"] >= FEWEST:
        shares = sorted(per_class.values())
        if shares[-1] == 1 and shares[-2] == 0:
            only = max(per_class, key=lambda name: per_class[name])
            return [Failure("one class", f"predicts {only!r} for every {images}", _LEARN)]
        chance, mean = 1 / len(per_class), fmean(shares)
        if mean <= chance + CERTAIN * math.sqrt(chance * (1 - chance) / figures["count"]):
            said = f"is right for {100 * mean:.1f} % of a class's {images}s, and guessing for {100 * chance:.1f} %"
            return [Failure("guessing", said, _DOUBT)]
    worst = (figures.get("groups") or {}).get("worst")
    if worst and worst["accuracy"] == 0 and worst["count"] >= FEWEST:
        said = f"is wrong for all {worst['count']:,} {images}s of {worst['class']} on {worst['domain']}"
        return [Failure("lost group", said, _LOOK)]
    return []
