"""Functions of columns and their statistic: against the definition, interactions, categories, network features."""

import math

import numpy as np
import pytest
import torch

from stablenet import UserError
from stablenet.tabular import solve as module
from stablenet.tabular.encode import ColumnBlock, Encoding
from stablenet.tabular.solve import (
    FunctionRows,
    FunctionSettings,
    apply_functions,
    draw_functions,
    network_features,
    prepare_statistic,
    small_network,
)


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


def encoding_of(widths: list[int]) -> Encoding:
    starts = np.cumsum([0, *widths])
    blocks = tuple(
        ColumnBlock(f"x{i}", int(starts[i]), None if width == 1 else tuple("abcdefg"[:width]))
        for i, width in enumerate(widths)
    )
    return Encoding(blocks, np.zeros(sum(widths)), np.ones(sum(widths)))


def one_hot(codes: np.ndarray, width: int) -> np.ndarray:
    return np.eye(width)[codes]


def test_each_column_brings_itself_and_its_functions():
    drawn = draw_functions(encoding_of([1, 3, 1]), FunctionSettings(num_functions=2, interactions=4))
    linear = drawn.phase.isnan()
    assert drawn.members.int().sum(1).tolist() == [1] * (3 + 3 + 3) + [2] * 4  # order is cut to m − 1
    assert linear.sum() == 5  # two numeric columns and three one-hot columns
    design = np.random.default_rng(0).normal(size=(6, 5))
    rows = apply_functions(design, drawn)
    for k in range(rows.shape[1]):
        angle = design @ drawn.omega[:, k].numpy()
        expected = angle if linear[k] else math.sqrt(2) * np.cos(angle + float(drawn.phase[k]))
        np.testing.assert_allclose(rows[:, k], expected, atol=1e-12)


def test_the_draw_repeats_and_does_not_depend_on_rows():
    settings = FunctionSettings(seed=5)
    first, second = (draw_functions(encoding_of([1, 1, 1, 1]), settings) for _ in range(2))
    torch.testing.assert_close(first.omega, second.omega)
    other = draw_functions(encoding_of([1, 1, 1, 1]), FunctionSettings(seed=6))
    assert not torch.equal(first.omega, other.omega)


def test_the_statistic_counts_only_functions_of_different_columns():
    design = np.random.default_rng(1).normal(size=(40, 4))
    drawn = draw_functions(encoding_of([1] * 4), FunctionSettings(num_functions=2, interactions=6))
    base = np.ones(40)
    statistic = prepare_statistic(design, encoding_of([1] * 4), drawn, base, max_correlation=1.0)
    rows = apply_functions(design, drawn).numpy()
    covariance = np.cov(rows.T, bias=True)
    total = 0.0
    for a in range(len(rows.T)):
        for b in range(a + 1, len(rows.T)):
            if not set(drawn.members[a].nonzero()[:, 0].tolist()) & set(drawn.members[b].nonzero()[:, 0].tolist()):
                total += covariance[a, b] ** 2
    value, _ = statistic.value_and_gradient(torch.ones(40, dtype=torch.float64))
    assert float(value) == pytest.approx(total)


def test_interactions_see_a_product_that_pairs_do_not():
    generator = np.random.default_rng(2)
    signs = generator.choice([-1.0, 1.0], size=(4000, 3))
    design = np.column_stack([signs, signs.prod(1)])  # any three are independent, the four are not
    encoding, base = encoding_of([1] * 4), np.ones(4000)
    ones = torch.ones(4000, dtype=torch.float64)
    shuffled = np.column_stack([signs, generator.permutation(design[:, 3])])

    def dependence(table: np.ndarray, interactions: int) -> float:
        drawn = draw_functions(encoding, FunctionSettings(interactions=interactions))
        return float(prepare_statistic(table, encoding, drawn, base, 1.0).value_and_gradient(ones)[0])

    assert dependence(design, 0) < 3 * dependence(shuffled, 0)
    assert dependence(design, 100) > 20 * dependence(shuffled, 100)


@pytest.mark.parametrize("width", [2, 5])
def test_a_category_counts_like_a_numeric_column_whatever_its_number_of_values(width):
    """The summed variance of its one-hot columns becomes 1 + q."""
    generator = np.random.default_rng(3)
    codes = generator.integers(0, width, 500)
    encoding, base = encoding_of([1, width]), generator.uniform(0.5, 2, 500)
    drawn = draw_functions(encoding, FunctionSettings(num_functions=4, interactions=0))
    design = np.column_stack([generator.normal(size=500), one_hot(codes, width)])
    [(_, rows)] = prepare_statistic(design, encoding, drawn, base, 1.0).rows.parts()
    rows = rows[:, drawn.members[:, 1]].numpy()
    variance = np.average(rows**2, axis=0, weights=base) - np.average(rows, axis=0, weights=base) ** 2
    assert variance.sum() == pytest.approx(5)


def test_constant_columns_have_no_dependence():
    design = np.column_stack([np.zeros(30), np.random.default_rng(0).normal(size=(30, 2))])
    drawn = draw_functions(encoding_of([1, 1, 1]), FunctionSettings(interactions=0))
    [(_, rows)] = FunctionRows(design, drawn).parts()
    assert (rows[:, drawn.members[:, 0]] == 0).all()


@pytest.mark.parametrize("kept", [0, 2])
def test_a_table_in_parts_has_the_statistic_of_the_whole(monkeypatch, kept):
    generator = np.random.default_rng(6)
    design = np.column_stack([generator.normal(size=(500, 2)), one_hot(generator.integers(0, 3, 500), 3)])
    design[:, 1] += design[:, 0]
    encoding, base = encoding_of([1, 1, 3]), generator.uniform(0.5, 2, 500)
    drawn = draw_functions(encoding, FunctionSettings())
    w = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = prepare_statistic(design, encoding, drawn, base, 1.0).value_and_gradient(w)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(module, "KEPT_UP_TO", kept * 64 * len(drawn.phase) * 8)
    statistic = prepare_statistic(design, encoding, drawn, base, 1.0)
    parts = statistic.value_and_gradient(w)
    assert [len(rows) for _, rows in statistic.rows.parts()] == [64] * 7 + [52]
    assert len(statistic.rows._kept) == kept
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)


def test_large_tables_in_float32_agree_with_float64(monkeypatch):
    design = np.random.default_rng(4).normal(size=(300, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0.5], [0, 0, 1]])
    encoding, base = encoding_of([1] * 3), np.ones(300)
    drawn = draw_functions(encoding, FunctionSettings())
    w = torch.rand(300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = prepare_statistic(design, encoding, drawn, base, 1.0).value_and_gradient(w)
    monkeypatch.setattr(module, "FLOAT64_UP_TO", 0)
    rough = prepare_statistic(design, encoding, drawn, base, 1.0).value_and_gradient(w)
    torch.testing.assert_close(rough[0], exact[0], rtol=1e-4, atol=0)
    torch.testing.assert_close(rough[1], exact[1], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("wrong", [{"num_functions": -1}, {"interactions": 0.5}, {"order": 1}])
def test_wrong_settings_are_told(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        FunctionSettings(**wrong)
