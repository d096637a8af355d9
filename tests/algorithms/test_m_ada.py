"""M-ADA: its second-order gradient, its domains over time, and what they are good for."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms import Context, build_algorithm, m_ada
from stablenet.algorithms.m_ada import (
    AugmentedPool,
    MADASettings,
    PixelScale,
    choose_rows,
    copy_source,
    pick_source,
    shrink,
    take_step,
)
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models.network import Backbone, Network
from tests.algorithms.test_dg_mmld import InTwoBatches, take
from tests.algorithms.test_methods import make, make_batch
from tests.algorithms.toys import loss_and_gradient

QUICK = {"autoencoder_epochs": 1, "ascent_steps": 2, "copy_size": 4}


def build(number, body=None, width=16, seed=0, **parameters):
    torch.manual_seed(seed)
    body = body or nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 16), nn.ReLU()),
    )
    context = Context(num_classes=2, num_domains=1, num_samples=number, epochs=9, seed=seed)
    return build_algorithm("m-ada", parameters, Network(Backbone(body, width), 2), context).train()


def cue(number, seed, tint):
    """Two classes: a bar in one of two places, under noise, and a slight tint, which is easier and may be reversed."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(number) % 2
    x = 0.5 * torch.randn(number, 3, 8, 8, generator=generator)
    x -= x.mean((2, 3), keepdim=True)
    for row, label in enumerate(y):
        x[row, :, 1 + 4 * label : 3 + 4 * label] += 0.3
    x[:, 0] += tint * (2 * y - 1).view(-1, 1, 1)
    return Batch(x, y, torch.zeros_like(y), torch.arange(number))


class Steps:
    """Adam on the network, without an engine."""

    def __init__(self, algorithm, rate=0.01):
        self._algorithm = algorithm
        self._optimizer = torch.optim.Adam([p for g in algorithm.parameter_groups() for p in g["params"]], rate)

    def loss(self, batch):
        return self._algorithm.loss(batch)

    def descend(self, output):
        self._optimizer.zero_grad()
        output.per_sample_loss.mean().backward()
        self._optimizer.step()


def test_images_do_not_know_with_whom_they_ascend(monkeypatch):
    data, found = cue(50, 0, 0.2), []
    for at_once in (50, 7):
        monkeypatch.setattr(m_ada, "LEAST_AT_ONCE", at_once)
        monkeypatch.setattr(m_ada, "NUMBERS_AT_ONCE", 0)
        algorithm = build(50, domains=1, interval=0, **QUICK)
        algorithm.start_step(0, InTwoBatches(data))
        found.append(algorithm.pool.images)
    torch.testing.assert_close(found[0], found[1], atol=2e-3, rtol=1e-3)  # kept in half precision


def train(algorithm, data, epochs):
    """Batches of 32; what the steps' starts told."""
    steps, told = Steps(algorithm), []
    for _ in range(epochs):
        for rows in torch.randperm(len(data.y)).split(32):
            told.append(algorithm.start_step(len(told), InTwoBatches(data)))
            algorithm.step(take(data, rows), steps)
    return told


def test_inner_step():
    weight = torch.tensor([1.0, -2.0], requires_grad=True)
    stepped = take_step((weight**3).sum(), {"weight": weight}, 0.1)["weight"]
    torch.testing.assert_close(stepped, torch.tensor([1 - 0.3, -2 - 1.2]))
    stepped.sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([1 - 0.6, 1 + 1.2]))  # d(w − 0.3w²)/dw


