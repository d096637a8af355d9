"""MetaReg: its unrolled gradient, its two phases, and what it is for: domain-bound features are the ones penalised."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms import Context, build_algorithm
from stablenet.algorithms.episodes import append_one, join_head, penalise, unroll
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import build_network
from stablenet.models.network import Backbone, Network
from tests.algorithms.test_methods import FAMILIES, PlainStepper, make_batch
from tests.engine.tiny import tiny_run

CLASSES, WIDTH = 3, 4


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(family="paper-cnn", epochs=2, **settings):
    """With two epochs and the default share, φ is learned in the first."""
    name, parameters = FAMILIES[family]
    torch.manual_seed(0)
    network = build_network(name, CLASSES, parameters=parameters)
    context = Context(
        num_classes=CLASSES, num_domains=2, num_samples=24, epochs=epochs, seed=0, training_domains=(0, 1)
    )
    return build_algorithm("metareg", settings, network, context).train()


def copy_parameters(module):
    return [parameter.detach().clone() for parameter in module.parameters()]


def changed(module, before):
    return [bool((p != old).any()) for p, old in zip(module.parameters(), before, strict=True)]


def meta_loss(phi, steps=3):
    """CE on domain b after steps on domain a, as a function of φ, all else fixed."""
    rows_a, rows_b = append_one(draw(6, WIDTH, seed=1)), append_one(draw(5, WIDTH, seed=2))
    y_a, y_b = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([2, 1, 0, 0, 1])
    head = unroll(draw(CLASSES, WIDTH + 1, seed=3), phi, rows_a, y_a, steps, 0.1)
    return functional.cross_entropy(rows_b @ head.T, y_b)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_unrolled_gradient_is_that_of_finite_differences(steps):
    phi = (0.1 + 0.2 * draw(CLASSES, WIDTH + 1, seed=4).abs()).requires_grad_()
    (gradient,) = torch.autograd.grad(meta_loss(phi, steps), phi)
    small = 1e-6
    for place in range(phi.numel()):
        change = torch.zeros_like(phi).view(-1)
        change[place] = small
        change = change.view_as(phi)
        with torch.no_grad():
            moved = phi + change, phi - change
        slope = (meta_loss(moved[0], steps) - meta_loss(moved[1], steps)).item() / (2 * small)
        assert gradient.view(-1)[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-9)
    assert gradient.abs().max() > 1e-3


def test_one_unrolled_step_by_hand():
    """softmax of zeros is even: ∂CE/∂θ = (p − one-hot)ᵀ·rows/n, and of the penalty φ·sign(θ), which is 0 at 0."""
    rows, y = torch.tensor([[2.0, 1.0], [4.0, 1.0]]), torch.tensor([0, 1])
    head = unroll(torch.zeros(2, 2), torch.full((2, 2), 0.5), rows, y, 1, 0.1)
    gradient = torch.tensor([[(-2 + 4) / 4, 0.0], [(2 - 4) / 4, 0.0]])
    torch.testing.assert_close(head.detach(), -0.1 * gradient)
    start = torch.tensor([[3.0, 0.0], [3.0, 0.0]])  # the same logits for both classes, hence the same probabilities
    penalty = torch.tensor([[0.5, 0.0], [0.5, 0.0]])
    again = unroll(start, torch.full((2, 2), 0.5), rows, y, 1, 0.1)
    torch.testing.assert_close(again.detach(), start - 0.1 * (gradient + penalty))


def test_the_penalty_is_a_weighted_sum_of_sizes():
    head, phi = torch.tensor([[1.0, -2.0], [0.0, 4.0]]), torch.tensor([[0.5, 1.0], [3.0, 0.25]])
    assert penalise(head, phi).item() == 0.5 + 2.0 + 0.0 + 1.0
    linear = nn.Linear(3, 2)
    x = torch.rand(5, 3)
    torch.testing.assert_close(append_one(x) @ join_head(linear).T, linear(x))


def test_every_sample_trains_the_classifier_of_its_domain():
    algorithm = make().eval()
    with torch.no_grad():
        algorithm.heads.normal_(generator=torch.Generator().manual_seed(5))
    batch = make_batch()
    features = algorithm.shared(batch.x)
    expected = []
    for row in range(len(batch.y)):
        head = algorithm.heads[int(batch.domain[row])]
        logits = head[:, :-1] @ features[row] + head[:, -1]
        expected.append(-torch.log_softmax(logits, 0)[batch.y[row]].item())
    assert algorithm.loss(batch).per_sample_loss.tolist() == pytest.approx(expected, rel=1e-4)
    alone = Batch(batch.x[::2], batch.y[::2], batch.domain[::2], batch.index[::2])  # all of domain 0
    algorithm.loss(alone).per_sample_loss.mean().backward()
    assert algorithm.heads.grad[0].abs().sum() > 0
    assert algorithm.heads.grad[1].abs().sum() == 0


def test_phi_takes_the_step_of_its_gradient_and_stays_positive():
    algorithm, batch = make(phi_rate=0.5, inner_steps=2, inner_rate=0.3).eval(), make_batch()
    stepper = PlainStepper(algorithm)
    stepper.descend(stepper.loss(batch))
    with torch.no_grad():
        algorithm.heads[1] += 0.1
        algorithm.phi.fill_(0.001)
    rows, before = algorithm._features, algorithm.phi.clone()
    told = algorithm._update_phi(batch)
    found = []
    for a, b in ((0, 1), (1, 0)):
        phi = before.clone().requires_grad_()
        on_a, on_b = batch.domain == a, batch.domain == b
        head = unroll(algorithm.heads[a].detach(), phi, rows[on_a], batch.y[on_a], 2, 0.3)
        loss = functional.cross_entropy(rows[on_b] @ head.T, batch.y[on_b])
        found.append((before - 0.5 * torch.autograd.grad(loss, phi)[0], loss.item()))
    expected = next(phi for phi, loss in found if loss == pytest.approx(told.item(), rel=1e-6))
    assert (expected < 0).any()  # else nothing was tested
    torch.testing.assert_close(algorithm.phi, expected.clamp(min=0))


def test_pairs_of_domains_are_drawn():
    algorithm, batch = make(phi_rate=0.0), make_batch()
    with torch.no_grad():
        algorithm.heads[1] += 1.0
    drawn = set()
    for _ in range(12):
        algorithm._features = append_one(torch.ones(len(batch.y), algorithm.network.width))
        drawn.add(round(algorithm._update_phi(batch).item(), 4))
    assert len(drawn) == 2  # a and b both ways


def test_a_batch_of_one_domain_leaves_phi_alone():
    algorithm, batch = make(), make_batch()
    alone = Batch(batch.x, batch.y, torch.zeros_like(batch.domain), batch.index)
    output = algorithm.step(alone, PlainStepper(algorithm))
    assert math.isnan(output.diagnostics["meta_loss"].item())
    assert algorithm.phi.abs().sum() == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_first_phi_then_a_fresh_pooled_model(family):
    """The gradient reaches all of the one or all of the other, and the pooled model starts from the beginning."""
    algorithm = make(family)
    stepper = PlainStepper(algorithm)
    network, shared = copy_parameters(algorithm.network), copy_parameters(algorithm.shared)
    algorithm.start_epoch(0, None)
    for step in range(3):
        algorithm.step(make_batch(step), stepper)
        assert not algorithm.trains_predictor()
    assert not any(changed(algorithm.network, network))
    assert all(changed(algorithm.shared, shared))
    assert (algorithm.heads[0] != algorithm.heads[1]).any()
    phi, shared = algorithm.phi.clone(), copy_parameters(algorithm.shared)
    assert phi.max() > 0
    told = algorithm.start_epoch(1, None)
    assert told["largest_phi"] == pytest.approx(phi.max().item())
    for step in range(3):
        algorithm.step(make_batch(step), stepper)
        assert algorithm.trains_predictor()
    assert all(changed(algorithm.network, network))
    assert not any(changed(algorithm.shared, shared))
    assert torch.equal(algorithm.phi, phi)


@pytest.mark.parametrize(("epochs", "share", "expected"), [(40, 0.25, 10), (10, 0.25, 3), (2, 0.9, 1), (1, 0.5, 0)])
def test_epochs_for_phi(epochs, share, expected):
    assert make(epochs=epochs, meta_share=share).meta_epochs == expected


@pytest.mark.parametrize("settings", [{"strength": 0.0}, {"phi_rate": 0.0}])
def test_without_strength_the_pooled_model_is_that_of_erm(settings):
    algorithm, batch = make(**settings), make_batch()
    algorithm.start_epoch(0, None)
    algorithm.step(batch, PlainStepper(algorithm))
    algorithm.start_epoch(1, None)
    erm = build_algorithm("erm", {}, algorithm.network, algorithm.context)
    gradients = []
    for method in (algorithm, erm):
        torch.manual_seed(1)  # of dropout
        losses = method.loss(batch).per_sample_loss
        gradients.append((losses.detach(), *torch.autograd.grad(losses.mean(), list(algorithm.network.parameters()))))
    assert all(map(torch.equal, *gradients))


def test_the_penalty_is_part_of_the_pooled_loss():
    algorithm, batch = make(strength=2.0).eval(), make_batch()
    algorithm.learns.fill_(False)
    algorithm.phi.fill_(0.1)
    head = algorithm.network.head
    penalty = 0.2 * (head.weight.abs().sum() + head.bias.abs().sum())
    expected = functional.cross_entropy(algorithm.network(batch.x), batch.y, reduction="none") + penalty
    torch.testing.assert_close(algorithm.loss(batch).per_sample_loss, expected)


SOURCES, TARGET, EACH = (2.0, 1.0, -0.5), -2.0, 16


def draw_domain(slant, count, generator):
    """Three features that follow the label everywhere, and three that follow it as their domain wills."""
    y = torch.randint(0, 2, (count,), generator=generator)
    sign = (2.0 * y - 1)[:, None]
    steady = sign + 1.5 * torch.randn(count, 3, generator=generator)
    bound = slant * sign + 0.5 * torch.randn(count, 3, generator=generator)
    return torch.cat([steady, bound], 1)[:, :, None, None], y


def learn_penalty(**settings):
    """φ of the steady and of the bound features, and accuracy on a domain that turns the bound ones around."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = Network(Backbone(nn.Flatten(), 6), 2)
    context = Context(num_classes=2, num_domains=3, num_samples=48, epochs=2, seed=0, training_domains=(0, 1, 2))
    algorithm = build_algorithm("metareg", {"meta_share": 0.5, **settings}, network, context).train()
    stepper = PlainStepper(algorithm)
    for epoch in range(2):
        algorithm.start_epoch(epoch, None)
        for _ in range(250):
            x, y = map(torch.cat, zip(*(draw_domain(slant, EACH, generator) for slant in SOURCES), strict=True))
            domain = torch.arange(len(SOURCES)).repeat_interleave(EACH)
            algorithm.step(Batch(x, y, domain, torch.arange(len(y))), stepper)
    x, y = draw_domain(TARGET, 2000, generator)
    accuracy = (network(x).argmax(1) == y).float().mean().item()
    return algorithm.phi[:, :3].mean().item(), algorithm.phi[:, 3:6].mean().item(), accuracy


