"""GroupDRO: its domain weights by hand, its claim about the worst domain, and what it refuses."""

import math

import pytest
import torch
from torch import nn

from stablenet.algorithms import Context, build_algorithm
from stablenet.algorithms.domain_losses import mean_by_group, start_weights, weigh_samples
from stablenet.errors import UserError
from stablenet.models import build_network
from tests.algorithms.test_methods import make, make_batch
from tests.algorithms.toys import fit, loss_and_gradient, toy_batch, toy_method


def test_means_by_domain_by_hand():
    means, count = mean_by_group(torch.tensor([1.0, 3.0, 10.0]), torch.tensor([2, 2, 0]), 4)
    assert means.tolist() == [10.0, 0.0, 2.0, 0.0]
    assert count.tolist() == [1, 0, 2, 0]


def test_weights_are_exponentiated_losses():
    """Two steps on fixed losses, in plain arithmetic."""
    algorithm = toy_method("group-dro", {"rate": 0.5}, nn.Identity(), 2, domains=3).train()
    with torch.no_grad():
        algorithm.network.head.weight.copy_(torch.eye(2))
        algorithm.network.head.bias.zero_()
    rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    batch = toy_batch(rows, torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 2, 2]))
    losses = [math.log(2), math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))]
    for step in (1, 2):
        output = algorithm.loss(batch)
        raw = [math.exp(0.5 * step * loss) for loss in losses]
        q = [each / sum(raw) for each in raw]
        assert algorithm.log_q.exp().tolist() == pytest.approx(q)
        assert output.weights.tolist() == pytest.approx([4 * q[0], 4 * q[1], 2 * q[2], 2 * q[2]])
        assert (output.weights * output.per_sample_loss).mean().item() == pytest.approx(
            sum(share * loss for share, loss in zip(q, losses, strict=True))
        )


def test_absent_domains_keep_their_weight_and_the_loss_its_scale():
    context = Context(num_classes=2, num_domains=4, num_samples=9, epochs=1, seed=0, training_domains=(0, 1, 3))
    log_q = start_weights(context)
    assert log_q.exp().tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    weights = weigh_samples(log_q, torch.tensor([0, 0, 3]), torch.tensor([2.0, 0.0, 0.0, 1.0]))
    assert weights.tolist() == pytest.approx([0.75, 0.75, 1.5])


def test_evaluation_leaves_the_weights_alone():
    algorithm = make("group-dro").eval()
    before = algorithm.log_q.clone()
    algorithm.loss(make_batch())
    assert torch.equal(algorithm.log_q, before)


def test_groups_of_class_and_domain_by_hand():
    """One step: the weights of four groups in float64, by a walk over samples."""
    algorithm = toy_method("group-dro", {"rate": 0.5, "groups": "class-domain"}, nn.Identity(), 2, domains=2).train()
    rows = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.5, 2.0], [1.0, -1.0], [3.0, 0.0]])
    batch = toy_batch(rows, torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 0, 0]))
    output = algorithm.loss(batch)
    losses = output.per_sample_loss.double().tolist()
    members = {(0, 0): [0, 1], (0, 1): [2], (1, 0): [3, 4]}  # (1, 1) is not in the batch
    grown = {g: math.exp(0.5 * sum(losses[i] for i in rows) / len(rows)) for g, rows in members.items()}
    for g, rows in members.items():
        for i in rows:
            assert output.weights[i].item() == pytest.approx(5 * grown[g] / sum(grown.values()) / len(rows))
    assert len(algorithm.log_q) == 4
    assert algorithm.log_q.exp().sum().item() == pytest.approx(1)


def test_equals_erm_at_rate_zero_on_balanced_domains():
    ours = make("group-dro")
    object.__setattr__(ours.settings, "rate", 0.0)
    for one, two in zip(
        loss_and_gradient(ours, make_batch()), loss_and_gradient(make("erm"), make_batch()), strict=True
    ):
        torch.testing.assert_close(one, two)


def worst_loss(rate):
    """A common domain and a rare, contrary one: what one logistic regression does to the worse of the two."""
    generator = torch.Generator().manual_seed(0)
    n = 400
    domain = (torch.arange(n) % 10 == 0).long()
    x = torch.randn(n, 1, generator=generator)
    right = torch.rand(n, generator=generator) < torch.where(domain == 1, 0.35, 0.95)
    y = ((x[:, 0] > 0) == right).long()
    network = fit(toy_method("group-dro", {"rate": rate}, nn.Identity(), 1, domains=2), toy_batch(x, y, domain), 300)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(network(x[:, :, None, None]), y, reduction="none")
    return mean_by_group(losses, domain, 2)[0].max().item()


def test_claim_the_worst_domain_gains():
    """Sagawa et al.: the worst group's loss falls against equal weights; without the growth of q it does not."""
    assert worst_loss(0.1) < worst_loss(0.0) - 0.03


@pytest.mark.parametrize("method", ["group-dro", "irm", "coral"])
def test_one_domain_is_refused(method):
    context = Context(num_classes=2, num_domains=4, num_samples=8, epochs=1, seed=0, training_domains=(2,))
    with pytest.raises(UserError, match=f"{method} learns from domain labels, and the training samples come from 1"):
        build_algorithm(method, {}, build_network("paper-cnn", 2), context)


def test_negative_rate_is_refused():
    with pytest.raises(UserError, match=r"parameters\.rate must be 0 or more, got -1"):
        toy_method("group-dro", {"rate": -1.0}, nn.Identity(), 1, domains=2)