def test_second_order_gradient_against_finite_differences():
    """Of ½[L(S; θ) + L(S⁺; θ − η∇L(S; θ))], with a rate at which the second order counts."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Tanh())
    algorithm = build(6, body, width=3, inner_rate=0.7)
    generator = torch.Generator().manual_seed(0)
    x, augmented = (torch.randn(6, 3, 2, 2, generator=generator) for _ in range(2))
    y = torch.tensor([0, 1, 1, 0, 1, 0])
    algorithm.pool.add(augmented, y.flip(0))
    drawn, labels = algorithm.pool.draw(6, 0, algorithm.steps)
    weights = [p.detach().double() for p in algorithm.network.parameters()]

    def lose(weights, x, y):
        first, bias, head, head_bias = weights
        logits = torch.tanh(x.flatten(1).double() @ first.T + bias) @ head.T + head_bias
        return functional.cross_entropy(logits, y)

    def outer(weights):
        weights = [w.detach().requires_grad_() for w in weights]
        gradients = torch.autograd.grad(lose(weights, x, y), weights)
        stepped = [w - 0.7 * g for w, g in zip(weights, gradients, strict=True)]
        return ((lose(weights, x, y) + lose(stepped, drawn, labels)) / 2).item()

    loss, *gradients = loss_and_gradient(algorithm, Batch(x, y, y, y))
    assert loss.item() == pytest.approx(outer(weights), rel=1e-5)
    for part, gradient in enumerate(gradients):
        for place in range(gradient.numel()):
            up, down = ([w.detach().clone() for w in weights] for _ in range(2))
            up[part].view(-1)[place] += 1e-4
            down[part].view(-1)[place] -= 1e-4
            slope = (outer(up) - outer(down)) / 2e-4
            assert gradient.view(-1)[place].item() == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_without_domains_it_is_erm():
    ours, erm = make("m-ada"), make("erm")
    erm.network.load_state_dict(ours.network.state_dict())
    for one, other in zip(loss_and_gradient(ours, make_batch()), loss_and_gradient(erm, make_batch()), strict=True):
        assert torch.equal(one, other)
    assert build(64, domains=0, interval=0).start_step(0, None) == {}


def test_every_parameter_of_the_network_learns():
    algorithm, data = build(32, interval=0, **QUICK), cue(32, 0, 0.1)
    algorithm.start_step(0, InTwoBatches(data))
    output = algorithm.loss(data)
    output.per_sample_loss.mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in algorithm.network.parameters())
    assert list(algorithm.parameters()) == list(algorithm.network.parameters())
    assert torch.isfinite(output.diagnostics["augmented_loss"])


def test_domains_are_made_in_time_and_in_size():
    """As published, also inside an epoch: with an interval of 3 before the third, sixth and ninth step."""
    algorithm = build(64, interval=3, **QUICK)
    told = train(algorithm, cue(64, 0, 0.1), 8)
    assert [step + 1 for step, found in enumerate(told) if found] == [3, 6, 9]
    assert [found["augmented_images"] for found in told if found] == [64, 32, 21]
    assert algorithm.pool.domain.bincount().tolist() == [64, 32, 21]
    assert int(algorithm.steps) == 16
    assert algorithm.network.training


def test_making_a_domain_leaves_the_network_as_it_was():
    """In evaluation mode: no statistics move, no gradient is left behind."""
    algorithm = make("m-ada").train()
    before = {name: value.clone() for name, value in algorithm.network.state_dict().items()}
    assert algorithm.start_step(1, InTwoBatches(make_batch()))["pixel_change"] > 0
    assert all(torch.equal(value, before[name]) for name, value in algorithm.network.state_dict().items())
    assert all(p.grad is None for p in algorithm.parameters())
    assert algorithm.network.training


def test_domains_can_be_kept_small():
    algorithm = build(64, interval=2, largest_domain=10, **QUICK)
    train(algorithm, cue(64, 0, 0.1), 4)
    assert algorithm.pool.domain.bincount().tolist() == [10, 10, 10]


def test_first_domain_starts_from_the_source_with_its_labels():
    """Ascent of no length leaves every source image as it was; later domains come from both, in shares."""
    data = cue(64, 0, 0.1)
    algorithm = build(64, interval=0, **{**QUICK, "ascent_rate": 0.0})
    algorithm.start_step(0, InTwoBatches(data))
    torch.testing.assert_close(algorithm.pool.images.float(), data.x, rtol=0, atol=2e-3)  # half precision
    assert torch.equal(algorithm.pool.labels, data.y)
    algorithm.pool.images += 100  # to be known again
    algorithm.start_step(1, InTwoBatches(data))
    second = algorithm.pool.images[algorithm.pool.domain == 1].float()
    assert (second.mean((1, 2, 3)) > 50).sum() == 16
    assert len(second) == 32


def test_autoencoder_sees_the_latest_domain(monkeypatch):
    seen = []

    def remember(images, epochs, generator, **options):
        seen.append(images)
        return lambda copies: copies

    monkeypatch.setattr("stablenet.algorithms.m_ada.fit_autoencoder", remember)
    data, algorithm = cue(64, 0, 0.1), build(64, interval=0, **QUICK)
    for step in range(3):
        algorithm.start_step(step, InTwoBatches(data))
    torch.testing.assert_close(seen[0], shrink(algorithm.scale.to_unit(data.x), 4))
    for domain in range(2):
        latest = algorithm.pool.images[algorithm.pool.domain == domain].float()
        torch.testing.assert_close(seen[domain + 1], shrink(algorithm.scale.to_unit(latest), 4).clamp(0, 1))
    assert all(copies.min() >= 0 and copies.max() <= 1 for copies in seen)


def test_scale_is_the_sources_range():
    data = cue(20, 0, 0.1)
    scale = PixelScale()
    scale.measure(InTwoBatches(data))
    unit = scale.to_unit(data.x)
    for channel in range(3):
        assert (unit[:, channel].min().item(), unit[:, channel].max().item()) == pytest.approx((0, 1), abs=1e-6)
    torch.testing.assert_close(scale.to_input(unit), data.x)
    torch.testing.assert_close(copy_source(InTwoBatches(data), scale, 4), shrink(unit, 4))


def test_rows_are_chosen_by_index():
    data = take(cue(20, 0, 0.1), torch.randperm(20, generator=torch.Generator().manual_seed(1)))
    chosen = choose_rows(20, 7, torch.Generator().manual_seed(0))
    images, labels = pick_source(InTwoBatches(data), chosen)
    rows = chosen[data.index]
    assert len(labels) == 7
    assert torch.equal(images, data.x[rows])
    assert torch.equal(labels, data.y[rows])
    assert choose_rows(3, 9, torch.Generator()).all()


def test_a_restored_pool_knows_its_domains():
    pool, again = AugmentedPool(), AugmentedPool()
    for _ in range(2):
        pool.add(torch.zeros(3, 3, 2, 2), torch.zeros(3, dtype=torch.int64))
    again.load_state_dict(pool.state_dict())
    assert (again.domains, AugmentedPool().domains) == (2, 0)


def test_draws_reach_every_image_and_depend_on_the_step():
    pool = AugmentedPool()
    pool.add(torch.arange(10.0).view(10, 1, 1, 1).expand(10, 3, 2, 2), torch.arange(10))
    draws = [pool.draw(8, 0, torch.tensor(step)) for step in range(40)]
    assert all(torch.equal(images[:, 0, 0, 0], labels.float()) for images, labels in draws)
    counts = torch.cat([labels for _, labels in draws]).bincount(minlength=10)
    assert counts.min() > 12  # 32 on average
    again, other = pool.draw(8, 0, torch.tensor(3))[1], pool.draw(8, 1, torch.tensor(3))[1]
    assert torch.equal(again, draws[3][1])
    assert not torch.equal(other, draws[3][1])


def score(data, seed, **parameters):
    """Accuracy with the tint as in training, and reversed."""
    algorithm = build(128, seed=seed, interval=10, autoencoder_epochs=1, inner_rate=0.01, copy_size=8, **parameters)
    train(algorithm, data, 16)
    network = algorithm.eval().network
    with torch.no_grad():
        return [
            (network(batch.x).argmax(1) == batch.y).float().mean().item()
            for batch in (cue(400, 9, 0.2), cue(400, 9, -0.2))
        ]


@pytest.mark.parametrize("seed", [0, 1])
def test_claim_adversarial_domains_prepare_for_an_unseen_one(seed):
    """One where a slight tint is reversed that training relied on. Copies of the source do not prepare for it."""
    data = cue(128, seed, 0.2)
    known, unseen = score(data, seed, ascent_steps=10, ascent_rate=30.0, constraint=0.1)
    _, copies = score(data, seed, ascent_steps=1, ascent_rate=0.0)
    assert known > 0.9
    assert unseen > 0.7
    assert unseen > copies + 0.25


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"domains": -1}, "domains must be 0 or more, got -1"),
        ({"inner_rate": -1.0}, "inner_rate must be 0 or more"),
        ({"ascent_steps": 0}, "ascent_steps must be at least 1, got 0"),
        ({"largest_domain": 0}, "largest_domain must be at least 1"),
    ],
)
def test_wrong_settings_are_named(parameters, message):
    with pytest.raises(UserError, match=message):
        MADASettings(**parameters)
