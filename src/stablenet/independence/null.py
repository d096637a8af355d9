"""What the statistic does when the variables are independent: p-values by permutation and by formula."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.independence.features import CHUNK_ELEMENTS, ColumnFeatures, squared_norms

_TIE = 1e-9  # statistics closer than this are equal: with few distinct values permutations tie exactly


def permutation_p_values(
    statistic: Tensor, a: ColumnFeatures, b: ColumnFeatures, permutations: int, generator: torch.Generator
) -> Tensor:
    """(1 + number of permuted statistics that reach the observed one)/(1 + permutations), (p, r).

    The rows of b are permuted, the same way for every pair of columns, several permutations in one matrix
    product. Exact: under independence P(p ≤ α) ≤ α for every α and every n.
    """
    n, r, rank = b.x.shape
    reached = torch.ones_like(statistic)
    threshold = statistic.unsqueeze(1) * (1 - _TIE)
    at_once = max(1, CHUNK_ELEMENTS // (n * r * rank))
    for start in range(0, permutations, at_once):
        count = min(at_once, permutations - start)
        drawn = [torch.randperm(n, generator=generator, device=generator.device) for _ in range(count)]
        permuted = b.x[torch.stack(drawn, 1).to(b.x.device)].reshape(n, count * r, rank)
        norms = squared_norms(a.x, permuted).reshape(-1, count, r)
        reached += (norms >= threshold).sum(1)
    return reached / (permutations + 1)


def null_mean(a: ColumnFeatures, b: ColumnFeatures) -> Tensor:
    """The statistic's mean under independence, (p, r): tr(Σ_AA)·tr(Σ_BB)/(n−1), exact over permutations."""
    return torch.outer(a.trace(1), b.trace(1)) / (a.size - 1)


def limit_variance(a: ColumnFeatures, b: ColumnFeatures) -> Tensor:
    """The variance of the limiting sum of chi-squares, (p, r): 2·tr(Σ_AA²)·tr(Σ_BB²)/(n−1)²."""
    return 2 * torch.outer(a.trace(2), b.trace(2)) / (a.size - 1) ** 2


def permutation_variance(a: ColumnFeatures, b: ColumnFeatures) -> Tensor:
    """The statistic's variance over all n! permutations, exact, (p, r).

    With t₁ = tr Σ, t₂ = tr Σ², s = Σ_i ‖x_i‖⁴ of each side, α = (n−1)t₂ − t₁² and
    β = n(n+1)s − (n−1)(t₁² + 2t₂):

        2·α_A·α_B / ((n−1)²(n+1)(n−2)) + β_A·β_B / ((n+1)n(n−1)(n−2)(n−3))

    (Kazi-Aoual, Hitier, Sabatier and Lebreton, 1995). It tends to `limit_variance` as n grows.
    """
    n = a.size

    def parts(side: ColumnFeatures) -> tuple[Tensor, Tensor]:
        first, second = side.trace(1).square(), side.trace(2)
        return (
            (n - 1) * second - first,
            n * (n + 1) * side.fourth_moment() - (n - 1) * (first + 2 * second),
        )

    (alpha_a, beta_a), (alpha_b, beta_b) = parts(a), parts(b)
    return 2 * torch.outer(alpha_a, alpha_b) / ((n - 1) ** 2 * (n + 1) * (n - 2)) + torch.outer(beta_a, beta_b) / (
        (n + 1) * n * (n - 1) * (n - 2) * (n - 3)
    )


def asymptotic_p_values(statistic: Tensor, a: ColumnFeatures, b: ColumnFeatures) -> Tensor:
    """The upper tail of a shifted gamma distribution with the null's mean, variance and skewness, (p, r).

    Under independence n·I tends to Σ_jk λ_j μ_k χ²_jk with λ, μ the eigenvalues of Σ_AA and Σ_BB. Its
    skewness γ = √8·tr(Σ_AA³)tr(Σ_BB³)/(tr(Σ_AA²)tr(Σ_BB²))^{3/2} is that of a gamma variable of shape
    κ = 4/γ², so

        p = Q(κ, κ + √κ·(I − mean)/√variance),   Q the regularised upper incomplete gamma function

    (Hall–Buckley–Eagleson; two moments alone reject too often far in the tail). A constant column has
    no variance and gets p = 1.
    """
    # The exact variance holds for rows of equal weight only.
    variance = limit_variance(a, b) if a.weighted else permutation_variance(a, b)
    squares, cubes = torch.outer(a.trace(2), b.trace(2)), torch.outer(a.trace(3), b.trace(3))
    varies = (variance > 0) & (cubes > 0)
    one = torch.ones_like(variance)
    shape = torch.where(varies, squares.pow(3) / (2 * torch.where(varies, cubes, one).square()), one)
    deviation = (statistic - null_mean(a, b)) / torch.where(varies, variance, one).sqrt()
    tail = torch.special.gammaincc(shape, (shape + shape.sqrt() * deviation).clamp_min(0))
    return torch.where(varies, tail, one)
