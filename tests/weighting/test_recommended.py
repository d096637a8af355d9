"""The rules of `recommended`: whether to act, the plan for a network, the taps, and the use of the context."""

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import context_use, effective_sample_size, solve_dataset
from stablenet.weighting.evidence import Evidence
from stablenet.weighting.recommended import (
    BLANK,
    CLEAR,
    KINDS,
    LEAST_BORDER,
    SURROUNDINGS,
    TIED,
    choose_taps,
    decide,
    recommend,
)


@pytest.mark.parametrize(
    ("plain", "weighted", "effective", "expected"),
    [
        (0.6, 0.4, 100, 4.0),  # a standard error is 0.05
        (0.4, 0.6, 100, -4.0),
        (0.6, 0.4, 25, 2.0),
        (0.7, 0.7, 100, 0.0),
        (1.0, 1.0, 50, 0.0),  # no variance, and nothing to tell
        (1.0, 0.0, 1, 1.0),  # one sample tells nothing
    ],
)
def test_use_of_the_context_in_standard_errors(plain, weighted, effective, expected):
    assert context_use(plain, weighted, effective) == pytest.approx(expected)


@pytest.mark.parametrize(("by", "low", "high"), [("colour", CLEAR, 99), ("other", -99, -CLEAR), ("object", -2, 2)])
def test_held_out_samples_tell_what_a_network_goes_by(by, low, high):
    """The colour agrees with the label nine times in ten, the object three times in four."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 2, (600,), generator=generator)
    colour, shape = (label ^ (torch.rand(600, generator=generator) < wrong).long() for wrong in (0.1, 0.25))
    seen = torch.nn.functional.one_hot(colour, 2) + 0.1 * torch.randn(600, 2, generator=generator)
    weights = solve_dataset(seen, label).weights
    right = ({"colour": colour, "other": 1 - colour, "object": shape}[by] == label).float()
    plain, weighted = right.mean(), (weights * right).sum() / weights.sum()
    assert low < context_use(float(plain), float(weighted), float(effective_sample_size(weights))) < high


@pytest.mark.parametrize(
    ("evidence", "act", "reason"),
    [
        (Evidence(contexts=TIED), True, "the named contexts predict 10 % of the label's entropy"),
        (Evidence(contexts=0.09), False, "the named contexts predict 9 %"),
        (Evidence(0.0, 0.9, 0.0, 0.0, contexts=0.5), False, "too little to act on"),  # what is named does not decide
        (Evidence(0.6, 1.0, 0.6, SURROUNDINGS, contexts=TIED), True, "it is the surroundings"),
        (Evidence(0.6, 1.0, 0.6, SURROUNDINGS, contexts=0.09), False, "but the named contexts predict 9 %"),
        (Evidence(), True, "nothing is known of these inputs but their labels"),
        (Evidence(0.6, 1.0, 0.6, SURROUNDINGS), True, "it is the surroundings"),
        (Evidence(0.6, 1.0, 0.6, SURROUNDINGS - 1e-3), False, "not beyond chance"),
        (Evidence(0.5, 1.0, SURROUNDINGS - 1e-3, 0.5), False, "it is the object"),
        (Evidence(LEAST_BORDER, LEAST_BORDER, 1.0, 0.9), True, "it is the surroundings"),
        (Evidence(LEAST_BORDER - 1e-3, LEAST_BORDER, 1.0, 0.9), False, "too little to act on"),
        (Evidence(LEAST_BORDER - 1e-3, LEAST_BORDER, 1.0, 0.9, classes=KINDS), False, "too little to act on"),
        (Evidence(0.037, 0.046, 0.81, 0.68, classes=37), True, "it is the surroundings"),  # of what six places could
        (Evidence(0.006, 0.006, 1.0, 0.9, classes=37), False, "too little to act on"),
        (Evidence(0.037, 0.046, 0.81, 0.68, chance=0.04, classes=37), False, "not beyond chance"),
        (Evidence(0.23, 0.28, 0.83, 0.76, blank=BLANK), False, "the surroundings are blank"),
        (Evidence(0.23, 0.28, 0.83, 0.76, blank=BLANK - 1e-3), True, "it is the surroundings"),
    ],
)
def test_whether_to_act_by_what_predicts_the_label(evidence, act, reason):
    decision = decide(evidence)
    assert decision.act is act
    assert reason in decision.reason
    known = {
        "border_predicts": evidence.border,
        "middle_predicts": evidence.middle,
        "border_over_middle": evidence.quotient,
        "border_over_middle_at_least": evidence.least,
        "contexts_predict": evidence.contexts,
        "border_by_chance": evidence.chance,
        "border_of_one_colour": evidence.blank,
    }
    measured = {name: value for name, value in known.items() if value is not None}
    assert decision.figures == {"acts": float(act), **measured, "decision": decision.reason}


@pytest.mark.parametrize(
    ("given", "strength", "offset", "components", "penalty"),
    [
        ({"pretrained": False}, 1.0, 0.5, 0, None),  # half the offsets beside whole weights
        ({"pretrained": False, "strength": 0.0}, 0.0, 1.0, 0, None),
        ({"pretrained": False, "strength": 0.5}, 0.5, 0.75, 0, None),
        ({"pretrained": False, "first_tap": "last"}, 1.0, 0.0, 0, None),
        ({"pretrained": False, "offset": 0.2}, 1.0, 0.2, 0, None),
        ({"pretrained": True}, 0.0, 1.5, 4, 0.04),
        ({"pretrained": True, "components": 0}, 0.0, 1.0, 0, 0.04),
        ({"pretrained": True, "offset": 0.0}, 1.0, 0.0, 4, 0.04),  # weights take the place of offsets
        ({"pretrained": True, "first_tap": "last"}, 1.0, 0.0, 4, 0.04),
    ],
)
def test_the_plan_for_a_network(given, strength, offset, components, penalty):
    plan = recommend(**given)
    assert (plan.strength, plan.offset, plan.components, plan.penalty) == (strength, offset, components, penalty)
    assert plan.overrides == ({} if penalty is None else {"penalty": penalty})


def test_weights_grow_from_ones_over_a_sixth_of_the_epochs():
    with pytest.raises(UserError, match="offset must be 0 or more, got -1"):
        recommend(pretrained=False, offset=-1.0)
    plan = recommend(pretrained=False)
    assert [plan.strength_in(epoch, 30) for epoch in (0, 1, 4, 5, 29)] == pytest.approx([0, 0.2, 0.8, 1, 1])
    assert recommend(pretrained=False, ramp=0.0, strength=0.7).strength_in(0, 30) == 0.7


def test_taps_are_early_stages_or_a_sentence():
    assert choose_taps({"stage1": 0, "stage2": 0, "stage3": 0}) == ("stage1", "stage2")
    assert choose_taps({"stage1": 0, "stage2": 0, "stage3": 0}, pretrained=True) == (
        *("stage1", "stage2", "stage3:border"),
    )
    assert choose_taps({"stage1": 0, "stage2": 0}, pretrained=True) == ("stage1", "stage2")
    with pytest.raises(UserError, match=r"reads stages, and this backbone does not name its first two"):
        choose_taps({"stage1": 0}, pretrained=True)
