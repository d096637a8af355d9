"""CORAL: its distance against covariance matrices, its claim about aligned features."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from stablenet.algorithms.domain_losses import domain_distance
from stablenet.errors import UserError
from tests.algorithms.test_methods import make, make_batch
from tests.algorithms.toys import accuracy, fit, loss_and_gradient, toy_batch, toy_method


def slow_distance(z, domain):
    """By numpy's mean and covariance, pair by pair."""
    groups = [z[domain == number] for number in np.unique(domain) if (domain == number).sum() > 1]
    pairs = []
    for one, two in combinations(groups, 2):
        means = one.mean(0) - two.mean(0)
        covariances = np.cov(one.T) - np.cov(two.T)
        pairs.append((means**2).mean() + (covariances**2).mean())
    return np.mean(pairs) if pairs else 0.0


@pytest.mark.parametrize("domains", [2, 3, 5])
def test_distance_against_covariance_matrices(domains):
    generator = torch.Generator().manual_seed(domains)
    domain = torch.randint(0, domains, (30,), generator=generator)
    domain[-1] = 9  # alone
    z = torch.randn(30, 4, generator=generator, dtype=torch.float64) * (1 + domain[:, None]) + 3 * domain[:, None]
    expected = slow_distance(z.numpy(), domain.numpy())
    assert domain_distance(z, domain).item() == pytest.approx(expected, rel=1e-10)


def test_gradient():
    z = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    domain = torch.tensor([0, 1, 0, 2, 1, 0, 1, 1, 0])
    assert torch.autograd.gradcheck(lambda z: domain_distance(z, domain), z)


def test_zero_where_domains_agree_or_there_is_nothing_to_compare():
    z = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    twice, sides = torch.cat([z, z]), torch.tensor([0] * 6 + [1] * 6)
    assert domain_distance(twice, sides).item() == pytest.approx(0, abs=1e-14)
    assert domain_distance(z, torch.zeros(6)).item() == pytest.approx(0, abs=1e-14)
    assert domain_distance(z, torch.arange(6)).item() == 0
    assert domain_distance(z[:1], torch.zeros(1)).item() == 0


def test_equals_erm_at_strength_zero():
    ours = make("coral")
    object.__setattr__(ours.settings, "strength", 0.0)
    for one, two in zip(
        loss_and_gradient(ours, make_batch()), loss_and_gradient(make("erm"), make_batch()), strict=True
    ):
        assert torch.equal(one, two)


def draw_domain(scale, sign, seed, domain, n=100):
    """A noisy stable column, and a clean one whose size and meaning differ between domains."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=generator)
    side = 2.0 * y - 1
    stable = side + 1.2 * torch.randn(n, generator=generator)
    varying = scale * (sign * side + 0.3 * torch.randn(n, generator=generator))
    return torch.stack([stable, varying], 1), y, torch.full((n,), domain)


def target_accuracy(strength):
    parts = [draw_domain(1.5, 1, 0, 0), draw_domain(0.3, 1, 1, 1)]
    batch = toy_batch(*(torch.cat(each) for each in zip(*parts, strict=True)))
    # Of unit variance, or small features before a large head would bring any two domains together.
    body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))
    network = fit(toy_method("coral", {"strength": strength}, body, 2, domains=2), batch, 150)
    with torch.no_grad():
        distance = domain_distance(network.forward_features(batch.x), batch.domain).item()
    return accuracy(network, toy_batch(*draw_domain(1.5, -1, 2, 0))), distance


def test_claim_aligned_features_serve_a_new_domain():
    """Sun & Saenko: with the term the domains' features come closer and a shifted domain gains; without it neither."""
    (plain, far), (aligned, near) = target_accuracy(0.0), target_accuracy(10.0)
    assert near < far / 5
    assert aligned > plain + 0.2


def test_negative_strength_is_refused():
    with pytest.raises(UserError, match=r"parameters\.strength must be 0 or more"):
        toy_method("coral", {"strength": -1.0}, nn.Identity(), 2, domains=2)