def test_domain_bound_features_are_penalised_and_a_new_domain_gains():
    """The paper's claim: what is learned on one domain serves another. Without the unrolled step there is no gain."""
    steady, bound, accuracy = learn_penalty(inner_rate=0.1, phi_rate=0.1)
    assert bound > 10 * steady
    *_, plain = learn_penalty(inner_rate=0.1, phi_rate=0.0)
    assert accuracy > 0.75
    assert plain < accuracy - 0.15


def test_averaged_weights_are_those_of_the_pooled_model(tmp_path):
    """Seven steps learn φ; the averaging begins after them."""
    swad = ("train.averaging=swad", "train.swad.every=2", "train.swad.n_converge=1", "train.swad.tolerance_ratio=99.0")
    run = tiny_run(tmp_path / "run", "metareg", *swad, "method.parameters.meta_share=0.3")
    told = next(record for record in run.records if record["kind"] == "averaged")
    assert told["first_step"] == 8
    assert told["last_step"] == 21
    assert sorted(run.load_model("averaged").state_dict()) == sorted(run.load_model("last").state_dict())


def test_a_run_that_never_trained_its_predictor_has_nothing_to_average(tmp_path):
    settings = ("train.averaging=swad", "method.parameters.meta_share=0.3", "train.max_steps=5")
    with pytest.raises(UserError, match="metareg never trained its predictor"):
        tiny_run(tmp_path / "run", "metareg", *settings)


def test_one_domain_is_refused():
    context = Context(num_classes=3, num_domains=1, num_samples=8, epochs=2, seed=0)
    with pytest.raises(UserError, match="metareg learns from domain labels"):
        build_algorithm("metareg", {}, build_network("paper-cnn", 3), context)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"meta_share": 1.0}, "meta_share must be at least 0 and below 1, got 1"),
        ({"inner_steps": 0}, "inner_steps must be at least 1"),
        ({"inner_rate": 0.0}, "inner_rate must be positive"),
        ({"phi_rate": -1.0}, "phi_rate must be 0 or more"),
        ({"strength": -1.0}, "strength must be 0 or more"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        make(**settings)
