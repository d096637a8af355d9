"""Epi-FCR: its loss against its formula, what steps on which term, and partners from other domains."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms import Context, build_algorithm
from stablenet.algorithms.episodes import choose_pair
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import build_network
from tests.algorithms.toys import fit, toy_batch, toy_method

CLASSES = 3
DOMAINS = (1, 3, 4)
SOON = {"warmup": 0}  # the episodic terms count from the first step on
ALONE = {"feature": 0.0, "classifier": 0.0, "random": 0.0, **SOON}


def make(method="epi-fcr", **settings):
    torch.manual_seed(0)
    network = build_network("paper-cnn", CLASSES, parameters={"image_size": 12, "dropout": 0.0})
    context = Context(num_classes=CLASSES, num_domains=6, num_samples=9, epochs=1, seed=0, training_domains=DOMAINS)
    return build_algorithm(method, settings, network, context)


def make_batch(domain=(3, 1, 4, 3, 1), seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(len(domain), 3, 12, 12, generator=generator)
    return Batch(x, torch.arange(len(domain)) % CLASSES, torch.tensor(domain), torch.arange(len(domain)))


def use_pair(monkeypatch, held_out, partner):
    monkeypatch.setattr("stablenet.algorithms.episodes.choose_pair", lambda present, chance: (held_out, partner))


def gradients(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def test_the_loss_is_its_formula(monkeypatch):
    use_pair(monkeypatch, 1, 2)
    algorithm, batch = make(**SOON, feature=3.0, classifier=0.7, random=0.2).eval(), make_batch()
    output = algorithm.loss(batch)
    agg, partner = algorithm.network, algorithm.domain_networks[2]
    for row, domain in enumerate(batch.domain.tolist()):
        x, y = batch.x[row : row + 1], batch.y[row : row + 1]
        own = algorithm.domain_networks[DOMAINS.index(domain)]
        features = agg.forward_features(x)
        expected = functional.cross_entropy(agg(x), y) + functional.cross_entropy(own(x), y)
        shuffled = features @ algorithm.random_weight.T + algorithm.random_bias
        expected = expected + 0.2 * functional.cross_entropy(shuffled, y)
        if domain == DOMAINS[1]:
            expected = expected + 0.7 * functional.cross_entropy(agg.head(partner.forward_features(x)), y)
            expected = expected + 3.0 * functional.cross_entropy(partner.head(features), y)
        torch.testing.assert_close(output.per_sample_loss[row], expected)


@pytest.mark.parametrize("strength", ["feature", "classifier", "random"])
def test_only_the_aggregate_steps_on_an_episodic_term(monkeypatch, strength):
    """Feature and random terms move its features, the classifier term its classifier, none a domain's network."""
    use_pair(monkeypatch, 0, 1)
    plain, episodic, batch = make(**ALONE), make(**{**ALONE, strength: 5.0}), make_batch()
    for algorithm in (plain, episodic):
        algorithm.train().loss(batch).per_sample_loss.mean().backward()

    def moved(part):
        one, other = (gradients(getattr(algorithm.network, part)) for algorithm in (plain, episodic))
        return not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    assert moved("body") == (strength != "classifier")
    assert moved("head") == (strength == "classifier")
    for one, other in zip(gradients(plain.domain_networks), gradients(episodic.domain_networks), strict=True):
        assert torch.equal(one, other)


def test_a_domains_network_learns_from_its_own_samples_alone():
    algorithm, batch = make(**ALONE).train(), make_batch()
    losses = algorithm.loss(batch).per_sample_loss
    losses[batch.domain == 3].sum().backward()
    first, second, third = (gradients(network) for network in algorithm.domain_networks)
    assert all(grad.abs().sum() > 0 for grad in second)
    assert not any(grad is not None and (grad != 0).any() for grad in (*first, *third))


@pytest.mark.parametrize("settings", [ALONE, {"warmup": 9}])
def test_without_strength_and_before_its_time_the_aggregate_is_erm(settings):
    batch, algorithm, erm = make_batch(), make(**settings).eval(), make("erm").eval()
    output, expected = algorithm.loss(batch), erm.loss(batch)
    torch.testing.assert_close(output.diagnostics["aggregate_loss"], expected.per_sample_loss.mean().detach())
    output.per_sample_loss.mean().backward()
    expected.per_sample_loss.mean().backward()
    torch.testing.assert_close(gradients(algorithm.network), gradients(erm.network))


def test_gradients_reach_everything_that_learns():
    algorithm = make(**SOON).train()
    algorithm.loss(make_batch()).per_sample_loss.mean().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in algorithm.parameters())


