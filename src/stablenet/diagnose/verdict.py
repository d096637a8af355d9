"""From what was measured to an answer: is StableNet likely to help here, or a waste of time?

The bars for images were set on data whose answer is known. Share of the label that the border alone tells, hand-made
features: digits on backgrounds drawn at random 0.07–0.08; with a dominant background per class 0.2 (ratio 0.3), 0.3
(0.5) and 0.7 (0.9); MNIST-M 0.08 at random, 0.19 at 0.5, 0.37 at 0.9; PACS 0.09–0.22.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stablenet.diagnose.context import ContextFindings
from stablenet.diagnose.telling import Telling
from stablenet.diagnose.weigh import Trade

Level = Literal["likely", "perhaps", "unlikely"]

SIGNIFICANT = 0.01
CENTRAL = 0.5  # border below this share of the whole image: the middle tells the label, perhaps the object itself
ENTANGLED_LEFT, ENTANGLED_ESS = 0.5, 0.15  # more left, or fewer effective samples: weights cannot do it
WEAK_V = 0.1  # Cramér's V that is called weak by convention
UNDONE = 0.7  # share of a table's V that may be left; with noisy columns nearly all is, and nothing is gained
LOST = 0.33  # mean weight of a class below which the weights come close to leaving it out
FOUND = 1.1  # mean weight of minority contexts from which the weights are said to find them

HEADLINES: dict[Level, str] = {
    "likely": "StableNet is likely to help here.",
    "perhaps": "StableNet may help here; try it against plain training.",
    "unlikely": "StableNet would be a waste of time here.",
}

PLAIN = "Train as usual. If accuracy drops elsewhere, the cause is another than context tied to the label."
ENTANGLED = (
    "Weights can only redistribute the samples there are, and too few show a class outside its context. "
    "Collect some of those; a few dozen per class are worth more than any method."
)
LOOK = (
    "Look at the samples on the page first. If what a class has in common there is its surroundings, weights are a "
    "remedy; if it is the class itself (a ripe fruit is red), they would take away what you want to learn. "
    "Then compare with plain training over at least three seeds, on data from elsewhere. A pretrained ResNet-50 "
    "gained 9.7 points on PACS where domain and label were tied; where they were not it gained 1.3 in one setting and "
    "lost 1.2 in another."
)
OTHER_CONTEXT = (
    "The context you named is not what the images tell the label by. Look at the samples on the page: if they show "
    "another context, try StableNet; if they show the class itself, do not."
)
NOT_THIS_CONTEXT = (
    "The context you named tells hardly anything about the label, and the images tell little. Train as usual."
)
ENVIRONMENTS = (
    "A table does not say which columns are causes and which go along. If you know environments (site, year), "
    "`stablenet table fit --environment` shows whether the weights hold up where they were not fitted."
)
NOT_UNDONE = (
    "Making the columns independent of each other does not part the context you named from the label. "
    "Balance by the context itself (equal weight for every context of a class)."
)
NOT_FOUND = (
    "The weights would not raise the samples whose context is rare in their class. Balance by the context you know "
    "(equal weight for every context of a class), or collect such samples."
)


@dataclass(frozen=True)
class Bars:
    """Shares of the label told by the border, from which context is possible, and from which it is plain."""

    some: float
    much: float


HAND_MADE = Bars(0.12, 0.25)
# A network's features tell more and see further in: ResNet-50, 0.17 on digits with random backgrounds, 0.24 on PACS.
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
    whole: Telling, border: Telling, trade: Trade, context: ContextFindings | None, bars: Bars = HAND_MADE
) -> Verdict:
    """trade: of the firmest weights."""
    amount = rate_border(border, bars)
    reasons = [_say_border(whole, border, amount), say_trade(trade)]
    if context is not None:
        reasons.append(say_context(context))
    level, advice = _choose(amount, is_entangled(trade), context)
    return Verdict(level, tuple(reasons), advice)


def rate_border(border: Telling, bars: Bars) -> Literal["none", "some", "much"]:
    if border.p_value > SIGNIFICANT or border.share < bars.some:
        return "none"
    return "some" if border.share < bars.much else "much"


def is_entangled(trade: Trade) -> bool:
    return trade.left > ENTANGLED_LEFT or trade.ess < ENTANGLED_ESS


def is_tied(context: ContextFindings) -> bool:
    """Whether the named context goes with the label."""
    return context.v_before >= WEAK_V and context.p_value <= SIGNIFICANT


def _choose(amount: str, entangled: bool, context: ContextFindings | None) -> tuple[Level, str]:
    tied = context is not None and is_tied(context)
    if amount == "none" and not tied:
        return "unlikely", PLAIN
    if entangled:
        return "unlikely", ENTANGLED
    if context is None:
        return "likely" if amount == "much" else "perhaps", LOOK
    if not tied:
        return ("perhaps", OTHER_CONTEXT) if amount == "much" else ("unlikely", NOT_THIS_CONTEXT)
    if not context.weight_minority > 1:  # NaN where no sample lies off its class's main context
        return "unlikely", NOT_FOUND
    return "likely" if amount == "much" and context.weight_minority >= FOUND else "perhaps", LOOK


def _say_border(whole: Telling, border: Telling, amount: str) -> str:
    word = {"none": "little", "some": "something", "much": "much"}[amount]
    told = f"Colours and textures at the border of an image tell {say_share(border.share)} of its label: {word}."
    told += f" The whole image: {say_share(whole.share)}. Chance, {100 * border.permuted:.1f} % here, is subtracted."
    if whole.share >= HAND_MADE.some and border.share < CENTRAL * whole.share:
        told += " Most of it sits in the middle, where the object is: that may be the class itself."
    return told


def say_share(share: float) -> str:
    return f"{100 * share:.0f} %"


def say_trade(trade: Trade) -> str:
    kept = f"leaves {say_share(trade.left)} of the dependence and {say_share(trade.ess)} of the samples effective"
    return f"Weighting {kept}" + (": too little comes free." if is_entangled(trade) else ".")


def say_context(context: ContextFindings) -> str:
    tied = "goes with the label" if is_tied(context) else "hardly goes with the label"
    told = f"The named context {tied} (Cramér's V {context.v_before:.2f}, p = {context.p_value:.3f})"
    if not context.minority > 0:
        return f"{told}; no sample lies outside its class's main context."
    off = f"samples off their class's main context ({say_share(context.minority)})"
    means = f"{context.weight_minority:.2f} on average, the others {context.weight_majority:.2f}"
    return f"{told}, {context.v_after:.2f} under the weights; {off} would weigh {means}."


def judge_table(
    dependent: int, pairs: int, trade: Trade, context: ContextFindings | None, lowest: float = 1.0
) -> Verdict:
    """dependent: how many of the pairs of columns depend on each other.   trade: of the firmest weights.

    lowest: mean weight of the class that loses most.
    """
    reasons = [f"{dependent} of {pairs} pairs of columns depend on each other.", say_trade(trade)]
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
            "The columns are independent as they are: there is nothing for weights to undo. Fit as usual.",
        )
    if is_entangled(trade):
        return "unlikely", "The columns determine one another: leave out doubles, or collect rows in which they differ."
    if context is None:
        return "perhaps", ENVIRONMENTS
    if not is_tied(context):
        return "unlikely", "The context you named tells hardly anything about the label: fit as usual."
    if context.v_after > UNDONE * context.v_before or not context.weight_minority > 1:
        return "unlikely", NOT_UNDONE
    return "likely" if context.weight_minority >= FOUND else "perhaps", ENVIRONMENTS
