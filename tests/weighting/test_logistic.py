"""Cross-fitted logistic regression: against another solver, and blind to the label that it predicts."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from stablenet.weighting.chunks import Rows
from stablenet.weighting.logistic import (
    FOLDS,
    RIDGES,
    Regressors,
    cross_fit,
    deal_folds,
    fit_logistic,
    whole_regressors,
)


def predicted_by_features(n=400, seed=0, dtype=torch.float64):
    """Features, and labels that they predict with some noise."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 6, generator=g, dtype=dtype)
    scores = 2 * z @ torch.randn(6, 3, generator=g, dtype=dtype) + torch.randn(n, 3, generator=g, dtype=dtype)
    return z, scores.argmax(1)


def test_the_regression_is_that_of_another_solver():
    z, y = predicted_by_features()
    shares = torch.zeros(2, 400, dtype=torch.float64)
    shares[0], shares[1, :250] = 1 / 400, 1 / 250
    slopes, levels = torch.zeros(2, 6, 3, dtype=torch.float64), torch.zeros(2, 1, 3, dtype=torch.float64)
    fit_logistic(whole_regressors(z), y, shares, 0.01, slopes, levels)
    for k, n in enumerate((400, 250)):
        other = LogisticRegression(C=1 / (2 * 0.01 * n), tol=1e-10, max_iter=5000).fit(z[:n], y[:n])
        expected = torch.tensor(other.predict_proba(z))
        torch.testing.assert_close(torch.softmax(z @ slopes[k] + levels[k], 1), expected, atol=1e-4, rtol=0)


def test_no_label_takes_part_in_its_own_prediction(monkeypatch):
    monkeypatch.setattr("stablenet.weighting.logistic.RIDGES", (0.01,))
    z, y = predicted_by_features()
    fold = deal_folds(y, seed=0)
    changed = torch.where(fold == 2, (y + 1) % 3, y)
    before, after = (cross_fit(whole_regressors(z), labels, 3, fold).predict(z, fold) for labels in (y, changed))
    torch.testing.assert_close(before[fold == 2], after[fold == 2], atol=1e-3, rtol=0)
    assert not torch.allclose(before[fold != 2], after[fold != 2], atol=0.1)


def test_folds_spread_every_class():
    y = torch.tensor([0] * 50 + [1] * 10 + [2] * 5)
    fold = deal_folds(y, seed=1)
    for label in range(3):
        counts = torch.bincount(fold[y == label], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    assert torch.equal(fold, deal_folds(y, seed=1))
    assert not torch.equal(fold, deal_folds(y, seed=2))


def test_the_ridge_is_the_one_that_predicts_held_out_labels_best():
    """Against every ridge by itself; the search ends at the first that is worse than the one before."""
    z, y = predicted_by_features(n=120)
    fold = deal_folds(y, seed=2)
    losses = []
    for ridge in RIDGES:
        held_out = torch.empty(120, 3, dtype=torch.float64)
        for k in range(FOLDS):
            shown = fold != k
            model = LogisticRegression(C=1 / (2 * ridge * int(shown.sum())), tol=1e-10, max_iter=5000)
            held_out[~shown] = torch.tensor(model.fit(z[shown], y[shown]).predict_log_proba(z[~shown]))
        losses.append(float(functional.nll_loss(held_out, y)))
    found = cross_fit(whole_regressors(z), y, 3, fold)
    best = next(k for k in range(len(losses)) if k + 1 == len(losses) or losses[k + 1] >= losses[k])
    assert found.ridge == RIDGES[best]
    assert found.loss == pytest.approx(losses[best], abs=1e-3)


def test_blocks_of_any_size_give_one_regression():
    z, y = predicted_by_features()
    fold = deal_folds(y, seed=0)
    whole, parts = (cross_fit(Regressors(Rows(z), size, 1.0), y, 3, fold) for size in (400, 37))
    assert whole.ridge == parts.ridge
    torch.testing.assert_close(whole.predict(z, fold), parts.predict(z, fold), atol=1e-4, rtol=0)
