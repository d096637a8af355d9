from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

from stablenet import UserError
from stablenet.tables.encode import encode, learn_encoding, read_table


def read_and_encode(frame, categorical="auto", share=None):
    owner = BaseEstimator()
    table = read_table(owner, frame, categorical, reset=True)
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


def test_missing_categories_name_their_column_and_the_remedy():
    with pytest.raises(UserError, match=r"'town' holds 1 missing values.*SimpleImputer"):
        read_and_encode(pd.DataFrame({"x": [1.0, 2.0], "town": ["u", None]}))


def test_missing_numbers_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        read_and_encode(pd.DataFrame({"x": [1.0, np.nan], "town": ["u", "v"]}))


@pytest.mark.parametrize(
    ("categorical", "message"), [("none", "expected 'auto' or a list"), (["tonw"], "did you mean 'town'")]
)
def test_bad_choices_are_told(categorical, message):
    with pytest.raises(UserError, match=message):
        read_and_encode(pd.DataFrame({"x": [1.0, 2.0], "town": ["u", "v"]}), categorical=categorical)
