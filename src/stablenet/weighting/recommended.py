"""The preset `recommended`: all its constants and rules, each with its reason and where it was measured.

`stablenet train`, `DatasetCriterion`, the adapters for other training loops and `stablenet diagnose` all use this
module.

The rules, in the order in which they apply:

0. WHETHER TO ACT is decided from the training data alone (`decide`): where the surroundings do not predict the label,
   or contexts are named and do not, training is plain training, bit for bit.
1. FEATURES are those of the first two stages of the initial network, pooled; of a pretrained network also those of the
   third stage at the border of the image (`TAPS`, `BORDER_TAP`, `choose_taps`).
2. If the whole training set is available, everything is solved once, before training (`WHOLE_SET`, `recommend`):
   - a network trained FROM SCRATCH gets weights, which grow over the first sixth of the epochs, and half the offsets;
   - a PRETRAINED network gets one and a half times the offsets of leading components, and even weights.
   If only batches are available (`StableWeighting`, `StableCriterion`, DomainBed), it gets only weights (`BATCH`).
3. EPOCHS are ranked by source validation under weights of the held-out samples, and those in which the network clearly
   uses the context rank lower; offsets that make it predict against the context are halved (`context_use`, `CLEAR`).

The preset has VERSIONS (`CURRENT`), so that a run is never mistaken for one of another version: see the end.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from stablenet.errors import UserError
from stablenet.values import NonNegative, Share, Whole, check_fields
from stablenet.weighting.evidence import Evidence
from stablenet.weighting.settings import PRESETS, WeightingSettings

NAME = "recommended"
# What `stablenet train` does unless a config says otherwise; other presets solve batch by batch and always act.
SOLVE = "dataset"  # for the whole training set: a batch and its memory are too few samples to show what is chance
ACT = "auto"  # `decide` comes first

# --- Whether to act -----------------------------------------------------------------------------------------------
# From the pixels and labels of the training part alone, on the sets to develop on (results/natural/context.md, from
# `python -m benchmarks.context`). The border's share of the label over the middle's: pets over places 0.75 to 1.9 from
# a ratio of 0.8 on, PACS with other domains for every class 0.63 to 0.79, MNIST-M 0.9 to 1.1; where places are random,
# 0.1 to 0.2, on PACS classic and unbalanced 0.47 to 0.50, MNIST-M with random textures 0.58, less two errors 0.52.
# Colours of the object itself look like an object: coloured digits 0.41.
SURROUNDINGS = 0.55  # of the middle's share, two standard errors below what was measured
LEAST_BORDER = 0.05  # of the label's variance: below it there is little to gain
# K kinds of surroundings explain at most (K − 1)/(C − 1) of the variance of C classes, 14 % of 37 breeds in six places:
# with more classes than this, less is enough (results/natural/elsewhere.md).
KINDS = 6
# Where so many images have the same colour at the border, it is the object that reaches it and predicts the label, such
# as in drawings on white paper, where offsets cost linear heads points (results/natural/elsewhere.md): all sketches of
# PACS, four fifths of its cartoons; with its domains mixed it is less than two thirds, of pets over places a thirtieth.
BLANK = 0.75
# Of the label's entropy, by named contexts: PACS 0.01 to 0.05, unbalanced 0.01 to 0.02, where nothing is gained;
# flexible 0.29 to 0.31. Below it they keep the preset from acting; with by_contexts they decide alone.
TIED = 0.1

# --- Which features -----------------------------------------------------------------------------------------------
# Context shows in early layers; the last one mostly encodes the label. On MNIST-M at 0.9 the last layer gains a quarter
# of what shallow stages do, and which of the two stages makes no difference (ablations in results/mnist-m).
TAPS = ("stage1", "stage2")
# The third stage of a pretrained network distinguishes kinds of places, but also shows the object: so it is read where
# the surroundings are, at the border of the image, in addition to the first two. On the development beds, linear heads
# with offsets of the three gain more away from the context than with those of the first two
# (results/natural/context.md).
BORDER_TAP = "stage3:border"  # where the network names a third stage
LAST_LAYER = "last"

# --- Weights ------------------------------------------------------------------------------------------------------
# Batch by batch: the defaults of `WeightingSettings`, each with its reason there.
BATCH = WeightingSettings()
PRESETS.add(NAME, BATCH)
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
# Weights remove the same dependence: together with them, full offsets would remove it twice (results/mnist-m).
BESIDE_WEIGHTS = 0.5
# A pretrained network's features identify the object; its leading components mostly show the style. Four were chosen on
# hidden source domains: results/pacs.
PRETRAINED_COMPONENTS = 4
# A fine-tuned network absorbs part of the offsets when it fits its training images, so that unscaled ones leave part of
# what the context predicts: 1.5 gains more in the worst group on three beds of three (results/natural), and on hidden
# source domains of PACS (results/pacs).
PRETRAINED_OFFSET = 1.5

# --- Epochs -------------------------------------------------------------------------------------------------------
# In standard errors. Chosen with the published runs in view: on MNIST-M and PACS it changes no chosen epoch, 3 would
# change one (results/coloured).
CLEAR = 3.5
WEAKEN = 0.5  # what is left of the offsets after an epoch in which the network clearly predicted against the context


@dataclass(frozen=True)
class Decision:
    """act: whether weights and offsets are used.   reason: a sentence without a full stop.   evidence: the basis."""

    act: bool
    reason: str
    evidence: Evidence

    @property
    def figures(self) -> dict[str, float | str]:
        """The fields for a run's records: only what was measured."""
        found = self.evidence
        measured = {
            "border_predicts": found.border,
            "middle_predicts": found.middle,
            "border_over_middle": found.quotient,
            "border_over_middle_at_least": found.least,
            "border_by_chance": found.chance,
            "border_of_one_colour": found.blank,
            "contexts_predict": found.contexts,
        }
        kept = {name: value for name, value in measured.items() if value is not None}
        return {"acts": float(self.act), **kept, "decision": self.reason}


