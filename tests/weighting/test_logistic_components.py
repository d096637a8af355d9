"""Leading components and their products, against another library."""

import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from stablenet.weighting.logistic import leading_components


def mixed(n=200, m=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, m, generator=g, dtype=torch.float64) @ torch.randn(m, m, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_components_and_products_are_those_of_another_library(count):
    z = mixed()
    whitened = PCA(count).fit_transform(StandardScaler().fit_transform(z))
    whitened = StandardScaler().fit_transform(whitened)
    expected = StandardScaler().fit_transform(PolynomialFeatures(2, include_bias=False).fit_transform(whitened))
    found, expected = leading_components(z, count), torch.tensor(expected)
    sign = (found[:, :count] * expected[:, :count]).mean(0).sign()  # a component is known but for its sign
    pairs = torch.triu_indices(count, count)
    signs = torch.cat([sign, sign[pairs[0]] * sign[pairs[1]]])
    torch.testing.assert_close(found * signs, expected, atol=1e-8, rtol=0)


def test_more_features_than_samples_are_no_other_case():
    wide = torch.cat([mixed(n=20, m=8), mixed(n=20, m=30, seed=1)], 1)
    centred = (wide - wide.mean(0)) / wide.std(0, correction=0)
    scores = centred @ torch.linalg.svd(centred).Vh[:3].T
    found = leading_components(wide, 3)[:, :3]
    alike = (found * scores / scores.std(0, correction=0)).mean(0).abs()
    torch.testing.assert_close(alike, torch.ones(3, dtype=torch.float64))


def test_what_does_not_vary_is_left_out():
    z = mixed(m=3).float()
    wide = torch.cat([z, z @ torch.randn(3, 4), torch.ones(200, 1)], 1)
    found = leading_components(wide, 6)
    assert found.shape == (200, 6 + 21)
    assert torch.equal(found[:, 3:6], torch.zeros(200, 3))
    assert found.isfinite().all()
    assert torch.equal(leading_components(torch.ones(5, 2), 4), torch.zeros(5, 2 + 3))
