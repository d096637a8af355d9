"""RSC: masks on hand-made gradients, whose masks are kept, and what muting is good for."""

import pytest
import torch
from torch.nn import functional

from stablenet.algorithms import build_algorithm
from stablenet.algorithms.harder_tasks import RSCSettings, choose_samples, find_largest, mute
from stablenet.errors import UserError
from tests.algorithms.small import Pooled, build, compare_with_erm, fit, measure_accuracy
from tests.algorithms.test_methods import make, make_batch


def make_rsc(**parameters):
    plain = make("rsc")
    return build_algorithm("rsc", parameters, plain.network, plain.context)


def test_positions_that_matter_most_are_muted():
    """Two channels of three positions in a row; the channels' mean gradients are 1 and -1."""
    maps = torch.tensor([[[[1.0, 5.0, 3.0]], [[0.0, 5.0, 0.0]]]])  # Σ ḡ·z = 1, 0, 3
    gradient = torch.tensor([[[[3.0, 0.0, 0.0]], [[-1.0, -1.0, -1.0]]]])
    kept = mute(maps, gradient, torch.tensor([True]), RSCSettings())
    assert kept.tolist() == [[[[True, True, False]], [[True, True, False]]]]


def test_channels_with_the_largest_gradient_are_muted():
    """A third of channels, 1/3.2, rounded up: two of four; what the maps hold does not matter."""
    gradient = torch.tensor([0.1, 0.9, -2.0, 0.3]).view(1, 4, 1, 1).expand(1, 4, 2, 2)
    kept = mute(torch.rand(1, 4, 2, 2), gradient, torch.tensor([False]), RSCSettings())
    assert kept[0, :, 0, 0].tolist() == [True, False, True, False]
    assert kept.shape == (1, 4, 2, 2)


def test_never_everything_is_muted():
    assert not find_largest(torch.rand(3, 1), 1 / 3).any()
    assert find_largest(torch.rand(3, 4), 1.0).sum(1).tolist() == [3, 3, 3]
    assert find_largest(torch.tensor([[1.0, 3.0, 2.0]]), 1 / 3).tolist() == [[False, True, False]]


def test_masks_are_kept_where_the_probability_falls_most():
    fall = torch.tensor([0.1, -0.2, 0.5, 0.3, 0.0, 0.00005])
    assert choose_samples(fall, torch.tensor(0.3)).tolist() == [False, False, True, True, False, False]
    assert choose_samples(fall, torch.tensor(1.0)).tolist() == [True, False, True, True, False, False]
    assert not choose_samples(fall, torch.tensor(0.0)).any()


@pytest.mark.parametrize("spatial", [0.0, 1.0])
def test_masks_equal_a_walk_by_hand(spatial):
    """Sample by sample, with a gradient of its own each."""
    algorithm = make_rsc(spatial=spatial, fractions=(0.5,)).eval()
    network, batch = algorithm.network, make_batch()
    maps = network.forward_maps(batch.x).detach()
    found = algorithm.choose_masks(maps, batch.y)
    fall, masks = [], []
    for row, label in enumerate(batch.y.tolist()):
        own = maps[row : row + 1].clone().requires_grad_()
        logits = network.forward_head(network.forward_tail(own))
        (gradient,) = torch.autograd.grad(logits[0, label], own)
        mask = mute(own, gradient, torch.tensor([spatial == 1.0]), algorithm.settings)
        after = network.forward_head(network.forward_tail(own * mask))
        fall.append((logits.softmax(1) - after.softmax(1))[0, label].item())
        masks.append(mask[0])
    felt = sorted((f for f in fall if f > 1e-4), reverse=True)[: len(fall) // 2]
    assert felt  # there is something to mute
    for row, mask in enumerate(masks):
        assert torch.equal(found[row], mask if fall[row] in felt else torch.ones_like(mask)), row


def test_loss_is_the_mean_over_an_image_and_its_mirror():
    algorithm, batch = make_rsc(fractions=(0.0,)).eval(), make_batch()
    expected = [
        functional.cross_entropy(algorithm.network(x), batch.y, reduction="none") for x in (batch.x, batch.x.flip(3))
    ]
    torch.testing.assert_close(algorithm.loss(batch).per_sample_loss, sum(expected) / 2)


def test_muted_maps_raise_the_loss():
    plain, muted = (make_rsc(fractions=(fraction,)).eval().loss(make_batch()) for fraction in (0.0, 1.0))
    assert muted.per_sample_loss.mean() > plain.per_sample_loss.mean()
    assert plain.diagnostics["muted"] == 0
    assert muted.diagnostics["muted"] > 0


def test_without_masks_and_mirrors_it_is_erm():
    algorithm = make_rsc(fractions=(0.0,), mirror=False).train()
    for ours, theirs in compare_with_erm(algorithm, make("erm").train(), make_batch()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert algorithm.network.training  # choosing masks left the mode as it was


def test_fraction_grows_with_the_epochs():
    algorithm = make_rsc()
    found = []
    for epoch in (0, 9, 10, 19, 20, 59):
        algorithm.start_epoch(epoch, None)
        found.append(algorithm.fraction.item())
    assert found == pytest.approx([0.3, 0.3, 0.5, 0.5, 0.7, 0.7])
    assert "fraction" in algorithm.state_dict()


def draw_cues(count, seed, source=True):
    """A bar upright or lying, the class; and a blob whose colour tells it too, in the source only."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    colour = y if source else torch.randint(0, 2, (count,), generator=generator)
    x = 0.4 * torch.rand(count, 3, 12, 12, generator=generator)
    top, left = torch.randint(0, 6, (2, count), generator=generator)
    x[torch.arange(count), colour] += 1.5 * make_boxes(top, left, 3 + 0 * y, 3 + 0 * y)
    top, left = torch.randint(4, 7, (2, count), generator=generator)
    x[:, 2] += 2.0 * make_boxes(top, left, 6 - 4 * y, 2 + 4 * y)
    return x, y


def make_boxes(top, left, height, width):
    """(n, 12, 12), ones inside each box."""
    row, column = torch.arange(12).view(1, -1, 1), torch.arange(12).view(1, 1, -1)
    top, left, height, width = (value.view(-1, 1, 1) for value in (top, left, height, width))
    return ((row >= top) & (row < top + height) & (column >= left) & (column < left + width)).float()


def test_claim_other_features_are_learned_when_the_strongest_are_muted():
    """Without the colour, which misleads in the new domain, only a network that was made to look elsewhere knows."""
    accuracy = {}
    for fraction in (0.0, 0.3):
        found = []
        for seed in range(2):
            parameters = {"fractions": (fraction,), "mirror": False}
            algorithm = fit(build("rsc", parameters, Pooled, seed), *draw_cues(512, seed), steps=100, seed=seed)
            found.append(measure_accuracy(algorithm, *draw_cues(512, 100 + seed, source=False)))
        accuracy[fraction] = sum(found) / len(found)
    assert accuracy[0.3] > accuracy[0.0] + 0.2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"fractions": []}, "fractions must be a non-empty list"),
        ({"fractions": [1.2]}, r"fractions\[0\] must be between 0 and 1"),
        ({"every": 0}, "every must be at least 1"),
        ({"channels": -1.0}, "channels must be between 0 and 1"),
    ],
)
def test_wrong_settings_are_named(parameters, message):
    with pytest.raises(UserError, match=message):
        make_rsc(**parameters)
