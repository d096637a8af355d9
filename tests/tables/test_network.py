from __future__ import annotations

import numpy as np
import pytest

from stablenet.tables.network import network_features, small_network


@pytest.mark.parametrize("classification", [False, True])
def test_features_are_standardised_hidden_units_that_know_the_target(classification):
    generator = np.random.default_rng(0)
    design, base = generator.normal(size=(300, 4)), generator.uniform(0.5, 2, 300)
    product = design[:, 0] * design[:, 1]
    y = (product > 0) if classification else product
    features, encoding = network_features(design, y, base, classification=classification, width=8, seed=0)
    assert features.shape == (300, 8)
    assert [block.width for block in encoding.blocks] == [1] * 8
    np.testing.assert_allclose(np.average(features, axis=0, weights=base), 0, atol=1e-9)
    np.testing.assert_allclose(np.average(features**2, axis=0, weights=base), 1)
    again, _ = network_features(design, y, base, classification=classification, width=8, seed=0)
    np.testing.assert_array_equal(again, features)


def test_few_rows_are_not_split_for_early_stopping():
    assert not small_network(False, 50, 0).early_stopping
    assert small_network(False, 200, 0).early_stopping
