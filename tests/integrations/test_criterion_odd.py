"""DatasetCriterion on odd sets: it does not crash, nothing becomes NaN, and what it cannot do is refused at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stablenet import UserError
from stablenet.integrations import DatasetCriterion, Indexed

G = torch.Generator().manual_seed(0)
ALTERNATING = torch.arange(60) % 2


def draw(*shape):
    return torch.rand(*shape, generator=G)


SETS = {
    "five images of each of twelve classes": (draw(60, 3, 8, 8), torch.arange(60) % 12),
    "one class": (draw(60, 3, 8, 8), torch.zeros(60, dtype=torch.long)),
    "a class of one image": (draw(60, 3, 8, 8), (torch.arange(60) == 7).long()),
    "one image many times": (draw(1, 3, 8, 8).expand(60, -1, -1, -1), ALTERNATING),
    "grey": (draw(60, 1, 8, 8), ALTERNATING),
    "tiny": (draw(60, 3, 3, 3), ALTERNATING),
    "the ground says it all": (draw(60, 3, 8, 8) * (0.2 + 0.8 * ALTERNATING[:, None, None, None]), ALTERNATING),
    "every image a class": (draw(60, 3, 8, 8), torch.arange(60)),
}


def build(x, y, **options):
    classes = int(y.max()) + 1 if not y.is_floating_point() else 2
    model = nn.Sequential(nn.Conv2d(x.shape[1], 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))
    samples = TensorDataset(x, y)
    model(x[:1])
    return model, samples, DatasetCriterion(model, ["1"], samples, num_classes=classes, epochs=2, **options)


@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize("act", ["auto", "always"])
@pytest.mark.parametrize("name", SETS)
def test_losses_and_gradients_are_finite(name, act, pretrained):
    model, samples, criterion = build(*SETS[name], act=act, pretrained=pretrained)
    for _ in range(2):
        for index, x, y in DataLoader(Indexed(samples), batch_size=20):
            loss = criterion(model(x), y, index)
            model.zero_grad()
            loss.backward()
            assert loss.isfinite()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    if criterion.weighting is not None:
        weights = criterion.weighting(torch.arange(60))
        assert bool((weights.isfinite() & (weights >= 0)).all())
        assert float(weights.sum()) == pytest.approx(60, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in SETS if name != "the ground says it all"])
def test_where_nothing_is_to_be_gained_it_is_the_plain_loss(name):
    x, y = SETS[name]
    model, _, criterion = build(x, y)
    assert not criterion.decision.act, criterion.decision.reason
    outputs = model(x)
    expected = nn.functional.cross_entropy(outputs, y, reduction="none").mean()
    assert torch.equal(criterion(outputs, y, torch.arange(60)), expected)


@pytest.mark.parametrize("act", ["auto", "always"])
@pytest.mark.parametrize("y", [draw(60), draw(60, 1), (draw(60, 3) > 0.5).long(), (draw(60) > 0.5).float()])
def test_regressions_and_several_labels_are_refused(act, y):
    with pytest.raises(UserError, match="one class, a whole number"):
        build(draw(60, 3, 8, 8), y, act=act)


def test_an_image_with_nan_is_named():
    x = draw(60, 3, 8, 8)
    x[4, 0, 0, 0] = float("nan")
    with pytest.raises(UserError, match="NaN"):
        build(x, ALTERNATING)
