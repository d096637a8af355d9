"""DG-MMLD: its loss by hand, its pseudo-domains on planted styles, and features that hide them."""

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional

from stablenet.algorithms import Context, build_algorithm
from stablenet.algorithms.dg_mmld import class_entropy, rise
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import build_network
from stablenet.models.network import Backbone, Network
from tests.algorithms.test_dg_mmld_pseudo_domains import agree
from tests.algorithms.test_methods import CLASSES, make, make_batch
from tests.algorithms.toys import loss_and_gradient

SIDE, STYLES = 12, 3
TINTS = torch.tensor([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]])
CONTRASTS = torch.tensor([0.6, 1.0, 1.6])


def plant(number, seed=0):
    """Bars in three places are the classes; tints and contrasts, which have nothing to do with them, the styles."""
    generator = torch.Generator().manual_seed(seed)
    y, style = torch.arange(number) % CLASSES, torch.arange(number) // CLASSES % STYLES
    x = 0.3 * torch.randn(number, 3, SIDE, SIDE, generator=generator)
    for row, label in enumerate(y):
        x[row, :, 1 + 4 * label : 3 + 4 * label] += 1.0
    x = x * CONTRASTS[style].view(-1, 1, 1, 1) + TINTS[style].view(-1, 3, 1, 1)
    return Batch(x, y, style, torch.arange(number))


def take(batch, rows):
    return Batch(*(column[rows] for column in (batch.x, batch.y, batch.domain, batch.index)))


class InTwoBatches:
    def __init__(self, whole):
        self._whole = whole

    def batches(self):
        half = len(self._whole.y) // 2
        return iter([take(self._whole, slice(0, half)), take(self._whole, slice(half, None))])


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(16 * 9, 16), nn.Tanh())

    def forward(self, images):
        return self.out(self.stage2(self.stage1(images)))


def build(number, epochs=1, **parameters):
    torch.manual_seed(0)
    network = Network(Backbone(Body(), 16, {"stage1": "stage1", "stage2": "stage2"}), CLASSES)
    context = Context(num_classes=CLASSES, num_domains=STYLES, num_samples=number, epochs=epochs, seed=0)
    return build_algorithm("dg-mmld", parameters, network, context).train()


def without_dropout(algorithm):
    for module in algorithm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return algorithm


def test_strength_rises_from_nothing_to_almost_one():
    assert rise(0.0) == 0.0
    assert rise(0.5) == pytest.approx((1 - math.exp(-5)) / (1 + math.exp(-5)))
    assert 0.9999 < rise(1.0) < 1
    algorithm, data = build(30, epochs=4), InTwoBatches(plant(30))
    for epoch in range(4):
        algorithm.start_epoch(epoch, data)
        assert algorithm.strength.item() == pytest.approx(rise(epoch / 4))


def test_entropy():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, math.log(3.0), -100.0, -100.0]])
    expected = [math.log(4), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))]
    assert class_entropy(logits).tolist() == pytest.approx(expected, rel=1e-6)


def test_loss_by_hand():
    algorithm, batch = without_dropout(build(12, epochs=2, adversary=0.7, entropy=0.4)), take(plant(12), slice(2, 10))
    algorithm.domains.copy_(torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 0]))
    algorithm.weights.copy_(torch.tensor([0.5, 1.0, 1.5]))
    algorithm.strength.fill_(0.8)
    domain = algorithm.domains[batch.index]
    features = algorithm.network.forward_features(batch.x)
    logits, told = algorithm.network.head(features), algorithm.discriminator(features)
    weights = torch.tensor([0.5, 1.0, 1.5])[domain]
    probability = torch.softmax(logits, 1)
    expected = functional.cross_entropy(logits, batch.y)
    expected = expected + 0.7 * functional.cross_entropy(told, domain, torch.tensor([0.5, 1.0, 1.5]))
    expected = expected - 0.4 * 0.8 * (probability * probability.log()).sum(1).mean()
    output = algorithm.loss(batch)
    torch.testing.assert_close(output.per_sample_loss.mean(), expected)
    right = (told.argmax(1) == domain).float().mean().item()
    assert output.diagnostics["domain_accuracy"].item() == pytest.approx(right)
    single = -told[3].log_softmax(0)[domain[3]] * weights[3] / weights.mean()  # of the fourth sample alone
    others = functional.cross_entropy(logits, batch.y, reduction="none")[3] + 0.4 * 0.8 * class_entropy(logits)[3]
    torch.testing.assert_close(output.per_sample_loss[3], 0.7 * single + others)


def test_without_adversary_and_entropy_it_is_erm():
    name = {"adversary": 0.0, "entropy": 0.0}
    torch.manual_seed(0)
    context = Context(num_classes=CLASSES, num_domains=1, num_samples=24, epochs=1, seed=0)
    ours = build_algorithm("dg-mmld", name, build_network("paper-cnn", CLASSES, parameters={"image_size": 32}), context)
    erm = make("erm")
    erm.network.load_state_dict(ours.network.state_dict())
    ours.strength.fill_(0.9)
    for one, other in zip(loss_and_gradient(ours, make_batch()), loss_and_gradient(erm, make_batch()), strict=True):
        assert torch.equal(one, other)


