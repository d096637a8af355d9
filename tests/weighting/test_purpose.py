"""What it is for: a linear model that a selection-biased variable misleads errs less when the samples are weighted."""

import torch

from stablenet.weighting import solve_dataset


def biased_sample(n, strength, seed):
    """Stable x drives y; spurious v is kept by selection where it agrees (strength > 0) or disagrees with y.

    The true effect of x is slightly curved, so that a linear model has something for v to explain.
    """
    g = torch.Generator().manual_seed(seed)
    pool = 40 * n
    x, v = torch.randn(pool, 3, generator=g), torch.randn(pool, 1, generator=g)
    f = x @ torch.tensor([1.0, -0.5, 0.8]) + 0.8 * (x[:, 0] * x[:, 1])
    noise = 0.3 * torch.randn(pool, generator=g)
    agreement = abs(strength) ** (-5 * (f - torch.sign(torch.tensor(strength)) * v[:, 0]).abs())
    kept = (torch.rand(pool, generator=g) < agreement).nonzero().squeeze(1)[:n]
    return torch.cat([x, v], 1)[kept], (f + noise)[kept]


def fit(z, y, w):
    a = torch.cat([z, torch.ones(len(z), 1)], 1)
    return torch.linalg.solve(a.T @ (w[:, None] * a) + 1e-6 * torch.eye(5), a.T @ (w * y))


def error(coefficients, z, y):
    return (torch.cat([z, torch.ones(len(z), 1)], 1) @ coefficients - y).square().mean().sqrt().item()


def test_weighted_regression_errs_less_under_the_opposite_bias():
    plain, weighted, reliance = [], [], []
    for seed in range(10):
        z, y = biased_sample(1000, 1.7, seed)
        w = solve_dataset(z, pairs="features", num_functions=5, steps=200, seed=seed).weights
        ones, ours = fit(z, y, torch.ones(len(z))), fit(z, y, w)
        z_test, y_test = biased_sample(1000, -1.7, 100 + seed)
        plain.append(error(ones, z_test, y_test))
        weighted.append(error(ours, z_test, y_test))
        reliance.append((ones[3].abs() - ours[3].abs()).item())
    mean = [sum(values) / 10 for values in (plain, weighted, reliance)]
    print(f"error under the opposite bias: unweighted {mean[0]:.3f}, weighted {mean[1]:.3f}")
    assert mean[1] < 0.9 * mean[0]
    assert mean[2] > 0  # and it does so by relying less on the spurious variable
