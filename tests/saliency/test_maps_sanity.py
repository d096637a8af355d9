"""The check tells maps of the network from maps of the picture."""

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from stablenet.saliency import SaliencySettings, check_maps, randomise_parameters, smooth_gradients
from stablenet.saliency.maps import Sanity, rank_correlation


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
        )


@pytest.fixture
def images():
    return torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_rank_correlation_is_spearmans_with_ties():
    draw = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, 5, (4, 6, 6), generator=draw), torch.rand(4, 6, 6, generator=draw)
    expected = [spearmanr(a.flatten(), b.flatten()).statistic for a, b in zip(first, second, strict=True)]
    assert rank_correlation(first, second).tolist() == pytest.approx(expected)


def test_a_blank_map_has_no_correlation():
    assert rank_correlation(torch.zeros(1, 3, 3), torch.rand(1, 3, 3)).isnan().all()


def test_gradients_pass_and_a_detector_of_edges_fails(model, images):
    target = model(images).argmax(1)

    def gradients(network, seed):
        return smooth_gradients(network, images, target, SaliencySettings(samples=10, noise=0.05, seed=seed))

    def edges(network, seed):
        return (images.diff(dim=3).abs().sum(1)) + 1e-3 * torch.rand(3, 8, 7)

    sane = check_maps(model, gradients(model, 0), gradients)
    assert sane.passed
    assert sane.repeated > 0.8 > sane.randomised
    blind = check_maps(model, edges(model, 0), edges)
    assert not blind.passed
    assert blind.randomised > 0.9


def test_nothing_to_compare_is_no_pass():
    assert not Sanity(None, None).passed


def test_parameters_are_drawn_anew_in_a_copy(model):
    before = [p.detach().clone() for p in model.parameters()]
    other = randomise_parameters(model, 0)
    for old, kept, made in zip(before, model.parameters(), other.parameters(), strict=True):
        drawn = made.detach()
        assert torch.equal(old, kept)
        assert not torch.equal(old, drawn)
        if old.ndim > 1:
            assert drawn.square().mean().sqrt() == pytest.approx(float(old.square().mean().sqrt()), rel=0.3)
        else:
            torch.testing.assert_close(drawn.sort().values, old.sort().values)
    again = randomise_parameters(model, 0)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), again.parameters(), strict=True))
