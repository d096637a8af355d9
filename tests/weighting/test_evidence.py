"""Evidence of a tie of context and label, against slow versions and made-up beds, and what is decided by it."""

from __future__ import annotations

import math

import pytest
import torch

from stablenet import UserError
from stablenet.diagnose.measure import measure_explained, one_hot
from stablenet.weighting.evidence import (
    PARTS,
    Described,
    Evidence,
    EvidenceSums,
    UnitRange,
    describe_images,
    explained_by_table,
)
from stablenet.weighting.recommended import LEAST_BORDER, SURROUNDINGS, TIED, decide


def draw(n=240, tied=0.95, seed=0, side=24):
    """Images of a coloured square on a coloured ground: the square is the label's, the ground its context's."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    context = torch.where(torch.rand(n, generator=generator) < tied, y, 1 - y)
    images = 0.5 * torch.rand(n, 3, side, side, generator=generator)
    images[:, 0] += 0.3 * context[:, None, None] + 0.2 * torch.rand(n, 1, 1, generator=generator)
    middle = slice(side // 3, 2 * side // 3)
    seen = torch.where(torch.rand(n, generator=generator) < 0.9, y, 1 - y)  # one object in ten looks like the other
    images[:, 2, middle, middle] += 0.4 * seen[:, None, None]
    return images, y, context


def gather(images, y, context=None, parts=4):
    sums = EvidenceSums(2, 0 if context is None else 2)
    for part in torch.arange(len(y)).chunk(parts):
        sums.add(y[part], part, describe_images(images[part]), None if context is None else context[part])
    return sums.weigh()


def test_the_shares_are_those_of_the_diagnosis():
    images, y, _ = draw()
    described = describe_images(images)
    sums = EvidenceSums(2)
    sums.add(y, torch.arange(len(y)), described)
    found = sums.weigh()
    assert found.border == pytest.approx(measure_explained(described.border, one_hot(y)).share, abs=2e-3)
    assert found.middle == pytest.approx(measure_explained(described.middle, one_hot(y)).share, abs=2e-3)


def test_the_least_quotient_leaves_out_each_tenth_of_the_samples():
    images, y, _ = draw(n=200)
    described, places = describe_images(images), torch.arange(200)

    def quotient(kept):
        sums = EvidenceSums(2)
        sums.add(y[kept], places[kept], Described(*(part[kept] for part in described)))
        found = sums.weigh()
        return math.log(found.border / found.middle)

    whole = quotient(places >= 0)
    without = [quotient(places % PARTS != k) for k in range(PARTS)]
    mean = sum(without) / PARTS
    error = math.sqrt((PARTS - 1) / PARTS * sum((one - mean) ** 2 for one in without))
    found = gather(images, y)
    assert found.quotient == pytest.approx(math.exp(whole), rel=1e-3)
    assert found.least == pytest.approx(math.exp(whole - 2 * error), rel=1e-3)


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


def test_batches_do_not_show():
    images, y, context = draw()
    assert gather(images, y, context, parts=7) == gather(images, y, context)


def test_normalization_is_undone_where_only_the_first_batch_is_known():
    images = draw()[0]
    images[0, :, 0, :2] = torch.tensor([0.0, 1.0])  # black and full in the first batch
    images = images.clamp(0, 1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalized = UnitRange()((images - mean[:, None, None]) / std[:, None, None])
    torch.testing.assert_close(normalized, images)


def test_grey_images_and_those_with_more_channels_are_read():
    assert UnitRange()(torch.rand(2, 1, 20, 10)).shape == (2, 3, 20, 10)
    assert UnitRange()(torch.rand(2, 4, 20, 30)).shape == (2, 3, 20, 30)
    with pytest.raises(UserError, match="batch, channels"):
        UnitRange()(torch.rand(2, 20, 30))


@pytest.mark.parametrize(("tied", "act"), [(0.95, True), (0.5, False)])
def test_surroundings_that_predict_the_label_are_found_without_their_names(tied, act):
    images, y, _ = draw(tied=tied)
    decision = decide(gather(images, y))
    assert decision.act is act
    assert decision.figures["acts"] == float(act)
    assert "contexts_predict" not in decision.figures


def test_an_object_that_reaches_the_border_is_no_context():
    images, y, _ = draw(n=1000, tied=0.5)
    images[:, 2, :, 10:14] += 0.1 * y[:, None, None]  # something slender, from edge to edge
    found = gather(images, y)
    assert found.border > LEAST_BORDER
    decision = decide(found)
    assert not decision.act
    assert "object" in decision.reason


def test_many_classes_in_few_surroundings_are_seen():
    """Twenty classes on two grounds: even a ground that never changes explains 1/19 of them."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(1200) % 20
    ground = torch.where(torch.rand(1200, generator=generator) < 0.9, y % 2, 1 - y % 2)
    images = 0.5 * torch.rand(1200, 3, 24, 24, generator=generator)
    images[:, 0] += 0.4 * ground[:, None, None]
    images[:, 2, 8:16, 8:16] += 0.002 * y[:, None, None]
    sums = EvidenceSums(25)  # five of them never occur
    sums.add(y, torch.arange(1200), describe_images(images))
    found = sums.weigh()
    assert found.classes == 20
    assert found.border < LEAST_BORDER
    assert decide(found).act


