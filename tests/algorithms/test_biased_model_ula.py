"""uLA: its table by hand, its shift, what its judge weighs."""

import pytest
import torch
from torch.nn import functional

from stablenet.algorithms import build_algorithm
from stablenet.algorithms.biased_model import LinearProxy, condition, tabulate
from stablenet.errors import UserError
from stablenet.models import build_network
from tests.algorithms.biased import draw, train
from tests.algorithms.test_domains import make_context
from tests.algorithms.test_methods import make, make_batch
from tests.algorithms.toys import loss_and_gradient


def test_the_table_by_hand():
    told = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    table = tabulate(told, y)
    expected = [[0.9 / 3, 0.8 / 3], [0.1 / 3, 1.2 / 3]]
    assert table.tolist() == [pytest.approx(row) for row in expected]
    found = condition(table).exp()
    assert found.tolist() == [pytest.approx([0.9 / 1.7, 0.8 / 1.7]), pytest.approx([0.1 / 1.3, 1.2 / 1.3])]


def test_the_proxy_is_at_its_minimum():
    samples = draw(300, 0.9, 0)
    features = samples.x.flatten(1)
    proxy = LinearProxy(features, samples.y, 2, ridge=0.05)
    z = ((features - features.mean(0)) / features.std(0, correction=0)).double()
    slopes = proxy._slopes[0].double().requires_grad_()
    logits = z @ slopes + proxy._level[0].double()
    (functional.cross_entropy(logits, samples.y) + 0.05 * slopes.square().sum()).backward()
    assert slopes.grad.abs().max() < 1e-4
    torch.testing.assert_close(proxy(features).double(), logits.detach(), atol=1e-4, rtol=0)


def test_offsets_are_the_logarithms_of_the_predicted_classes_row():
    algorithm = train("ula", {"strength": 2.0}, epochs=1)
    samples = draw(1000, 0.95, 0)
    first = train("ula", {"strength": 2.0}, epochs=0)
    index, y, features = first.read(samples)
    predicted = LinearProxy(features, y, 2, 0.1)(features)
    joint = torch.zeros(2, 2, dtype=torch.float64)
    for told, label in zip(predicted.double().softmax(1), y.tolist(), strict=True):
        joint[:, label] += told
    rows = (joint / joint.sum(1, keepdim=True)).log()[predicted.argmax(1)]
    torch.testing.assert_close(algorithm.offsets[index], (2 * rows).float(), atol=1e-3, rtol=0)
    prior = (torch.bincount(y) / len(y)).log()
    torch.testing.assert_close(algorithm.sample_columns()["context"], rows.float() - prior, atol=1e-3, rtol=0)
    agree = (predicted.argmax(1) == samples.domain).float().mean()
    assert agree > 0.97  # the proxy learns the context, not the class


def test_the_shift_enters_the_loss_alone():
    algorithm, batch = make("ula").eval(), make_batch()
    algorithm.offsets[:] = torch.randn(algorithm.offsets.shape, generator=torch.Generator().manual_seed(0))
    output = algorithm.loss(batch)
    logits = algorithm.predictor()(batch.x)
    expected = functional.cross_entropy(logits + algorithm.offsets[batch.index], batch.y, reduction="none")
    torch.testing.assert_close(output.per_sample_loss, expected)
    assert output.diagnostics["accuracy"] == (logits.argmax(1) == batch.y).float().mean()


def test_equals_erm_without_strength():
    ours = train("ula", {"strength": 0.0}, epochs=1)
    assert not ours.offsets.any()
    for one, two in zip(
        loss_and_gradient(make("ula"), make_batch()), loss_and_gradient(make("erm"), make_batch()), strict=True
    ):
        assert torch.equal(one, two)


def test_the_judge_counts_pairs_of_class_and_predicted_class_the_same():
    validation = draw(200, 0.9, 5)
    algorithm = train("ula", epochs=1, validation=validation)
    weights = algorithm.judge_epochs().weights()
    assert weights.mean().item() == pytest.approx(1, rel=1e-5)
    fresh = train("ula", epochs=0)
    _, y, features = fresh.read(draw(1000, 0.95, 0))
    predicted = LinearProxy(features, y, 2, 0.1)(fresh.read(validation)[2]).argmax(1)
    totals = [weights[(validation.y == a) & (predicted == b)].sum().item() for a in (0, 1) for b in (0, 1)]
    assert totals == pytest.approx([50.0] * 4, rel=1e-4)


def test_an_unknown_tap_is_refused_at_once():
    network = build_network("mobilenet_v2", 3)
    with pytest.raises(UserError, match="nowhere"):
        build_algorithm("ula", {"taps": ["nowhere"]}, network, make_context((0,)))
