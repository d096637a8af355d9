"""Focal loss against its formula, and what its paper says of hard samples."""

import math

import pytest
import torch
from torch import nn

from stablenet.algorithms import build_algorithm
from stablenet.algorithms.erm import focus
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from tests.algorithms.small import build, compare_with_erm, fit
from tests.algorithms.test_methods import make, make_batch


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_equals_its_formula(gamma):
    probability = [0.001, 0.3, 0.5, 0.9, 0.999999]
    expected = [(1 - p) ** gamma * -math.log(p) for p in probability]
    cross_entropy = -torch.tensor(probability, dtype=torch.float64).log()
    assert focus(cross_entropy, gamma).tolist() == pytest.approx(expected, rel=1e-9)


def test_gradient_goes_through_both_factors():
    cross_entropy = torch.tensor([0.01, 0.7, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda value: focus(value, 2.0), cross_entropy)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_certainty_has_a_finite_gradient(gamma):
    cross_entropy = torch.zeros(1, requires_grad=True)
    loss = focus(cross_entropy, gamma)
    loss.sum().backward()
    assert loss.item() == 0
    assert torch.isfinite(cross_entropy.grad).all()


def test_without_gamma_it_is_erm():
    algorithm, batch = make("focal").train(), make_batch()
    algorithm = build_algorithm("focal", {"gamma": 0.0}, algorithm.network, algorithm.context).train()
    for ours, theirs in compare_with_erm(algorithm, make("erm").train(), batch):
        assert torch.equal(ours, theirs)


class Flat(nn.Flatten):
    num_features = 12


def draw_rare(seed):
    """One sample in twenty is of the second class, and they overlap."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.rand(1000, generator=generator) < 0.05).long()
    return torch.randn(1000, 3, 2, 2, generator=generator) + 0.6 * y.view(-1, 1, 1, 1), y


def share_of_the_hardest(algorithm, x, y):
    """What the hardest tenth of the common class brings to its loss."""
    rows = (y == 0).nonzero().squeeze(1)
    with torch.no_grad():
        losses = algorithm.loss(Batch(x[rows], y[rows], y[rows], rows)).per_sample_loss
    losses = losses.sort(descending=True).values
    return (losses[: len(losses) // 10].sum() / losses.sum()).item()


def test_claim_the_loss_gathers_on_hard_samples():
    """As the paper shows it of a trained network: the larger gamma, the more of the common class's loss comes from
    its few hard samples; with cross-entropy the many easy ones drown them."""
    algorithm = fit(build("focal", {}, Flat, samples=1000), *draw_rare(0), steps=200, batch=200, rate=0.5)
    plain = build_algorithm("focal", {"gamma": 0.0}, algorithm.network, algorithm.context)
    with_focus, without = (share_of_the_hardest(each, *draw_rare(1)) for each in (algorithm, plain))
    assert without < 0.5
    assert with_focus > 0.7


def test_wrong_settings_are_named():
    with pytest.raises(UserError, match="gamma must be 0 or more, got -1"):
        build("focal", {"gamma": -1}, Flat)
