"""Smoothed gradients of networks whose gradient is known by hand."""

import pytest
import torch
from torch import nn

from stablenet.errors import UserError
from stablenet.saliency import SaliencySettings, smooth_gradients

SIDE, CLASSES = 5, 3


class Linear(nn.Module):
    """Scores a·x for every class: the gradient is a, whatever the noise."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(CLASSES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return torch.einsum("bcij,kcij->bk", x, self.a)


class Square(Linear):
    """Scores Σ a·x²: the gradient 2·a·x is linear in x, so that its mean over noise is that of the image."""

    def forward(self, x):
        return super().forward(x.square())


@pytest.fixture
def images():
    return torch.rand(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


TARGET = torch.tensor([0, 2, 1, 2])


def test_the_gradient_of_a_linear_network_is_its_weights(images):
    model = Linear()
    maps = smooth_gradients(model, images, TARGET, SaliencySettings(samples=3))
    torch.testing.assert_close(maps, model.a[TARGET].detach().abs().amax(1))


def test_the_mean_over_many_copies_is_the_gradient_of_the_mean(images):
    """Gradients keep their signs until the mean is taken: at black pixels they cancel."""
    model, images = Square(), (images > 0.5).float()
    maps = smooth_gradients(model, images, TARGET, SaliencySettings(samples=4000, noise=0.2))
    expected = (2 * model.a[TARGET].detach() * images).abs().amax(1)
    torch.testing.assert_close(maps, expected, atol=0.05, rtol=0)


def test_one_seed_gives_one_map_and_nobody_elses_draws_are_touched(images):
    model, settings = Square(), SaliencySettings(samples=5)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = smooth_gradients(model, images, TARGET, settings)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, smooth_gradients(model, images, TARGET, settings))
    assert not torch.equal(first, smooth_gradients(model, images, TARGET, SaliencySettings(samples=5, seed=1)))


def test_noise_is_a_share_of_the_images_range(images):
    """A hundred times the contrast gives a hundred times the noise, hence the same map of a scale-free gradient."""
    model, settings = Square(), SaliencySettings(samples=5)
    small = smooth_gradients(model, images, TARGET, settings)
    large = smooth_gradients(model, 100 * images, TARGET, settings)
    torch.testing.assert_close(large, 100 * small, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "value"), [("samples", 0), ("noise", -0.1), ("noise", 1.5)])
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=str(value)):
        SaliencySettings(**{name: value})