def decide(evidence: Evidence, by_contexts: bool = False) -> Decision:
    """Whether to act, from the training data alone.

    Named contexts (domains, sites, seasons) that do not predict the label keep it from acting. They never make it act,
    unless they are to decide alone, `by_contexts`.

    >>> decide(Evidence(border=0.62, middle=0.61, quotient=1.02, least=0.9)).act
    True
    >>> decide(Evidence(border=0.10, middle=0.20, quotient=0.5, least=0.42)).act
    False
    >>> decide(Evidence(border=0.62, middle=0.61, quotient=1.02, least=0.9, contexts=0.02)).act
    False
    """
    tied = evidence.contexts is None or evidence.contexts >= TIED
    said = "" if evidence.contexts is None else f"predict {100 * evidence.contexts:.0f} % of the label's entropy"
    if said and (by_contexts or evidence.border is None):
        return Decision(tied, f"the named contexts {said}", evidence)
    if evidence.border is None:
        return Decision(True, "nothing is known of these inputs but their labels", evidence)
    act, why = judge_surroundings(evidence)
    if act and not tied:
        act, why = False, f"but the named contexts {said}, too little to act on"
    assert evidence.middle is not None
    seen = f"predict {100 * evidence.border:.0f} % of the label, in the middle {100 * evidence.middle:.0f} %"
    return Decision(act, f"colours and textures at the border {seen}: {why}", evidence)


def judge_surroundings(evidence: Evidence) -> tuple[bool, str]:
    """Whether the surroundings predict the label, and a clause that says why. For images."""
    assert evidence.border is not None
    assert evidence.quotient is not None
    assert evidence.least is not None
    if evidence.border < least_border(evidence.classes):
        return False, "the surroundings predict too little to act on"
    if evidence.chance is not None and evidence.border < evidence.chance:
        return False, "that the surroundings predict it is not beyond chance"
    if evidence.least >= SURROUNDINGS:
        if evidence.blank is not None and evidence.blank >= BLANK:
            return False, "the surroundings are blank, so that it is the object there, too"
        return True, "it is the surroundings that predict it"
    if evidence.quotient >= SURROUNDINGS:
        return False, "that it is the surroundings is not beyond chance"
    return False, "it is the object that predicts it"


