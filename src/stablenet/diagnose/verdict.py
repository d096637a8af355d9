"""From the measurements to an answer: is StableNet likely to help here, or a waste of time?

The thresholds for images were set on data whose answer is known. Share of the label that the border alone predicts,
hand-made
features: digits on backgrounds drawn at random 0.07–0.08; with a dominant background per class 0.2 (ratio 0.3), 0.3
(0.5) and 0.7 (0.9); MNIST-M 0.08 at random, 0.19 at 0.5, 0.37 at 0.9; PACS 0.09–0.22.

`Diagnosis` at the end holds everything that was found; the page and the command line show it and compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stablenet.diagnose.measure import ContextFindings, Explained, Trade
from stablenet.weighting.recommended import Decision

Level = Literal["likely", "perhaps", "unlikely"]

SIGNIFICANT = 0.01
CENTRAL = 0.5  # border below this share of the whole image: the middle predicts the label, perhaps the object itself
ENTANGLED_LEFT = 0.5  # more of the dependence left: weights cannot remove it
# Fewer effective samples: weights cannot remove it either. The preset's weights of the embedded digits leave 0.14–0.23
# at ratio 0.9, where StableNet gains, and 0.10–0.11 of a thousand images at 0.95; 0.1 is their floor. A table's weights
# have another objective and penalty.
ENTANGLED_ESS, ENTANGLED_ROWS = 0.12, 0.15
WEAK_V = 0.1  # Cramér's V that is called weak by convention
UNDONE = 0.7  # share of a table's V that may remain; with noisy columns nearly all does, and nothing is gained
LOST = 0.33  # mean weight of a class below which the weights nearly drop it
FOUND = 1.1  # mean weight of minority contexts from which the weights are said to find them

HEADLINES: dict[Level, str] = {
    "likely": "StableNet is likely to help here.",
    "perhaps": "StableNet may help here; try it against plain training.",
    "unlikely": "StableNet would be a waste of time here.",
}

PLAIN = "Train as usual. If accuracy drops elsewhere, the cause is not a correlation of context and label."
ENTANGLED = (
    "Weights can only redistribute the samples there are, and too few show a class outside its context. "
    "Collect some of those; a few dozen per class are worth more than any method."
)
LOOK = (
    "Look at the samples on the page first. If what a class has in common there is its surroundings, weights are a "
    "remedy; if it is the class itself (a ripe fruit is red), they would take away what you want to learn. "
    "Then compare with plain training over at least three seeds, on data from elsewhere. A pretrained ResNet-50 "
    "gained 9.7 points on PACS where domain and label were correlated, and 10.5 points, 24 in the worst group, on pets "
    "over places; where they are not correlated, it trains plainly."
)
OTHER_CONTEXT = (
    "The context you named is not what predicts the label in these images. Look at the samples on the page: if they "
    "show another context, try StableNet; if they show the class itself, do not."
)
NOT_THIS_CONTEXT = (
    "The context you named hardly predicts the label, and neither do colours and textures. Train as usual."
)
ENVIRONMENTS = (
    "A table does not say which columns are causes and which are only correlated. If you know environments (site, "
    "year), `stablenet table fit --environment` shows whether the weights hold up where they were not fitted."
)
NOT_UNDONE = (
    "Making the columns independent of each other does not separate the context you named from the label. "
    "Balance by the context itself (equal weight for every context of a class)."
)


@dataclass(frozen=True)
class Bars:
    """Shares of the label predicted by the border, from which context is possible, and from which it is clear."""

    some: float
    much: float


HAND_MADE = Bars(0.12, 0.25)
# A network's features predict more and see further in: ResNet-50, 0.17 on digits with random backgrounds, 0.24 on PACS.
NETWORK = Bars(0.18, 0.37)


@dataclass(frozen=True)
class Verdict:
    """level: the answer.   reasons: the measurements it rests on, a sentence each.   advice: what to do next."""

    level: Level
    reasons: tuple[str, ...]
    advice: str

    @property
    def headline(self) -> str:
        return HEADLINES[self.level]


def judge_images(
    whole: Explained,
    border: Explained,
    trade: Trade,
    decision: Decision,
    context: ContextFindings | None,
    bars: Bars = HAND_MADE,
) -> Verdict:
    """The answer is that of training: where it would act, StableNet is likely to help.

    trade: of the weights at full strength.
    """
    amount = rate_border(border, bars)
    would = "act" if decision.act else "train plainly"
    reasons = [_say_border(whole, border, amount), f"Training would {would}: {decision.reason}."]
    reasons.append(say_trade(trade, ENTANGLED_ESS))
    if context is not None:
        reasons.append(say_context(context))
    level, advice = _choose(amount, trade, decision, context)
    return Verdict(level, tuple(reasons), advice)


def rate_border(border: Explained, bars: Bars) -> Literal["none", "some", "much"]:
    if border.p_value > SIGNIFICANT or border.share < bars.some:
        return "none"
    return "some" if border.share < bars.much else "much"


def is_entangled(trade: Trade, least: float) -> bool:
    """Whether too much of the dependence stays, or fewer than a share `least` of the samples are effective."""
    if trade.is_even and trade.left is None:
        return False  # nobody tried
    return trade.ess < least or (trade.left is not None and trade.left > ENTANGLED_LEFT)


def is_tied(context: ContextFindings) -> bool:
    """Whether the named context depends on the label."""
    return context.v_before >= WEAK_V and context.p_value <= SIGNIFICANT


def _choose(amount: str, trade: Trade, decision: Decision, context: ContextFindings | None) -> tuple[Level, str]:
    """Whether the answer is only "perhaps": a network trained from scratch, with weights on too few samples."""
    if decision.act:
        return ("perhaps", ENTANGLED) if is_entangled(trade, ENTANGLED_ESS) else ("likely", LOOK)
    if context is None or is_tied(context):
        return "unlikely", PLAIN
    return "unlikely", NOT_THIS_CONTEXT if amount == "none" else OTHER_CONTEXT


def _say_border(whole: Explained, border: Explained, amount: str) -> str:
    word = {"none": "little", "some": "some", "much": "much"}[amount]
    said = f"Colours and textures at the border of an image predict {say_share(border.share)} of its label: {word}."
    said += f" The whole image: {say_share(whole.share)}. Chance, {100 * border.permuted:.1f} % here, is subtracted."
    if whole.share >= HAND_MADE.some and border.share < CENTRAL * whole.share:
        said += " Most of it comes from the middle, where the object is: that may be the class itself."
    return said


def say_share(share: float) -> str:
    """In percent; with one more digit where the share would round to 0 or 100 %, which are never shown."""
    if 0 < share < 0.005 or 0.995 < share < 1:
        return f"{min(max(100 * share, 0.1), 99.9):.1f} %"
    return f"{100 * share:.0f} %"


def say_trade(trade: Trade, least: float) -> str:
    """least: as `is_entangled` takes it."""
    if trade.is_even and trade.left is None:
        return "All samples weigh the same."
    dependence = "" if trade.left is None else f"{say_share(trade.left)} of the dependence and "
    kept = f"leaves {dependence}{say_share(trade.ess)} of the samples effective"
    return f"Weighting {kept}" + (": that is too little." if is_entangled(trade, least) else ".")


def say_context(context: ContextFindings) -> str:
    """Shares of samples and of weight, in words; the page shows the strength of the association in figures."""
    tied = f"The label {'follows' if is_tied(context) else 'hardly follows'} the context you named"
    if not context.minority > 0:
        return f"{tied}: no sample lies outside its class's main context."
    said = f"{tied}: {say_share(1 - context.minority)} of the samples lie in their class's main context"
    return f"{said}; the other {say_share(context.minority)} {say_weight(context.minority, context.minority_weight)}."


def say_weight(share: float, weight: float) -> str:
    """What some samples weigh, in words, beside their share of all."""
    if abs(weight - share) < 0.005:
        return "carry the same share of the weight"
    return f"carry {say_share(weight)} of the weight"


def judge_table(
    dependent: int, pairs: int, trade: Trade, context: ContextFindings | None, lowest: float = 1.0
) -> Verdict:
    """dependent: how many of the pairs of columns depend on each other.   trade: of the weights at full strength.

    lowest: mean weight of the class that loses most.
    """
    reasons = [f"{dependent} of {pairs} pairs of columns depend on each other.", say_trade(trade, ENTANGLED_ROWS)]
    if context is not None:
        reasons.append(say_context(context))
    level, advice = _choose_table(dependent, trade, context)
    if lowest < LOST:
        reasons.append(f"One class would keep {say_share(lowest)} of its weight: what is gained may be lost with it.")
        level = "perhaps" if level == "likely" else level
    return Verdict(level, tuple(reasons), advice)


def _choose_table(dependent: int, trade: Trade, context: ContextFindings | None) -> tuple[Level, str]:
    if dependent == 0:
        return (
            "unlikely",
            "The columns are independent already: there is nothing for weights to remove. Fit as usual.",
        )
    if is_entangled(trade, ENTANGLED_ROWS):
        return (
            "unlikely",
            "The columns determine one another: leave out duplicates, or collect rows in which they differ.",
        )
    if context is None:
        return "perhaps", ENVIRONMENTS
    if not is_tied(context):
        return "unlikely", "The context you named hardly predicts the label: fit as usual."
    if context.v_after > UNDONE * context.v_before or not context.weight_minority > 1:
        return "unlikely", NOT_UNDONE
    return "likely" if context.weight_minority >= FOUND else "perhaps", ENVIRONMENTS


@dataclass(frozen=True)
class ColumnFinding:
    """A column of a table: how strongly it depends on the label (0 to 1), and the adjusted p-value."""

    name: str
    strength: float
    p_value: float


@dataclass(frozen=True)
class Pair:
    """Two columns that depend on each other."""

    first: str
    second: str
    strength: float
    p_value: float


@dataclass(frozen=True)
class Diagnosis:
    """name: of the data.   classes: that occur, in the order of `whole`.   y: (n,) positions in classes.
    features: in words.   whole: what the features predict of the label; for images also border.
    trades: weak to strong.   weights: (n,) at full strength.   weights_from: where they come from, in words.
    scores: (n,) the context score: how strongly the features suggest a sample's own label; negative: another one.
    ids, paths: names of the samples and of their files.   show: position to image (H, W, 3) uint8; images only.
    columns, pairs: tables only, strongest first.   notes: remarks that the reader needs.
    """

    name: str
    classes: tuple[str, ...]
    y: Tensor
    features: str
    whole: Explained
    trades: tuple[Trade, ...]
    weights: Tensor
    weights_from: str
    verdict: Verdict
    scores: Tensor
    ids: tuple[str, ...] = field(repr=False)
    paths: tuple[str, ...] = field(default=(), repr=False)
    show: Callable[[int], NDArray[np.uint8]] | None = None
    border: Explained | None = None
    bars: Bars = HAND_MADE
    context: ContextFindings | None = None
    columns: tuple[ColumnFinding, ...] = ()
    pairs: tuple[Pair, ...] = ()
    rows: tuple[str, ...] = field(default=(), repr=False)  # tables: a short text for every row
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)
