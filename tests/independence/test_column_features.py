"""The columns of a test: bandwidth, principal axes, chunks, constant columns, and a sentence for every mistake."""

import numpy as np
import pytest
import torch

from stablenet.errors import UserError
from stablenet.independence import column_features as features_module
from stablenet.independence import independence_test, pairwise_independence_test, testing
from stablenet.independence.column_features import squared_norms
from stablenet.weighting.fourier import median_distance
from tests.independence.draws import ASYMPTOTIC, normal


def test_median_distance_leaves_equal_values_out() -> None:
    few = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 3.0]).double()
    expected = [np.median([1, 3, 1, 3, 1, 3, 1, 3, 2]), 1.0]
    assert median_distance(torch.stack([few, torch.zeros(6).double()], 1)).tolist() == expected
    many = normal(3000, 1, seed=24)
    exact = torch.pdist(many).median().item()
    assert median_distance(many).item() == pytest.approx(exact, rel=0.02)


def test_small_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(40, 5, seed=25), normal(40, 4, seed=26).exp()
    whole = independence_test(x, y, permutations=50)
    for module in (features_module, testing):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2 * 40 * 100)
    parts = independence_test(x, y, permutations=50)
    torch.testing.assert_close(parts.statistic, whole.statistic, rtol=1e-7, atol=0)
    assert torch.equal(parts.p_value, whole.p_value)


def test_principal_axes_change_no_norm() -> None:
    for n, q in ((30, 8), (12, 40)):
        x, y = normal(n, 3, q, seed=27), normal(n, 2, q, seed=28)
        turned = squared_norms(features_module._rotate(x), features_module._rotate(y))
        torch.testing.assert_close(turned, torch.einsum("nia,njb->ijab", x, y).square().sum((2, 3)))


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
    ((X, X), {"num_functions": 0.3}, "num_functions must be a whole number, got 0.3"),
    ((X, X), {"num_functions": -1}, "num_functions must be 0 or more, got -1"),
    ((X, X), {"permutations": 0}, "permutations must be at least 1, got 0"),
    ((X, X), {"bandwidth": "mean"}, "bandwidth must be 'median' or a number \\(positive\\), got 'mean'"),
    ((X, X), {"bandwidth": 0}, "bandwidth must be 'median' or a number \\(positive\\), got 0"),
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
