from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats.contingency import association

from stablenet.diagnose.context import cramer_v, find_minority, permute, study_context
from stablenet.diagnose.telling import one_hot


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
