"""How often independent pairs are rejected and dependent ones found."""

from __future__ import annotations

import pytest
import torch

from stablenet.independence import independence_test
from tests.independence.draws import ASYMPTOTIC, normal, seeded

DEPENDENCES = {
    "linear": lambda x, e: 0.6 * x + 0.8 * e,
    "square": lambda x, e: x.square() + e,
    "spread": lambda x, e: (0.3 + x.abs()) * e,
}

NULLS = {
    "normal": lambda z: z,
    "skewed": torch.exp,
    "rectified": lambda z: (z - 0.5).clamp_min(0),
    "binary": lambda z: (z > 0.4).double(),
}


@pytest.mark.parametrize("shape", NULLS)
@pytest.mark.parametrize(("n", "method"), [(12, "asymptotic"), (100, "asymptotic"), (30, "permutation")])
def test_independent_pairs_are_rejected_as_often_as_said(shape: str, n: int, method: str) -> None:
    transform = NULLS[shape]
    rejected = [
        independence_test(
            transform(normal(n, 30, seed=100 + i)),
            transform(normal(n, 30, seed=200 + i)),
            method=method,
            permutations=99,
            num_functions=20,
        ).p_value.le(0.05)
        for i in range(6)
    ]
    least = 0.02 if shape == "binary" else 0.035  # few distinct values cannot hit 5 %, only stay below
    assert least < torch.stack(rejected).double().mean().item() < 0.065


def test_independent_pairs_under_weights_are_rejected_about_as_often() -> None:
    a, b = normal(150, 40, seed=14), normal(150, 40, seed=15).exp()
    weights = torch.rand(150, generator=seeded(16)) ** 2
    found = independence_test(a, b, weights=weights, **ASYMPTOTIC)
    assert found.effective_size == pytest.approx(weights.sum().item() ** 2 / weights.square().sum().item(), rel=1e-5)
    assert 0.02 < found.p_value.le(0.05).double().mean().item() < 0.08


@pytest.mark.parametrize("method", ["permutation", "asymptotic"])
@pytest.mark.parametrize("kind", DEPENDENCES)
def test_dependent_pairs_are_found(kind: str, method: str) -> None:
    x = normal(100, 25, seed=17)
    y = DEPENDENCES[kind](x, normal(100, 25, seed=18))
    found = independence_test(x, y, method=method, permutations=199)
    assert found.p_value.diagonal().le(0.05).double().mean().item() > 0.85
    assert found.strength.diagonal().mean() > 3 * found.strength.mean()


def test_the_default_number_of_functions_beats_the_papers_five() -> None:
    x = normal(60, 60, seed=19)
    y = x.square() + 1.5 * normal(60, 60, seed=20)
    few, many = (independence_test(x, y, num_functions=q, **ASYMPTOTIC).p_value.diagonal() for q in (5, 100))
    assert many.le(0.05).sum() > few.le(0.05).sum() + 5
