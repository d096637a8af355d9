"""The preset `recommended`: every constant and every rule of it, with its reason and where it was measured.

`stablenet train`, `DatasetCriterion`, the adapters for other training loops and `stablenet diagnose` all ask here.

The rules, in the order in which a training meets them:

0. WHETHER TO ACT is decided from the training data alone (`decide`): where nothing says that context and label are
   tied, the training is plain training, to the bit.
1. FEATURES are those of the first two stages of the network as it starts, pooled (`TAPS`, `choose_taps`).
2. Where the whole training set is at hand, everything is solved once, before training (`WHOLE_SET`, `recommend`):
   - a network trained FROM SCRATCH gets weights, which grow over the first sixth of the epochs, and half the offsets;
   - a PRETRAINED network gets one and a half times the offsets of leading components, and even weights.
   Where only batches are known (`StableWeighting`, `StableCriterion`, DomainBed), it gets weights alone (`BATCH`).
3. EPOCHS are ranked by source validation under weights of the held-out samples, and those in which the network clearly
   uses the context rank lower; offsets that make it answer against the context are halved (`context_use`, `CLEAR`).
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from stablenet.errors import UserError
from stablenet.weighting.evidence import Evidence
from stablenet.weighting.settings import WeightingSettings

NAME = "recommended"

# --- Whether to act -----------------------------------------------------------------------------------------------
# Measured on the beds of results/natural that were set aside to develop on. Border over whole image, both less chance:
# pets over places 0.79 to 1.0 where 90 % of a class or more share their place, 0.73 to 0.94 at 80 %; PACS 0.59 to 0.71
# and 0.77 in 25 images of each of seven classes, where what the border predicts is the object that reaches it.
SURROUNDINGS = 0.78
LEAST_BORDER = 0.07  # of the label's variance: below it there is little to gain, and the quotient is noise
# Contexts that are named and not tied to the label contradict a border that predicts some of it: PACS 0.09 to 0.22.
MUCH_BORDER = 0.25
# Of the label's entropy: PACS 0.01 to 0.05, unbalanced 0.01 to 0.02, where nothing is gained; flexible 0.29 to 0.31.
TIED = 0.1

# --- Which features -----------------------------------------------------------------------------------------------
# Context shows in early layers; the last one mostly encodes the label. On MNIST-M at 0.9 the last layer gains a quarter
# of what shallow stages do, and which of the two stages makes no difference (ablations in results/mnist-m).
TAPS = ("stage1", "stage2")
LAST_LAYER = "last"

# --- Weights ------------------------------------------------------------------------------------------------------
# Batch by batch: the defaults of `WeightingSettings`, each with its reason there.
BATCH = WeightingSettings()
# The whole set: the share of the features' variance that the label explains is lowered as far as penalty and chance
# allow, so that little dependence means little weighting, and every class keeps its total.
WHOLE_SET: dict[str, Any] = {
    "groups": 0,  # no memory: all samples are there
    "objective": "share",  # by argument: `relative` would remove weak dependence, noise included, like any other
    "penalty": 0.0006,  # with `chance`: chosen on development digits and source validation, results/mnist-m
    "chance": 0.5,  # the fewer the samples, the more of the dependence may be chance
    "totals": "classes",  # by argument: weights are to undo the dependence on context, not the class balance
    "tolerance": 1e-2,  # solves are few, so that they may run to convergence
    "steps": 500,  # at most
    "min_ess": 0.1,  # a guard; the penalty keeps published solves above it
}
# The first stages of a pretrained network show the object as well as its surroundings. On PACS a penalty this large
# removes four fifths of the dependence of domain and label that smaller ones do, at twice the effective samples.
PRETRAINED_PENALTY = 0.04
# Share of the epochs over which weights grow from ones. Full size from the first step cost 13 points on MNIST-M at 0.9
# and kept some networks from learning (results/mnist-m); a third of the epochs gains as much as a sixth.
RAMP = 1 / 6

# --- Offsets ------------------------------------------------------------------------------------------------------
# Weights remove the same dependence: beside them whole offsets would remove it twice (results/mnist-m).
BESIDE_WEIGHTS = 0.5
# A pretrained network's features name the object; its leading components mostly show the style. Four were chosen on
# hidden source domains: results/pacs.
PRETRAINED_COMPONENTS = 4
# A fine-tuned network fits its training images and with them the offsets, so that whole ones leave a part of what the
# context predicts: 1.5 gains more in the worst group on three beds of three (results/natural), and on hidden source
# domains of PACS (results/pacs).
PRETRAINED_OFFSET = 1.5

# --- Epochs -------------------------------------------------------------------------------------------------------
# In standard errors. Chosen with the published runs in view: on MNIST-M and PACS it changes no chosen epoch, 3 would
# change one (results/coloured).
CLEAR = 3.5
WEAKEN = 0.5  # what is left of the offsets after an epoch in which the network clearly answered against the context


@dataclass(frozen=True)
class Decision:
    """act: whether weights and offsets are used.   reason: a sentence without a full stop.   evidence: it rests on."""

    act: bool
    reason: str
    evidence: Evidence

    @property
    def figures(self) -> dict[str, float | str]:
        """What goes into a run's records: nothing that was not measured."""
        found = self.evidence
        shares = {"border": found.border, "image": found.whole, "contexts": found.contexts}
        measured = {f"{name}_predicts": share for name, share in shares.items() if share is not None}
        return {"acts": float(self.act), **measured, "decision": self.reason}


