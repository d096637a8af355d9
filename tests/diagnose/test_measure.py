"""Shares that a regression explains, association of a context, and weights as training solves them."""

import numpy as np
import pytest
import torch
from scipy.stats.contingency import association
from sklearn.linear_model import LinearRegression

from stablenet.diagnose.measure import (
    cramer_v,
    find_minority,
    measure_explained,
    one_hot,
    permute,
    principal_axes,
    study_context,
    weigh_labels,
)
from stablenet.metrics import effective_share
from stablenet.weighting import DatasetWeighting, label_dependence, recommend, solve_dataset, standardize


def draw(n=300, tied=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    features = torch.randn(n, 6, generator=g, dtype=torch.float64)
    features[:, 0] += tied * (y == 0)
    return features, y


def test_raw_shares_are_those_of_a_linear_regression():
    features, y = draw()
    found = measure_explained(features, one_hot(y))
    expected = [LinearRegression().fit(features, y == k).score(features, y == k) for k in range(3)]
    np.testing.assert_allclose(found.raw, expected, rtol=1e-6)
    assert found.permuted == pytest.approx(6 / 299)


def test_independent_features_predict_nothing_and_tied_ones_do():
    nothing = measure_explained(*map_labels(draw(tied=0.0)))
    assert nothing.share < 0.02
    assert nothing.p_value > 0.05
    assert min(nothing.class_p) > 0.05
    something = measure_explained(*map_labels(draw(tied=3.0)))
    assert something.classes[0] > 0.5
    assert something.class_p[0] == 1 / 200
    assert something.p_value == 1 / 200


def test_p_values_account_for_the_number_of_classes():
    """With twenty classes of noise, the least p-value must be no rarer than it says: here, over many draws."""
    low = 0
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        y = torch.arange(100) % 20
        found = measure_explained(torch.randn(100, 3, generator=g, dtype=torch.float64), one_hot(y), seed)
        low += min(found.class_p) <= 0.1
    assert low <= 10  # 4 expected; unadjusted p-values give about 35


def test_principal_axes_keep_the_dependence_on_the_label():
    features, y = draw()
    features = torch.cat([features, features[:, :2] + 1e-3 * features[:, 2:4]], 1)
    axes = principal_axes(features)
    direct = label_dependence(standardize(features).unsqueeze(-1), y)
    turned = label_dependence(axes.unsqueeze(-1), y)
    torch.testing.assert_close(turned, direct, rtol=1e-3, atol=0)
    variances = axes.square().sum(0)
    assert (variances.diff() <= 0).all()


def test_constant_features_predict_nothing():
    found = measure_explained(torch.ones(60, 4), one_hot(torch.arange(60) % 2))
    assert found.share == 0


def map_labels(drawn):
    features, y = drawn
    return features, one_hot(y)


def test_cramers_v_approaches_scipys_with_many_samples():
    counts = np.array([[50.0, 10, 5], [3, 40, 9]])
    assert cramer_v(counts, 1e9) == pytest.approx(association(counts.astype(int)), rel=1e-6)


def test_chance_gives_no_association():
    generator = np.random.default_rng(0)
    counts = np.histogram2d(generator.integers(0, 20, 300), generator.integers(0, 10, 300), (20, 10))[0]
    assert association(counts.astype(int)) > 0.2
    assert cramer_v(counts, 300) < 0.08


def test_a_context_without_weight_is_left_aside():
    assert cramer_v(np.array([[5.0, 0], [0, 5], [0, 0]]), 1e9) == pytest.approx(1)


def test_minority_by_hand():
    context, y = torch.tensor([0, 0, 1, 1, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 1])
    assert find_minority(one_hot(context), one_hot(y)).tolist() == [False, False, True, False, False, True]


def test_weights_are_compared_within_the_class():
    """Class 1 weighs twice as much as class 0 as a whole: that says nothing about its contexts."""
    context, y = torch.tensor([0, 0, 1, 1, 1, 0] * 20), torch.tensor([0, 0, 0, 1, 1, 1] * 20)
    weights = torch.where(y == 1, 4 / 3, 2 / 3)
    features = torch.randn(120, 2, generator=torch.Generator().manual_seed(0))
    found = study_context(("a", "b"), context, y, features, weights)
    assert found.weight_minority == pytest.approx(1)
    assert found.weight_majority == pytest.approx(1)
    np.testing.assert_allclose(found.before, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])
    balanced = weights * torch.where(context == y, 3 / 4, 3 / 2)
    evened = study_context(("a", "b"), context, y, features, balanced)
    assert evened.weight_minority == pytest.approx(1.5)
    assert evened.v_after < 1e-3 < evened.v_before
    np.testing.assert_allclose(evened.after, 0.5, rtol=1e-6)


def test_permutation_p_value_finds_ties_and_only_those():
    y = torch.arange(200) % 4
    assert permute(one_hot(y // 2), one_hot(y)) == 1 / 200
    other = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(1))
    assert permute(one_hot(other), one_hot(y)) > 0.05


def draw_tied(n=400):
    """Two classes; a feature agrees with the class in nine of ten samples."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (n,), generator=g)
    agrees = torch.rand(n, generator=g) < 0.9
    features = torch.randn(n, 3, generator=g)
    features[:, 0] += 4 * torch.where(agrees, y, 1 - y)
    return features, y, agrees


def test_stronger_weights_leave_less_and_cost_more():
    features, y, agrees = draw_tied()
    trades, weights = weigh_labels(features, y, pretrained=False)
    assert [t.strength for t in trades] == [0.25, 0.5, 0.75, 1.0]
    assert [t.left for t in trades] == sorted((t.left for t in trades), reverse=True)
    assert [t.ess for t in trades] == sorted((t.ess for t in trades), reverse=True)
    assert trades[-1].left < 0.1
    assert trades[-1].ess == pytest.approx(effective_share(weights))
    assert float(weights[~agrees].mean()) > 1.7 > 1 > float(weights[agrees].mean())
    assert float(weights.sum()) == pytest.approx(400, rel=1e-4)


@pytest.mark.parametrize("pretrained", [False, True])
def test_the_weights_are_those_of_a_training_with_the_preset(pretrained):
    """The same as `DatasetWeighting` of training, and as the public whole-set solve."""
    features, y, _ = draw_tied()
    trades, weights = weigh_labels(features, y, pretrained=pretrained, seed=3)
    plan = recommend(pretrained=pretrained, strength=1.0)
    training = DatasetWeighting(len(y), "recommended", seed=3, **plan.overrides)
    for part in torch.arange(len(y)).split(128):
        training.collect(part, {"stage1": features[part, :2], "stage2": features[part, 2:]}, y[part])
    training.solve()
    assert torch.equal(weights, training.weights)
    before, after = training.dependence.tolist()
    assert trades[-1].left == pytest.approx(after / before)
    alone = solve_dataset(features.half().float(), y, seed=3, **plan.overrides)
    torch.testing.assert_close(weights, alone.weights)
