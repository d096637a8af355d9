"""Constant columns, and one clear sentence for every mistake."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablenet.errors import UserError
from stablenet.independence import independence_test, pairwise_independence_test
from tests.independence.draws import ASYMPTOTIC


@pytest.mark.parametrize("method", ["permutation", "asymptotic"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e8])
def test_a_constant_column_is_independent_of_everything(constant: float, method: str) -> None:
    table = torch.stack([torch.full((30,), constant), torch.arange(30.0)], 1)
    found = independence_test(table, torch.arange(30.0), method=method)
    assert found.p_value[0, 0] == 1
    assert found.statistic[0, 0] == found.strength[0, 0] == 0
    assert found.p_value[1, 0] <= 0.001


X = torch.arange(20.0)
WITH_NAN = torch.stack([X, torch.where(X == 7, torch.nan, X)], 1)
MISTAKES = [
    ((X, X[:15]), {}, "a has 20 rows and b has 15"),
    ((X[:9], X[:9]), {}, "a has 9 rows: a test of independence needs at least 10"),
    ((X, WITH_NAN), {}, "column 1 of b holds nan in row 7"),
    ((X, X.reshape(5, 2, 2)), {}, r"b has shape \(5, 2, 2\)"),
    ((X, torch.zeros(20, 0)), {}, r"b has shape \(20, 0\)"),
    ((X, np.array(["x"] * 20)), {}, "b holds <U1 values"),
    ((X, X * 1j), {}, "b holds complex numbers"),
    ((X, X), {"method": "permutations"}, "unknown method 'permutations': did you mean 'permutation'"),
    ((X, X), {"adjustment": "bonferoni"}, "unknown adjustment 'bonferoni'"),
    ((X, X), {"num_functions": 0.3}, "num_functions is 0.3"),
    ((X, X), {"num_functions": -1}, "num_functions is -1"),
    ((X, X), {"permutations": 0}, "permutations is 0"),
    ((X, X), {"bandwidth": "mean"}, "bandwidth is 'mean'"),
    ((X, X), {"bandwidth": 0}, "bandwidth is 0"),
    ((X, X), {"weights": X[:5]}, r"weights has shape \(5,\)"),
    ((X, X), {"weights": X - 1}, "weights must be finite, non-negative"),
    ((X, X), {"weights": X}, "rows of unequal weight cannot be permuted"),
    ((X, X), {"weights": X == 3, **ASYMPTOTIC}, "effective sample size of 1.0"),
]


@pytest.mark.parametrize(("data", "options", "message"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_clear_sentence(data: tuple, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        independence_test(*data, **options)
    assert "\n" not in str(caught.value)


def test_one_column_has_no_pairs() -> None:
    with pytest.raises(UserError, match="single column"):
        pairwise_independence_test(X)