def decide(evidence: Evidence) -> Decision:
    """Whether to act, from the training data alone. Named contexts are read if there are some, and are not needed.

    >>> decide(Evidence(border=0.62, whole=0.61)).act, decide(Evidence(border=0.11, whole=0.18)).act
    (True, False)
    """
    border, whole, contexts = evidence.border, evidence.whole, evidence.contexts
    tied = "" if contexts is None else f"the named contexts predict {100 * contexts:.0f} % of the label's entropy"
    if contexts is not None and contexts >= TIED:
        return Decision(True, tied, evidence)
    if border is None or whole is None:
        if contexts is None:
            return Decision(True, "nothing is known of these inputs but their labels", evidence)
        return Decision(False, tied, evidence)
    seen = f"{tied}, and " if tied else ""
    seen += f"colours and textures at the border predict {100 * border:.0f} % of the label, "
    seen += f"in the whole image {100 * whole:.0f} %"
    if border < max(LEAST_BORDER, SURROUNDINGS * whole):
        where = "too little to act on" if whole < LEAST_BORDER else "most of it is in the middle, where the object is"
        return Decision(False, f"{seen}: {where}", evidence)
    if contexts is not None and border < MUCH_BORDER:
        return Decision(False, f"{seen}: not enough to contradict the contexts", evidence)
    return Decision(True, f"{seen}: it is the surroundings that predict it", evidence)


@dataclass(frozen=True, kw_only=True)
class WholeSetPlan:
    """What a training does with the whole set.

    strength: how far the weights go, 1 + strength·(w − 1); 0 leaves them even, and nothing is solved for them.
    ramp: share of the epochs over which they grow from ones to that.
    offset: how much of the offsets is added to the logits; 0 turns them off.
    components: offsets are solved from so many leading components of all taps; 0 takes the first tap as it is.
    penalty: of the weights; None keeps that of the preset.
    """

    strength: float = 1.0
    ramp: float = RAMP
    offset: float = 0.0
    components: int = 0
    penalty: float | None = None

    def strength_in(self, epoch: int, epochs: int) -> float:
        """How far the weights go in epoch `epoch` (from 0) of `epochs`."""
        length = self.ramp * epochs
        return self.strength * (min(1.0, epoch / length) if length else 1.0)

    @property
    def overrides(self) -> dict[str, Any]:
        """Of the weighting, what differs from the preset's settings for a whole set."""
        return {} if self.penalty is None else {"penalty": self.penalty}


def recommend(
    *,
    pretrained: bool,
    first_tap: str = TAPS[0],
    strength: float | None = None,
    ramp: float = RAMP,
    offset: float | None = None,
    components: int | None = None,
) -> WholeSetPlan:
    """The plan of the preset; whatever is given takes the place of its own choice.

    pretrained: whether the body was trained on other images. Such a network soon fits every sample, and reweighting has
        no effect once the training loss is near zero; offsets still act.
    first_tap: where it is the last layer there are no offsets by default: they would leave nothing to learn.
    """
    with_offsets = first_tap != LAST_LAYER if offset is None else offset > 0
    if strength is None:
        strength = 0.0 if pretrained and with_offsets else 1.0
    if offset is None:
        alone = PRETRAINED_OFFSET if pretrained and components != 0 else 1.0  # measured with components
        offset = alone - (alone - BESIDE_WEIGHTS) * strength if with_offsets else 0.0
    if components is None:
        components = PRETRAINED_COMPONENTS if pretrained else 0
    penalty = PRETRAINED_PENALTY if pretrained else None
    return WholeSetPlan(strength=strength, ramp=ramp, offset=offset, components=components, penalty=penalty)


def choose_taps(known: Container[str]) -> tuple[str, ...]:
    """The taps of the preset, for a network that names these stages."""
    if not all(stage in known for stage in TAPS):
        raise UserError(
            f"the preset {NAME!r} reads the first two stages, and this backbone names none: set "
            "method.parameters.taps to modules of it, or to ['last']"
        )
    return TAPS


def context_use(plain: float, weighted: float, effective: float) -> float:
    """How clearly a network answers with the context (above 0) or against it (below 0), in standard errors.

        (a − a_w) / √(ā(1 − ā)/n_w)

    a, a_w: `plain` and `weighted`, accuracy on held-out source samples, 0 to 1, with all alike and under weights that
        make context and label independent; ā their mean. A network that does without the context is equally good at
        both, if rare pairs of class and context are as hard as common ones.
    n_w: `effective`, the effective number of samples under the weights. The root is the standard error of a_w, more
        than that of the difference: below about a hundred samples nothing is clear. ā(1 − ā) is at least 1/n_w.

    >>> round(context_use(0.90, 0.53, 88), 1), round(context_use(0.10, 0.47, 88), 1)
    (7.7, -7.7)
    """
    middle = (plain + weighted) / 2
    return (plain - weighted) / math.sqrt(max(middle * (1 - middle), 1 / effective) / effective)


def is_clear(use: float) -> bool:
    """Whether `context_use` is beyond chance."""
    return abs(use) > CLEAR