def test_the_warm_up_is_counted_and_survives():
    algorithm = make(warmup=2).train()
    for expected in (False, False, True):
        again = make(warmup=2).train()
        again.load_state_dict(copy.deepcopy(algorithm.state_dict()))
        for method in (algorithm, again):
            told = method.loss(make_batch()).diagnostics
            plain = functional.cross_entropy(method.network(make_batch().x), make_batch().y)
            assert (told["aggregate_loss"] > 1.01 * plain) == expected


def test_the_random_classifier_never_changes():
    algorithm = make(**SOON)
    before = algorithm.random_weight.clone()
    fit(algorithm, make_batch(), steps=3)
    assert torch.equal(algorithm.random_weight, before)
    assert "random_weight" in algorithm.state_dict()


def test_pairs_are_any_domain_of_the_batch_and_any_other():
    present = [True, False, True, True]
    grid = [(a / 60, b / 60) for a in range(60) for b in range(60)]
    pairs = [choose_pair(present, chance) for chance in grid]
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    assert counts == {(j, i): 400 for j in (0, 2, 3) for i in range(4) if i != j}


def test_pairs_differ_from_step_to_step(monkeypatch):
    chances = []
    monkeypatch.setattr(
        "stablenet.algorithms.episodes.choose_pair", lambda present, chance: chances.append(tuple(chance)) or (0, 1)
    )
    algorithm = make(**SOON).train()
    for _ in range(4):
        algorithm.loss(make_batch())
    assert len(set(chances)) == 4
    assert all(0 <= number < 1 for chance in chances for number in chance)


def statistics(module):
    return [buffer.clone() for name, buffer in module.named_buffers() if "running" in name]


@pytest.mark.parametrize("frozen", [True, False])
def test_batchnorm_is_frozen_on_demand(frozen):
    algorithm = make(**SOON, freeze_batchnorm=frozen).train()
    before = statistics(algorithm)
    algorithm.eval()
    algorithm.train()  # as after a validation
    algorithm.loss(make_batch())
    same = [torch.equal(one, other) for one, other in zip(statistics(algorithm), before, strict=True)]
    assert all(same) if frozen else not any(same)


def test_a_partner_keeps_its_own_domains_statistics(monkeypatch):
    use_pair(monkeypatch, 0, 2)
    algorithm = make(**SOON, freeze_batchnorm=False).train()
    partner = algorithm.domain_networks[2]
    before = statistics(partner)
    algorithm.loss(make_batch(domain=(1, 3, 1, 3)))
    assert all(torch.equal(one, other) for one, other in zip(statistics(partner), before, strict=True))
    assert all(module.training for module in partner.modules())


def test_domains_start_with_the_same_features_and_classifiers_of_their_own():
    algorithm = make()
    for network in algorithm.domain_networks:
        assert torch.equal(network.body.fc[1].weight, algorithm.network.body.fc[1].weight)
    heads = [algorithm.network.head.weight, *(network.head.weight for network in algorithm.domain_networks)]
    assert not any(torch.equal(a, b) for k, a in enumerate(heads) for b in heads[:k])


def test_wrong_settings_are_named():
    with pytest.raises(UserError, match=r"method\.parameters\.feature must be 0 or more, got -1"):
        make(feature=-1.0)


def make_shifted(count):
    """Two domains: the class is the sign of the first number, which the second domain sees turned into the second."""
    generator = torch.Generator().manual_seed(0)
    y, domain = torch.randint(2, (2, count), generator=generator)
    rows = torch.randn(count, 4, generator=generator)
    rows[torch.arange(count), domain] = (2.0 * y - 1) * (1 + rows[torch.arange(count), domain].abs())
    return toy_batch(rows, y, domain)


def accept_by_partners(feature):
    """How often a domain's classifier is right on the aggregate features of the other domain's samples."""
    body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh())
    algorithm = toy_method("epi-fcr", {"warmup": 20, "feature": feature}, body, 8, domains=2)
    batch = make_shifted(128)
    network = fit(algorithm, batch, steps=120, rate=0.01)
    with torch.no_grad():
        features = network.forward_features(batch.x)
        by_others = torch.stack([other.head(features) for other in algorithm.domain_networks], 1)
    chosen = by_others[torch.arange(len(batch.y)), 1 - batch.domain].argmax(1)
    return (chosen == batch.y).float().mean().item()


def test_features_come_to_serve_classifiers_that_never_saw_their_domain():
    """The paper's claim of its cross-domain episodes, and that it hangs on their term."""
    assert accept_by_partners(feature=2.0) > 0.95
    assert accept_by_partners(feature=0.0) < 0.85