def least_border(classes: int) -> float:
    """The share of the label's variance that the border has to predict: `LEAST_BORDER` of what `KINDS` of surroundings
    explain at most.

    >>> [round(least_border(classes), 4) for classes in (2, 6, 7, 37)]
    [0.05, 0.05, 0.0417, 0.0069]
    """
    return LEAST_BORDER * min(1.0, (KINDS - 1) / max(classes - 1, 1))


@dataclass(frozen=True, kw_only=True)
class WholeSetPlan:
    """What training does with the whole set.

    strength: how far the weights go, 1 + strength·(w − 1); 0 leaves them even, and nothing is solved for them.
    ramp: share of the epochs over which they grow from ones to that.
    offset: the factor by which offsets are added to the logits; 0 turns them off.
    components: the number of leading components of all taps that offsets are solved from; 0 takes the first tap as it
        is.
    penalty: of the weights; None keeps that of the preset.
    """

    strength: Share = 1.0
    ramp: Share = RAMP
    offset: NonNegative = 0.0
    components: Whole = 0
    penalty: NonNegative | None = None

    def __post_init__(self) -> None:
        check_fields(self)

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
    """The plan of the preset; any argument given replaces its own choice.

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


def choose_taps(known: Container[str], pretrained: bool = False) -> tuple[str, ...]:
    """The taps of the preset, for a network that names these stages."""
    if not all(stage in known for stage in TAPS):
        raise UserError(
            f"the preset {NAME!r} reads stages, and this backbone does not name its first two: set "
            "method.parameters.taps to modules of it, or to ['last']"
        )
    deep = pretrained and BORDER_TAP.partition(":")[0] in known
    return (*TAPS, BORDER_TAP) if deep else TAPS


def context_use(plain: float, weighted: float, effective: float) -> float:
    """How clearly a network predicts with the context (above 0) or against it (below 0), in standard errors.

        (a − a_w) / √(ā(1 − ā)/n_w)

    a, a_w: `plain` and `weighted`, accuracy on held-out source samples, 0 to 1, with equal weights and under weights
        that make context and label independent; ā their mean. A network that does not use the context has the same
        accuracy with both, if rare pairs of class and context are as hard as common ones.
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


def penalize(plain: float, weighted: float, use: float) -> float:
    """What is subtracted from the accuracy by which an epoch is ranked: how far the two differ, where that is clear.

    So an epoch that does without the context comes first, unless it is far worse.   use: see `context_use`.
    """
    return abs(plain - weighted) if is_clear(use) else 0.0


# --- Versions -----------------------------------------------------------------------------------------------------
# A version is raised when a default or a rule of the preset changes what a training computes; it enters the hash of
# every run of the preset. What an earlier version left to itself is stated here in today's parameters: under them such
# a run is compared, planned and continued.
FIRST = "1"  # release 0.1; its runs do not state a version
CURRENT = "2"
CHANGES = {
    FIRST: "release 0.1: it always acts; a pretrained network gets the offsets of its first two stages, as they are",
    CURRENT: "it decides from the training data whether to act; offsets of a pretrained network as in `recommended.py`",
}


def restate(parameters: Mapping[str, Any], version: str, pretrained: bool) -> dict[str, Any]:
    """`method.parameters` of a whole-set run of `recommended` of a version, with the defaults of that version.

    >>> restate({"components": 8}, FIRST, pretrained=True)
    {'act': 'always', 'components': 8, 'taps': ['stage1', 'stage2'], 'offset': 1.0}
    """
    stated = dict(parameters)
    if version == FIRST:
        taps = {"taps": list(TAPS)} if pretrained and parameters.get("taps") is None else {}
        stated = {"act": "always", **stated, **taps}
        shallow = (parameters.get("taps") or TAPS)[0] != LAST_LAYER
        if pretrained and shallow and parameters.get("offset") is None:
            stated["offset"] = 1.0 - BESIDE_WEIGHTS * (parameters.get("strength") or 0.0)
    return stated
