"""From tables to numbers: categories, shares, constant and missing values; which columns are one group."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator

from stablenet import UserError
from stablenet.tabular.encode import encode, group_blocks, learn_encoding
from stablenet.tabular.reading import read_table


def read_and_encode(frame, categorical="auto", share=None):
    owner = BaseEstimator()
    table = read_table(owner, frame, categorical)
    share = np.full(len(frame), 1 / len(frame)) if share is None else share
    encoding = learn_encoding(owner, table, categorical, share)
    return owner, encoding, encode(owner, table, encoding)


def test_a_category_becomes_one_block_of_one_hot_columns():
    frame = pd.DataFrame({"x": [0.0, 2.0, 4.0], "town": ["u", "v", "u"], "flag": [True, False, True]})
    _, encoding, design = read_and_encode(frame)
    assert [(block.name, block.width) for block in encoding.blocks] == [("x", 1), ("town", 2), ("flag", 2)]
    assert encoding.column_names == ["x", "town=u", "town=v", "flag=False", "flag=True"]
    spread = np.sqrt(8 / 3)
    np.testing.assert_allclose(design[:, 0], np.array([-2, 0, 2]) / spread)
    np.testing.assert_array_equal(design[:, 1:], [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1]])


def test_shares_weigh_mean_and_spread():
    x = np.array([[1.0], [5.0]])
    _, encoding, _ = read_and_encode(x, share=np.array([0.75, 0.25]))
    repeated = np.repeat(x, [3, 1], 0)
    assert encoding.mean[0] == pytest.approx(repeated.mean())
    assert encoding.scale[0] == pytest.approx(repeated.std())


def test_constant_columns_become_zero_and_unseen_categories_too():
    frame = pd.DataFrame({"x": [7.0, 7.0], "town": ["u", "v"]})
    owner, encoding, design = read_and_encode(frame)
    assert (design[:, 0] == 0).all()
    new = pd.DataFrame({"x": [9.0], "town": ["w"]})
    np.testing.assert_array_equal(encode(owner, new, encoding), [[0, 0, 0]])


def test_numeric_columns_can_be_named_as_categories():
    _, encoding, design = read_and_encode(np.array([[1.0, 3.0], [2.0, 4.0], [3.0, 3.0]]), categorical=[1])
    assert encoding.blocks[1].categories == (3.0, 4.0)
    assert design.shape == (3, 3)


def test_a_missing_number_lies_at_the_mean_and_is_marked():
    share = np.array([0.5, 0.25, 0.25])
    frame = pd.DataFrame({"x": [np.nan, 1.0, 5.0], "town": ["u", "v", "u"]})
    owner, encoding, design = read_and_encode(frame, share=share)
    assert encoding.column_names == ["x", "x missing", "town=u", "town=v"]
    np.testing.assert_allclose(design[:, :2], [[0, 1], [-1, 0], [1, 0]])
    np.testing.assert_array_equal(encode(owner, pd.DataFrame({"x": [3.0], "town": [None]}), encoding), [[0, 0, 0, 0]])


def test_gaps_in_an_array_are_those_of_a_frame():
    values = np.array([[np.nan, 1.0], [2.0, 3.0], [4.0, 8.0]])
    design = read_and_encode(values)[2]
    np.testing.assert_array_equal(design, read_and_encode(pd.DataFrame(values))[2])
    assert design.shape == (3, 3)


def test_a_missing_category_is_a_category():
    _, encoding, design = read_and_encode(pd.DataFrame({"x": [1.0, 2.0, 3.0], "town": ["u", None, "v"]}))
    assert encoding.column_names == ["x", "town=u", "town=v", "town missing"]
    np.testing.assert_array_equal(design[:, 1:], [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


def test_new_gaps_in_numbers_that_had_none_say_nothing():
    owner, encoding, _ = read_and_encode(np.array([[1.0, 2.0], [3.0, 5.0]]))
    np.testing.assert_array_equal(encode(owner, np.array([[np.nan, 3.5]]), encoding), [[0, 0]])


def test_categories_of_another_kind_than_in_training_are_refused():
    owner, encoding, _ = read_and_encode(pd.DataFrame({"x": [1.0, 2.0], "month": ["1", "2"]}), categorical=["month"])
    with pytest.raises(UserError, match="'month' holds 1, in training it held '1'"):
        encode(owner, pd.DataFrame({"x": [1.0], "month": [1]}), encoding)


@pytest.mark.parametrize(
    ("categorical", "message"), [("none", "must be 'auto' or a list"), (["tonw"], "did you mean 'town'")]
)
def test_bad_choices_are_told(categorical, message):
    with pytest.raises(UserError, match=message):
        read_and_encode(pd.DataFrame({"x": [1.0, 2.0], "town": ["u", "v"]}), categorical=categorical)


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
