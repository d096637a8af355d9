from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from stablenet.diagnose.telling import measure_telling, one_hot, principal_axes
from stablenet.weighting import label_dependence, standardize


def draw(n=300, tied=1.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    features = torch.randn(n, 6, generator=g, dtype=torch.float64)
    features[:, 0] += tied * (y == 0)
    return features, y


def test_raw_shares_are_those_of_a_linear_regression():
    features, y = draw()
    told = measure_telling(features, one_hot(y))
    expected = [LinearRegression().fit(features, y == k).score(features, y == k) for k in range(3)]
    np.testing.assert_allclose(told.raw, expected, rtol=1e-6)
    assert told.permuted == pytest.approx(6 / 299)


def test_independent_features_tell_nothing_and_tied_ones_do():
    nothing = measure_telling(*map_labels(draw(tied=0.0)))
    assert nothing.share < 0.02
    assert nothing.p_value > 0.05
    assert min(nothing.class_p) > 0.05
    something = measure_telling(*map_labels(draw(tied=3.0)))
    assert something.classes[0] > 0.5
    assert something.class_p[0] == 1 / 200
    assert something.p_value == 1 / 200


def test_p_values_account_for_the_number_of_classes():
    """With twenty classes of noise, the least p-value must be no rarer than it says: here, over many draws."""
    low = 0
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        y = torch.arange(100) % 20
        told = measure_telling(torch.randn(100, 3, generator=g, dtype=torch.float64), one_hot(y), seed)
        low += min(told.class_p) <= 0.1
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


def test_constant_features_tell_nothing():
    told = measure_telling(torch.ones(60, 4), one_hot(torch.arange(60) % 2))
    assert told.share == 0


def map_labels(drawn):
    features, y = drawn
    return features, one_hot(y)
