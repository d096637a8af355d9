from __future__ import annotations

import numpy as np
import torch

from stablenet.tables.overlap import group_blocks


def groups_of(columns: np.ndarray, owner: list[int], limit: float = 0.95) -> list[int]:
    sigma = torch.from_numpy(np.cov(columns.T, bias=True))
    return group_blocks(sigma, torch.tensor(owner), len(columns), limit).tolist()


def test_near_copies_and_their_chain_are_one_group():
    generator = np.random.default_rng(0)
    a = generator.normal(size=500)
    b = a + 0.1 * generator.normal(size=500)
    c = b + 0.1 * generator.normal(size=500)
    d = generator.normal(size=500)
    assert groups_of(np.column_stack([a, d, b, c]), [0, 1, 2, 3]) == [0, 1, 0, 0]


def test_the_largest_canonical_correlation_decides():
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(400, 2)), generator.normal(size=(400, 2))
    y[:, 1] = x.sum(1) + 0.1 * generator.normal(size=400)  # no single pair of columns correlates above 0.75
    columns = np.column_stack([x, y])
    assert abs(np.corrcoef(columns.T)[:2, 2:]).max() < 0.75
    assert groups_of(columns, [0, 0, 1, 1]) == [0, 0]


def test_moderate_dependence_and_constant_columns_stay_apart():
    generator = np.random.default_rng(2)
    a = generator.normal(size=500)
    columns = np.column_stack([a, a + 0.5 * generator.normal(size=500), np.zeros(500)])
    assert groups_of(columns, [0, 1, 2]) == [0, 1, 2]


def test_few_rows_join_nothing_by_chance():
    columns = np.random.default_rng(3).normal(size=(14, 12))
    assert groups_of(columns, [0] * 6 + [1] * 6) == [0, 1]
