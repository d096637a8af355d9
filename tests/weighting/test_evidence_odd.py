"""Sets that are odd: nothing to gain there is not mistaken for something, and no figure is NaN."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
import torch

from stablenet import UserError
from stablenet.weighting.evidence import DEVIATIONS, Described, EvidenceSums, describe_images, explain, fingerprint
from stablenet.weighting.recommended import decide


def look(images, y, num_classes=None, repeats=1):
    """images: (n, 3, h, w).   repeats: how often every image is in the set."""
    described = Described(*(part.repeat_interleave(repeats, 0) for part in describe_images(images)))
    y = y.repeat_interleave(repeats)
    sums = EvidenceSums(num_classes or int(y.max()) + 1)
    sums.add(y, torch.arange(len(y)), described)
    decision = decide(sums.weigh())
    assert all(value is None or math.isfinite(value) for value in astuple(decision.evidence))
    return decision


def draw(n, seed, side=24):
    """Images of a coloured square on a coloured ground, neither of them of any class."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n, 3, 1, 1, generator=generator).expand(-1, -1, side, side).clone()
    quarter = side // 4
    images[:, :, quarter:-quarter, quarter:-quarter] = torch.rand(n, 3, 1, 1, generator=generator)
    return (images + 0.3 * torch.rand(n, 3, side, side, generator=generator)).clamp(0, 1), generator


def paint(images, y, where, by=0.5):
    """Make a part of the images darker, the more the higher the class."""
    images[:, :, *where] *= (1 - by * y / max(int(y.max()), 1))[:, None, None, None]


MIDDLE = (slice(8, 16), slice(8, 16))
EVERYWHERE = (slice(None), slice(None))


def test_random_labels_of_few_images_are_no_reason_to_act():
    for seed in range(20):
        images, generator = draw(40, seed)
        assert not look(images, torch.randint(0, 2, (40,), generator=generator)).act, seed


@pytest.mark.parametrize(("n", "repeats"), [(20, 5), (50, 10)])
def test_repeated_images_are_no_new_evidence(n, repeats):
    for seed in range(6):
        images, generator = draw(n, seed)
        decision = look(images, torch.randint(0, 2, (n,), generator=generator), 2, repeats)
        assert not decision.act, (seed, decision.reason)


def test_repeated_images_of_a_tied_set_still_decide():
    images, _ = draw(120, 0)
    y = torch.arange(120) % 2
    paint(images, y, EVERYWHERE)
    once, twice = look(images, y), look(images, y, repeats=2)
    assert once.act
    assert twice.act
    assert twice.evidence.least == pytest.approx(once.evidence.least, abs=0.15)
    assert twice.evidence.chance == pytest.approx(once.evidence.chance, rel=0.3)


def test_many_classes_of_five_images():
    y = torch.arange(5 * 37) % 37
    images, generator = draw(len(y), 0)
    assert not look(images, y).act
    colours = torch.rand(37, 3, 1, 1, generator=generator)
    images[:, :, 8:16, 8:16] = colours[y]  # every class has its colour, on the object
    assert not look(images, y).act


@pytest.mark.parametrize("num_classes", [1, 5])
def test_one_class_alone(num_classes):
    images, _ = draw(30, 0)
    decision = look(images, torch.zeros(30, dtype=torch.long), num_classes)
    assert not decision.act
    assert decision.evidence.border == 0


@pytest.mark.parametrize(("where", "act"), [(EVERYWHERE, True), (MIDDLE, False)])
def test_one_image_in_thirty_of_a_class(where, act):
    images, _ = draw(600, 0)
    y = (torch.arange(600) % 30 == 0).long()
    assert not look(images, y).act
    paint(images, y, where, by=0.95)
    assert look(images, y).act is act


@pytest.mark.parametrize(("where", "act"), [(EVERYWHERE, True), (MIDDLE, False)])
def test_grey_images(where, act):
    images, _ = draw(200, 0)
    y = torch.arange(200) % 2
    paint(images, y, where)
    assert look(images.mean(1, keepdim=True).expand(-1, 3, -1, -1), y).act is act


@pytest.mark.parametrize("ground", [0.0, 1.0])
def test_frames_and_paper_are_no_surroundings(ground):
    """A black frame around every image, or white paper around every drawing."""
    images, _ = draw(200, 0)
    y = torch.arange(200) % 2
    paint(images, y, MIDDLE)
    inside = torch.zeros(24, 24, dtype=torch.bool)
    inside[7:17, 7:17] = True
    images[:, :, ~inside] = ground
    decision = look(images, y)
    assert not decision.act
    assert decision.evidence.middle > 0.5


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 3), (3, 9), (1, 40), (40, 2), (5, 5), (12, 200)])
def test_images_of_any_size_are_read(size):
    images = torch.rand(60, 3, *size, generator=torch.Generator().manual_seed(0))
    look(images, torch.arange(60) % 2)  # finite, whatever it says of images that are all border
    found = describe_images(torch.full((2, 3, *size), 0.5))
    assert all(torch.equal(part[:, :3], torch.full((2, 3), 0.5)) for part in found)  # the mean colour


def test_all_images_are_one():
    images, _ = draw(1, 0)
    assert not look(images.expand(50, -1, -1, -1), torch.arange(50) % 2).act


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_image_that_is_no_image_is_named(value):
    images, _ = draw(20, 0)
    images[3, 0, 2, 2] = value
    with pytest.raises(UserError, match="hold NaN or infinite"):
        look(images, torch.arange(20) % 2)


def test_what_chance_gives():
    """Against the spread of R² over permuted labels, by least squares."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(120, 4, generator=generator, dtype=torch.float64)
    truth = torch.nn.functional.one_hot(torch.arange(120) % 5 % 3).double()  # classes of 2, 2 and 1 fifths
    ones = torch.ones(120, 1, dtype=torch.float64)
    rows, shares = torch.cat([ones, z], 1), []
    for _ in range(1000):
        permuted = truth[torch.randperm(120, generator=generator)]
        left = permuted - rows @ torch.linalg.lstsq(rows, permuted).solution
        shares.append(1 - left.square().sum() / (permuted - permuted.mean(0)).square().sum())
    expected = float(torch.stack(shares).std()) / (1 - 4 / 119)
    deviation = explain(rows.T @ torch.cat([rows, truth], 1)).deviation
    assert deviation == pytest.approx(expected, rel=0.08)


def test_the_bar_of_chance_is_in_the_evidence_and_falls_with_the_images():
    bars = []
    for n in (40, 400):
        images, _ = draw(n, 0)
        bars.append(look(images, torch.arange(n) % 2).evidence.chance)
    assert bars[0] > 3 * bars[1] > 0
    assert DEVIATIONS == 3


def test_fingerprints_tell_images_apart():
    images, _ = draw(300, 0)
    prints = fingerprint(describe_images(images).whole)
    assert len(prints.unique()) == 300
    assert torch.equal(prints[:7], fingerprint(describe_images(images[:7]).whole))
    changed = images.clone()
    changed[:, :, 3, 3] = 1 - changed[:, :, 3, 3].round()  # one pixel
    assert len(torch.cat([prints, fingerprint(describe_images(changed).whole)]).unique()) > 550