@pytest.mark.parametrize(("paper", "act"), [("white", False), ("one of two", True)])
def test_an_object_that_reaches_a_blank_border_is_no_context(paper, act):
    """Strokes from edge to edge on white paper: the border shows as much of them as the middle does."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 2
    images = torch.ones(600, 3, 32, 32)
    drawn = torch.rand(600, 32, generator=generator) < (0.05 + 0.15 * y)[:, None]
    images.permute(0, 2, 1, 3)[drawn] = 0.1  # few or many of them
    if paper == "one of two":
        tint = torch.where(torch.rand(600, generator=generator) < 0.9, y, 1 - y)
        images[:, 2] -= 0.3 * tint[:, None, None] * images[:, 2]
    found = gather(images, y)
    assert found.least > SURROUNDINGS
    assert found.blank == (1 if paper == "white" else pytest.approx(0.5, abs=0.05))
    decision = decide(found)
    assert decision.act is act
    assert ("blank" in decision.reason) is not act


def test_few_images_do_not_decide_that_it_is_the_surroundings():
    images, y, _ = draw(n=60, tied=0.75)
    found = gather(images, y)
    assert found.quotient > SURROUNDINGS > found.least
    assert not decide(found).act
    assert "chance" in decide(found).reason


def test_the_colour_of_the_object_itself_is_left_alone():
    """Fruit that is red where it is ripe, and coloured digits: nobody can tell them apart by their pixels."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 2
    colour = torch.where(torch.rand(300, generator=generator) < 0.9, y, 1 - y)
    images = torch.zeros(300, 3, 28, 28)
    images[torch.arange(300), colour, 8:20, 8:20] = torch.rand(300, 12, 12, generator=generator)
    assert not decide(gather(images, y)).act


@pytest.mark.parametrize(("tied", "act"), [(0.95, True), (0.5, False)])
def test_named_contexts_decide_alone(tied, act):
    images, y, context = draw(tied=tied)
    images[:] = images[:1]  # the images say nothing
    decision = decide(gather(images, y, context), by_contexts=True)
    assert decision.act is act
    assert "named contexts" in decision.reason


def test_named_contexts_that_say_nothing_keep_it_from_acting_and_never_make_it_act():
    images, y, context = draw(tied=0.95)
    assert decide(gather(images, y, context)).act
    shuffled = context[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    held_back = decide(gather(images, y, shuffled))
    assert not held_back.act
    assert held_back.reason.endswith("but the named contexts predict 0 % of the label's entropy, too little to act on")
    assert decide(gather(images, y, torch.zeros_like(context))).act  # one context is none
    images[:] = images[:1]
    assert not decide(gather(images, y, context)).act


def images_say(border=0.3, quotient=1.0, least=0.9):
    return Evidence(border=border, middle=border / quotient, quotient=quotient, least=least)


@pytest.mark.parametrize(
    ("evidence", "act"),
    [
        (Evidence(), True),
        (Evidence(contexts=TIED), True),
        (Evidence(contexts=TIED - 0.01), False),
        (images_say(least=SURROUNDINGS), True),
        (images_say(least=SURROUNDINGS - 0.01), False),
        (images_say(border=LEAST_BORDER), True),
        (images_say(border=LEAST_BORDER - 0.01), False),
        (images_say(quotient=0.4, least=0.35), False),
    ],
)
def test_the_rule(evidence, act):
    assert decide(evidence).act is act
    assert decide(evidence).reason
