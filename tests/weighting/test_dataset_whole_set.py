"""The whole set: what enters the loss of every sample, by separate solves; plans that need less; states."""

import copy

import pytest
import torch
from torch.nn import functional

from stablenet.weighting import WholeSet, solve_dataset, solve_offsets
from stablenet.weighting.evidence import Evidence
from stablenet.weighting.recommended import Decision, WholeSetPlan

N, CLASSES = 120, 3
BOTH = WholeSetPlan(strength=0.8, ramp=0.5, offset=0.6)
PLAIN = Decision(False, "the border predicts nothing", Evidence(border=0.0, middle=0.5, quotient=0.0, least=0.0))


def make_features(seed=0):
    """Two taps that follow the label, (N, 4) and (N, 6)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (N,), generator=generator)
    shown = functional.one_hot(labels, CLASSES).float() @ torch.randn(CLASSES, 10, generator=generator)
    noisy = (shown + torch.randn(N, 10, generator=generator)).half().float()  # as they are stored
    return {"stage1": noisy[:, :4], "stage2": noisy[:, 4:]}, labels


def make_set(plan, **options):
    return WholeSet(plan, N, CLASSES, preset="recommended", fold_seed=3, overrides={"seed": 5, **options})


def fill(whole, features, labels, size=50):
    for index in torch.arange(N).split(size):
        whole.collect(index, {tap: z[index] for tap, z in features.items()}, labels[index])
    return whole.solve()


def test_weights_and_offsets_are_those_of_separate_solves():
    """Weights from all taps, offsets from the first; the weights as strong as the plan says."""
    features, labels = make_features()
    whole = make_set(BOTH)
    found = fill(whole, features, labels)
    whole.set_epoch(5, 10)  # after the ramp
    index = torch.tensor([7, 0, 119])
    weights, offsets = whole(index)
    solved = solve_dataset(features, labels, preset="recommended", seed=5).weights
    torch.testing.assert_close(weights, (1 + 0.8 * (solved - 1))[index], atol=1e-4, rtol=0)
    regressed = solve_offsets(features["stage1"], labels, seed=3)
    torch.testing.assert_close(offsets, 0.6 * regressed.values[index], atol=1e-4, rtol=0)
    assert found["context_explains"] == pytest.approx(regressed.explained, abs=1e-5)
    used = 1 + 0.8 * (solved - 1)
    assert found["ess_ratio"] == pytest.approx(float(used.sum() ** 2 / used.square().sum()) / N, abs=1e-4)
    assert found["largest_weight"] == pytest.approx(float(used.max()), abs=1e-3)


def test_weights_grow_over_the_ramp():
    whole = make_set(BOTH)
    fill(whole, *make_features())
    strengths = []
    for epoch in range(7):
        whole.set_epoch(epoch, 10)
        strengths.append(float(whole.weighting.strength))
    assert strengths == pytest.approx([0.0, 0.16, 0.32, 0.48, 0.64, 0.8, 0.8])
    whole.set_epoch(0, 10)
    assert torch.equal(whole(torch.arange(N))[0], torch.ones(N))


@pytest.mark.parametrize(
    ("plan", "weighs", "offsets"),
    [
        (WholeSetPlan(strength=0.0, offset=1.5, components=2), False, True),
        (WholeSetPlan(strength=1.0, offset=0.0), True, False),
        (WholeSetPlan(strength=0.0, offset=0.0), False, False),
    ],
)
def test_what_a_plan_does_without_is_not_solved(plan, weighs, offsets):
    whole = make_set(plan)
    found = fill(whole, *make_features())
    assert [given is not None for given in whole(torch.arange(4))] == [weighs, offsets]
    assert (found["ess_ratio"] == 1.0) != weighs
    assert ("context_explains" in found) == offsets
    columns = whole.describe_samples()
    assert set(columns) == ({"weight", "offset", "context"} if offsets else {"weight"})
    assert torch.equal(columns["weight"], torch.ones(N)) != weighs


def test_where_it_is_not_to_act_there_are_no_weights_and_nothing_is_solved():
    whole = make_set(BOTH)
    whole.settle(PLAIN)
    found = fill(whole, *make_features())
    assert found == {"ess_ratio": 1.0, "largest_weight": 1.0}
    assert whole(torch.arange(4)) == (None, None)
    assert set(whole.diagnose_step(torch.device("cpu"))) == {"ess_ratio"}


def test_a_state_keeps_the_decision_and_the_solve():
    whole, again = make_set(BOTH), make_set(BOTH)
    fill(whole, *make_features())
    whole.settle(PLAIN)
    assert (again.act, again.solved) == (True, False)
    again.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert (again.act, again.solved) == (False, True)


def test_a_state_of_the_first_release_acts():
    whole, again = make_set(BOTH), make_set(BOTH)
    fill(whole, *make_features())
    state = {name: value for name, value in whole.state_dict().items() if name not in ("acts", "known")}
    again.load_state_dict(state)
    assert again.act
    for ours, theirs in zip(whole(torch.arange(N)), again(torch.arange(N)), strict=True):
        assert torch.equal(ours, theirs)
