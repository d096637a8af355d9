"""IRM: its penalty against autograd, its claim about a varying shortcut."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms.domain_losses import invariance_penalty, scale_slope
from stablenet.errors import UserError
from tests.algorithms.test_methods import AllBatches, make, make_batch
from tests.algorithms.toys import accuracy, fit, loss_and_gradient, toy_batch, toy_method


def draw_logits(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, 4, (n,), generator=generator)


def slope_by_autograd(logits, y):
    """∇ of the mean cross-entropy in a scalar before the logits, at one."""
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    return torch.autograd.grad(functional.cross_entropy(scale * logits, y), scale, create_graph=True)[0]


def test_slope_is_the_derivative_in_the_scale():
    logits, y = draw_logits(7)
    for row in range(7):
        expected = slope_by_autograd(logits[[row]], y[[row]])
        torch.testing.assert_close(scale_slope(logits, y)[row], expected)


def test_penalty_and_its_gradient_against_the_definition():
    """Three domains in mixed order; the one with a single sample stays out."""
    logits, y = draw_logits(12)
    logits.requires_grad_(True)
    domain = torch.tensor([1, 0, 0, 1, 3, 0, 1, 1, 0, 0, 1, 0])
    parts = []
    for number in (0, 1):
        rows = domain == number
        parts.append(slope_by_autograd(logits[rows], y[rows]) ** 2)
    expected = (parts[0] + parts[1]) / 2
    found = invariance_penalty(logits, y, domain)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, logits)[0], torch.autograd.grad(expected, logits)[0])


def test_no_penalty_where_no_domain_has_two_samples():
    logits, y = draw_logits(3)
    assert invariance_penalty(logits, y, torch.arange(3)).item() == 0


def test_zero_where_no_other_scale_is_better():
    """Logits that are the logarithm of the labels' shares, in both domains."""
    logits = torch.tensor([0.75, 0.25], dtype=torch.float64).log().expand(8, 2)
    y, domain = torch.tensor([0, 0, 0, 1] * 2), torch.tensor([0] * 4 + [1] * 4)
    assert invariance_penalty(logits, y, domain).item() == pytest.approx(0, abs=1e-15)
    assert invariance_penalty(2 * logits, y, domain).item() > 0.01


def test_loss_is_cross_entropy_and_penalty_over_the_strength():
    algorithm, batch = make("irm").eval(), make_batch()
    algorithm.strength.fill_(10.0)
    logits = algorithm.network(batch.x)
    expected = functional.cross_entropy(logits, batch.y) / 10 + invariance_penalty(logits, batch.y, batch.domain)
    torch.testing.assert_close(algorithm.loss(batch).per_sample_loss.mean(), expected)


def test_equals_erm_at_strength_zero():
    ours = toy_method("irm", {"strength": 0.0}, nn.Linear(3, 2), 2, domains=2)
    erm = toy_method("erm", {}, nn.Linear(3, 2), 2, domains=2)
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (9,), generator=generator)
    batch = toy_batch(torch.randn(9, 3, generator=generator), y, torch.arange(9) % 2)
    for one, two in zip(loss_and_gradient(ours, batch), loss_and_gradient(erm, batch), strict=True):
        assert torch.equal(one, two)


def test_warmup_counts_epochs():
    algorithm = make("irm")
    object.__setattr__(algorithm.context, "epochs", 30)
    found = []
    for epoch in range(5):
        algorithm.start_epoch(epoch, AllBatches())
        found.append(algorithm.strength.item())
    assert found == [1, 1, 1, 100, 100]


def draw_shortcut(agreement, n, seed, domain):
    """A shape that agrees with the label in 75 of 100 cases everywhere, a colour that does so as often as told.

    Every sample comes with its mirror image, so that neither class is the likelier one.
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=generator)
    shape, colour = ((torch.rand(n, generator=generator) < share) == y.bool() for share in (0.75, agreement))
    rows = torch.stack([shape, colour], 1).float() * 2 - 1
    return torch.cat([rows, -rows]), torch.cat([y, 1 - y]), torch.full((2 * n,), domain)


def reversed_accuracy(strength):
    parts = [draw_shortcut(0.95, 60, 0, 0), draw_shortcut(0.8, 60, 1, 1)]
    batch = toy_batch(*(torch.cat(each) for each in zip(*parts, strict=True)))
    method = toy_method("irm", {"strength": strength, "warmup": 0.0}, nn.Identity(), 2, domains=2)
    network = fit(method, batch, 150)
    return accuracy(network, toy_batch(*draw_shortcut(0.1, 500, 2, 0)))


def test_claim_a_shortcut_that_varies_is_left_alone():
    """Arjovsky et al., coloured digits: where the colour is reversed, the penalty makes the difference."""
    assert reversed_accuracy(0.0) < 0.3
    assert reversed_accuracy(30.0) > 0.65


@pytest.mark.parametrize(("name", "value"), [("strength", -1.0), ("warmup", 1.5)])
def test_wrong_settings_are_named(name, value):
    with pytest.raises(UserError, match=f"parameters.{name}"):
        toy_method("irm", {name: value}, nn.Identity(), 2, domains=2)
