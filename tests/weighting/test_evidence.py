"""Evidence of a tie of context and label, against slow versions and made-up data, and what is decided by it."""

from __future__ import annotations

import math

import pytest
import torch

from stablenet.diagnose.measure import measure_explained, one_hot
from stablenet.weighting.border import UnitRange, describe_images
from stablenet.weighting.evidence import Evidence, EvidenceSums, explained_by_table
from stablenet.weighting.recommended import LEAST_BORDER, MUCH_BORDER, SURROUNDINGS, TIED, decide


def draw(n=240, tied=0.95, seed=0, side=24):
    """Images of a coloured square on a coloured ground: the square is the label's, the ground its context's."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    context = torch.where(torch.rand(n, generator=generator) < tied, y, 1 - y)
    images = 0.2 * torch.rand(n, 3, side, side, generator=generator)
    images[:, 0] += 0.6 * context[:, None, None]
    middle = slice(side // 3, 2 * side // 3)
    images[:, 2, middle, middle] += 0.6 * y[:, None, None]
    return images, y, context


def gather(images, y, context=None, parts=4, **kwargs):
    sums = EvidenceSums(2, 0 if context is None else 2, **kwargs)
    for part in torch.arange(len(y)).chunk(parts):
        sums.add(y[part], images[part], None if context is None else context[part])
    return sums.weigh()


def test_the_shares_are_those_of_the_diagnosis():
    images, y, _ = draw()
    whole, border = describe_images(images)
    sums = EvidenceSums(2)
    sums.add_features(y, whole, border)
    found = sums.weigh()
    assert found.whole == pytest.approx(measure_explained(whole, one_hot(y)).share, abs=2e-3)
    assert found.border == pytest.approx(measure_explained(border, one_hot(y)).share, abs=2e-3)


def test_a_table_is_predicted_by_the_others_of_the_context():
    context = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])
    y = torch.tensor([0, 0, 1, 0, 1, 1, 0, 1])
    table = torch.zeros(3, 2, dtype=torch.float64)
    for k, c in zip(context.tolist(), y.tolist(), strict=True):
        table[k, c] += 1
    prior = [0.5, 0.5]
    loss = 0.0
    for k, c in zip(context.tolist(), y.tolist(), strict=True):
        others = float(table[k, c]) - 1 + math.sqrt(2) * prior[c]
        loss -= math.log(others / (float(table[k].sum()) - 1 + math.sqrt(2))) / 8
    chance = math.sqrt(2 * 2 * 1) / (2 * 8 * math.log(2))
    assert explained_by_table(table) == pytest.approx(max(0.0, 1 - loss / math.log(2) - 2 * chance))
    large = explained_by_table(50 * table)
    loss = 0.0
    for k, c in zip(context.tolist(), y.tolist(), strict=True):
        others = 50 * float(table[k, c]) - 1 + math.sqrt(2) * prior[c]
        loss -= math.log(others / (50 * float(table[k].sum()) - 1 + math.sqrt(2))) / 8
    assert large == pytest.approx(1 - loss / math.log(2) - 2 * chance / 50)
    assert large > 0
    assert explained_by_table(100 * torch.eye(3, dtype=torch.float64)) > 0.9


def test_contexts_of_few_samples_do_not_predict_by_chance():
    generator = torch.Generator().manual_seed(0)
    table = torch.zeros(200, 10, dtype=torch.float64)
    table.view(-1).index_add_(
        0, torch.randint(2000, (4000,), generator=generator), torch.ones(4000, dtype=torch.float64)
    )
    assert explained_by_table(table) == 0


def test_batches_and_normalization_do_not_show():
    images, y, context = draw()
    images[0, :, 0, :2] = torch.tensor([0.0, 1.0])  # black and full in the first batch
    images = images.clamp(0, 1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = gather(images, y, context)
    assert gather(images, y, context, parts=7) == expected
    found = gather((images - mean[:, None, None]) / std[:, None, None], y, context)
    assert found.border == pytest.approx(expected.border, abs=1e-4)


def test_large_and_grey_images_are_read():
    unit = UnitRange()
    assert unit(torch.rand(2, 1, 200, 100)).shape == (2, 3, 64, 64)
    assert unit(torch.rand(2, 4, 20, 30)).shape == (2, 3, 20, 30)


@pytest.mark.parametrize(("tied", "act"), [(0.95, True), (0.5, False)])
@pytest.mark.parametrize("named", [False, True])
def test_a_tie_is_found_without_and_with_its_name(tied, act, named):
    images, y, context = draw(tied=tied)
    decision = decide(gather(images, y, context if named else None))
    assert decision.act is act
    assert decision.figures["acts"] == float(act)


def test_an_object_that_reaches_the_border_is_no_context():
    images, y, _ = draw(tied=0.5)
    images[:, 2, :, 10:14] += 0.6 * y[:, None, None]
    found = gather(images, y)
    assert found.border > LEAST_BORDER
    whole = Evidence(border=found.border, whole=found.border / SURROUNDINGS * 1.01)
    assert not decide(whole).act
    assert "middle" in decide(whole).reason


@pytest.mark.parametrize(
    ("evidence", "act"),
    [
        (Evidence(), True),
        (Evidence(contexts=TIED), True),
        (Evidence(contexts=TIED - 0.01), False),
        (Evidence(border=LEAST_BORDER, whole=LEAST_BORDER), True),
        (Evidence(border=LEAST_BORDER - 0.01, whole=LEAST_BORDER - 0.01), False),
        (Evidence(border=MUCH_BORDER, whole=MUCH_BORDER, contexts=0.0), True),
        (Evidence(border=MUCH_BORDER - 0.01, whole=MUCH_BORDER - 0.01, contexts=0.0), False),
        (Evidence(border=0.0, whole=0.5, contexts=TIED), True),
    ],
)
def test_the_rule(evidence, act):
    assert decide(evidence).act is act
    assert decide(evidence).reason
