"""Mixup: mixed images and labels by hand, its claim about what lies in between."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms.erm import mix
from stablenet.errors import UserError
from tests.algorithms.test_methods import make, make_batch
from tests.algorithms.toys import fit, loss_and_gradient, toy_batch, toy_method


def test_loss_is_that_of_mixed_images_and_labels(monkeypatch):
    algorithm, batch = make("mixup").eval(), make_batch()
    partner = torch.arange(len(batch.y)).flip(0)
    monkeypatch.setattr(algorithm, "_draw", lambda size: (0.3, partner))
    one_hot = functional.one_hot(batch.y, 3).float()
    images = torch.stack([0.3 * batch.x[i] + 0.7 * batch.x[j] for i, j in enumerate(partner)])
    labels = torch.stack([0.3 * one_hot[i] + 0.7 * one_hot[j] for i, j in enumerate(partner)])
    expected = -(labels * torch.log_softmax(algorithm.network(images), 1)).sum(1)
    torch.testing.assert_close(algorithm.loss(batch).per_sample_loss, expected)


def test_draws_follow_the_beta_distribution():
    algorithm = make("mixup").train()
    shares, partners = zip(*(algorithm._draw(8) for _ in range(2000)), strict=True)
    shares = torch.tensor(shares)
    spread = 0.2 * 0.2 / ((0.4) ** 2 * 1.4)  # variance of Beta(0.2, 0.2)
    assert shares.mean().item() == pytest.approx(0.5, abs=0.04)
    assert shares.var().item() == pytest.approx(spread, rel=0.06)
    assert all(sorted(p.tolist()) == list(range(8)) for p in partners)
    assert len({tuple(p.tolist()) for p in partners}) > 1900


def test_draws_depend_on_seed_and_step_alone():
    one, two = make("mixup").train(), make("mixup").train()
    one._draw(8), one._draw(5)
    two.load_state_dict(one.state_dict())
    torch.manual_seed(7)
    (share, partner), (again, same) = one._draw(8), two._draw(8)
    assert share == again
    assert torch.equal(partner, same)
    assert share != one._draw(8)[0]


def test_equals_erm_bit_for_bit_at_lambda_one():
    """α = 0 draws λ = 1, whatever the partners are."""
    ours = make("mixup")
    object.__setattr__(ours.settings, "alpha", 0.0)
    for one, two in zip(
        loss_and_gradient(ours, make_batch()), loss_and_gradient(make("erm"), make_batch()), strict=True
    ):
        assert torch.equal(one, two)


def test_evaluation_does_not_mix():
    algorithm, batch = make("mixup").eval(), make_batch()
    expected = functional.cross_entropy(algorithm.network(batch.x), batch.y, reduction="none")
    assert torch.equal(algorithm.loss(batch).per_sample_loss, expected)
    assert algorithm._steps == 0


def test_mix_at_the_ends():
    one, other = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(mix(one, other, 1.0), one)
    assert torch.equal(mix(one, other, 0.0), other)


def slope_between(alpha):
    """Mean size of the loss's gradient in the input, halfway between training samples with arbitrary labels."""
    generator = torch.Generator().manual_seed(0)
    rows, y = torch.randn(64, 10, generator=generator), torch.randint(0, 2, (64,), generator=generator)
    method = toy_method("mixup", {"alpha": alpha}, nn.Sequential(nn.Linear(10, 64), nn.ReLU()), 64)
    network = fit(method, toy_batch(rows, y), 200, rate=0.01)
    halfway = ((rows + rows.roll(1, 0)) / 2)[:, :, None, None].requires_grad_(True)
    functional.cross_entropy(network(halfway), y, reduction="sum").backward()
    return halfway.grad.flatten(1).norm(dim=1).mean().item()


def test_claim_the_model_is_smoother_between_samples():
    """Zhang et al., their figure 2: gradients in the input are smaller in between; without mixing they are not."""
    assert slope_between(1.0) < slope_between(0.0) / 2


def test_negative_alpha_is_refused():
    with pytest.raises(UserError, match=r"parameters\.alpha must be 0 or more"):
        toy_method("mixup", {"alpha": -1.0}, nn.Identity(), 2)