def test_first_epoch_trains_the_network_on_cross_entropy_alone():
    """Then its discriminator learns from features that take no notice."""
    ours, erm = make("dg-mmld"), make("erm")
    erm.network.load_state_dict(ours.network.state_dict())
    _, *gradients = loss_and_gradient(ours, make_batch())
    _, *plain = loss_and_gradient(erm, make_batch())
    for one, other in zip(gradients, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    assert all(p.grad.abs().sum() > 0 for p in ours.discriminator.parameters())


def test_network_climbs_the_domain_loss_that_the_discriminator_descends():
    algorithm, batch = without_dropout(build(12, entropy=0.0)), plant(12)
    algorithm.domains.copy_(batch.domain)
    algorithm.strength.fill_(0.5)
    _, *with_adversary = loss_and_gradient(algorithm, batch)
    algorithm.strength.fill_(0.0)
    _, *plain = loss_and_gradient(algorithm, batch)
    algorithm.zero_grad()
    told = algorithm.discriminator(algorithm.network.forward_features(batch.x))
    functional.cross_entropy(told, batch.domain).backward()
    for full, alone, parameter in zip(with_adversary, plain, algorithm.network.parameters(), strict=True):
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(full - alone, -0.5 * own, rtol=1e-4, atol=1e-6)


def test_every_parameter_learns():
    algorithm, batch = build(12), plant(12)
    algorithm.strength.fill_(0.5)
    algorithm.loss(batch).per_sample_loss.mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in algorithm.parameters())
    grouped = [p for group in algorithm.parameter_groups() for p in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in algorithm.parameters()}


def test_heads_have_their_own_rate():
    algorithm = build(12, head_rate=10.0)
    heads = {id(p) for part in (algorithm.network.head, algorithm.discriminator) for p in part.parameters()}
    for group in algorithm.parameter_groups():
        assert {id(p) in heads for p in group["params"]} == {group["rate_scale"] == 10.0}


def test_planted_styles_are_recovered_by_index():
    whole = plant(90)
    shuffled = take(whole, torch.randperm(90, generator=torch.Generator().manual_seed(0)))
    algorithm = build(90)
    told = algorithm.start_epoch(0, InTwoBatches(shuffled))
    assert agree(algorithm.domains.numpy(), whole.domain.numpy()) > 0.95
    assert told["domain_information"] > 0.85 > 0.2 > told["class_information"]
    assert told["smallest_share"] == pytest.approx(1 / 3, abs=0.05)
    assert algorithm.training
    assert algorithm.network.training
    assert [str(tap) for tap in algorithm.network.taps] == ["last"]


def test_clustering_leaves_the_network_as_it_was():
    """In evaluation mode: no statistics move."""
    algorithm = make("dg-mmld").train()
    before = {name: value.clone() for name, value in algorithm.network.state_dict().items()}
    algorithm.start_epoch(0, InTwoBatches(make_batch()))
    assert all(torch.equal(value, before[name]) for name, value in algorithm.network.state_dict().items())


def test_labels_stay_from_epoch_to_epoch():
    algorithm, data = build(90, epochs=4), InTwoBatches(plant(90))
    algorithm.start_epoch(0, data)
    before = algorithm.domains.clone()
    for epoch in range(1, 4):
        assert algorithm.start_epoch(epoch, data)["moved"] == 0.0
        assert torch.equal(algorithm.domains, before)


def probe_style(adversary, epochs=20):
    """Train; what a linear probe reads of the style in new samples' features, and the accuracy on their classes."""
    data, fresh = plant(180), plant(180, seed=1)
    algorithm = build(180, epochs, adversary=adversary, entropy=0.0)
    optimizer = torch.optim.SGD(algorithm.parameters(), 0.02, momentum=0.9)
    for epoch in range(epochs):
        algorithm.start_epoch(epoch, InTwoBatches(data))
        for rows in torch.randperm(180).split(30):
            optimizer.zero_grad()
            algorithm.loss(take(data, rows)).per_sample_loss.mean().backward()
            optimizer.step()
    network = algorithm.eval().network
    with torch.no_grad():
        seen, new = network.forward_features(data.x), network.forward_features(fresh.x)
        accuracy = (network.head(new).argmax(1) == fresh.y).float().mean().item()
    probe = LogisticRegression(max_iter=1000).fit(seen.numpy(), data.domain.numpy())
    return probe.score(new.numpy(), fresh.domain.numpy()), accuracy


def test_claim_features_hide_domains_that_nobody_named():
    """Style labels are used by the probe alone. Without the adversary it reads them; with it, hardly."""
    hidden, accuracy = probe_style(adversary=1.0)
    told, plain_accuracy = probe_style(adversary=0.0)
    assert told > 0.7
    assert hidden < told - 0.15
    assert min(accuracy, plain_accuracy) > 0.95


def test_backbone_without_stages_is_refused_clearly():
    network = build_network("mobilenet_v2", CLASSES)
    network.stages.clear()  # as a backbone of one's own
    context = Context(num_classes=CLASSES, num_domains=1, num_samples=8, epochs=1, seed=0)
    with pytest.raises(UserError, match=r"has no stage1: set method\.parameters\.taps"):
        build_algorithm("dg-mmld", {}, network, context)
    assert build_algorithm("dg-mmld", {"taps": ["features.3"]}, network, context)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pseudo_domains": 1}, "at least 2"),
        ({"taps": []}, "taps must be a non-empty list"),
        ({"taps": ["stage1:maps"]}, "taps must be feature vectors"),
        ({"adversary": -1.0}, "must be 0 or more"),
        ({"head_rate": 0.0}, "must be positive"),
    ],
)
def test_wrong_settings_are_named(parameters, message):
    with pytest.raises(UserError, match=message):
        build(8, **parameters)
