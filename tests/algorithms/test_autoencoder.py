"""The Wasserstein autoencoder: its density, its codes, its reconstructions, its seed."""

import pytest
import torch

from stablenet.algorithms.autoencoder import fit_autoencoder, log_density


def make_images(number=96, values=27, seed=0):
    """Images of three kinds, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    kinds = (torch.rand(3, values, generator=generator) > 0.5).float()
    noise = 0.1 * torch.rand(number, values, generator=generator)
    return (kinds[torch.arange(number) % 3] * 0.8 + noise).clamp(0, 1)


def fit(epochs, images=None, seed=0):
    return fit_autoencoder(make_images() if images is None else images, epochs, torch.Generator().manual_seed(seed))


def test_density_is_that_of_a_standard_normal():
    codes = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normal = torch.distributions.MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    torch.testing.assert_close(log_density(codes), normal.log_prob(codes))


def test_reconstructions_come_nearer():
    images = make_images()
    errors = [(fit(epochs)(images) - images).square().mean().item() for epochs in (1, 40)]
    assert errors[1] < 0.3 * errors[0]
    spread = (images - images.mean(0)).square().mean().item()
    assert errors[1] < 0.3 * spread  # it tells images apart


def test_critic_draws_codes_towards_the_prior(monkeypatch):
    """Without its word they are less likely there."""
    images, likelihood = make_images(), {}
    for weight in (100.0, 0.0):
        monkeypatch.setattr("stablenet.algorithms.autoencoder.ADVERSARY", weight)
        likelihood[weight] = log_density(fit(40).encoder(images)).mean().item()
    assert likelihood[100.0] > likelihood[0.0] + 1


def test_same_seed_same_autoencoder_whatever_the_global_generator():
    one = fit(2)
    torch.rand(7)
    two, other = fit(2), fit(2, seed=1)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.encoder[0].weight, other.encoder[0].weight)
    assert not any(p.requires_grad for p in one.parameters())


@pytest.mark.parametrize("number", [1, 33])
def test_short_batches(number):
    reconstructions = fit(1, make_images(number))(make_images(number))
    assert reconstructions.shape == (number, 27)
    assert ((reconstructions > 0) & (reconstructions < 1)).all()
