"""JiGen: tiles and their orders against loops, its loss against both parts, and what the jigsaw is good for."""

from itertools import combinations

import pytest
import torch
from torch.nn import functional

from stablenet.algorithms import build_algorithm
from stablenet.algorithms.harder_tasks import choose_permutations, grey_tiles, shuffle_tiles
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from tests.algorithms.small import Placed, build, compare_with_erm, fit, measure_accuracy
from tests.algorithms.test_methods import make, make_batch


def test_permutations_are_far_apart_and_begin_with_the_order():
    chosen = choose_permutations(9, 30)
    assert len(chosen) == len(set(chosen)) == 31
    assert chosen[0] == tuple(range(9))
    assert all(sorted(order) == list(range(9)) for order in chosen)
    assert min(sum(a != b for a, b in zip(*pair, strict=True)) for pair in combinations(chosen, 2)) >= 7


def test_all_permutations_of_four_tiles():
    assert len(set(choose_permutations(4, 23))) == 24


@pytest.mark.parametrize("side", [6, 7, 8])
def test_place_shows_the_named_tile(side):
    """Against loops; a margin that makes no whole tile stays."""
    images, tile = torch.rand(4, 3, side, side), side // 3
    permutation = torch.stack([torch.randperm(9) for _ in range(4)])
    expected = images.clone()
    for row in range(4):
        for place, source in enumerate(permutation[row].tolist()):
            (top, left), (up, across) = divmod(place, 3), divmod(source, 3)
            expected[row, :, top * tile : (top + 1) * tile, left * tile : (left + 1) * tile] = images[
                row, :, up * tile : (up + 1) * tile, across * tile : (across + 1) * tile
            ]
    shuffled = shuffle_tiles(images, permutation, 3)
    assert torch.equal(shuffled, expected)
    assert torch.equal(shuffle_tiles(shuffled, permutation.argsort(1), 3), images)


def test_the_order_itself_changes_nothing():
    images = torch.rand(2, 3, 10, 10).contiguous(memory_format=torch.channels_last)
    shuffled = shuffle_tiles(images, torch.arange(9).expand(2, 9), 3)
    assert torch.equal(shuffled, images)
    assert shuffled.is_contiguous(memory_format=torch.channels_last)


def test_only_the_chosen_tiles_turn_grey():
    images = torch.rand(2, 3, 5, 5)
    grey = torch.tensor([[False, True, False, False], [False, False, False, False]])
    found = grey_tiles(images, grey, 2)
    red, green, blue = images[0, :, :2, 2:4]
    expected = 0.299 * red + 0.587 * green + 0.114 * blue
    for channel in range(3):
        torch.testing.assert_close(found[0, channel, :2, 2:4], expected)
    found[0, :, :2, 2:4] = images[0, :, :2, 2:4]
    assert torch.equal(found, images)


def make_jigen(**parameters):
    plain = make("jigen")
    return build_algorithm("jigen", parameters, plain.network, plain.context)


def test_loss_is_both_cross_entropies_of_one_picture():
    algorithm, batch = make_jigen(ordered=0.2, grey=0.0).eval(), make_batch()
    state = {name: value.clone() for name, value in algorithm.draws.state_dict().items()}
    output = algorithm.loss(batch)
    algorithm.draws.load_state_dict(state)
    images, order = algorithm.make_puzzles(batch)
    assert torch.equal(images, shuffle_tiles(batch.x, algorithm.orders[order], 3))
    features = algorithm.network.forward_features(images)
    expected = functional.cross_entropy(algorithm.network.forward_head(features), batch.y, reduction="none")
    expected = expected + 0.7 * functional.cross_entropy(algorithm.jigsaw(features), order, reduction="none")
    torch.testing.assert_close(output.per_sample_loss, expected)


def test_orders_are_drawn_as_published():
    """Nine tenths stay in order, the others have any of 31: one thing and thirty of 1 in 310."""
    algorithm = make_jigen(grey=0.0)
    index = torch.arange(20_000)
    batch = Batch(torch.zeros(len(index), 3, 3, 3), index, index, index)
    order = algorithm.make_puzzles(batch)[1]
    share = torch.bincount(order, minlength=31) / len(order)
    assert share[0].item() == pytest.approx(0.9 + 0.1 / 31, abs=0.01)
    assert len(share) == 31
    assert share[1:].min() > 0.5 / 310
    assert share[1:].max() < 2 / 310
    assert not torch.equal(algorithm.make_puzzles(batch)[1], order)  # another step, other orders


def test_without_puzzles_it_is_erm():
    algorithm = make_jigen(weight=0.0, ordered=1.0, grey=0.0).train()
    for ours, theirs in compare_with_erm(algorithm, make("erm").train(), make_batch()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_gradient_reaches_every_parameter():
    algorithm = make_jigen().train()
    algorithm.loss(make_batch()).per_sample_loss.mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in algorithm.parameters())


def draw_ramps(count, seed):
    """Pictures that grow brighter to the right or downwards, under much noise."""
    generator = torch.Generator().manual_seed(seed)
    y, ramp = torch.arange(count) % 2, torch.linspace(-1, 1, 12)
    shapes = torch.stack([ramp.expand(12, 12), ramp.view(-1, 1).expand(12, 12)])
    return shapes[y].unsqueeze(1) + 3 * torch.randn(count, 3, 12, 12, generator=generator), y


def test_claim_the_puzzle_regularises_the_classifier():
    """From few pictures, half of them shuffled, the classes of unseen ones are told better with the jigsaw's loss
    than without it."""
    accuracy = {}
    for weight in (0.0, 0.7):
        parameters = {"weight": weight, "ordered": 0.5, "grey": 0.0}
        found = []
        for seed in range(3):
            algorithm = fit(build("jigen", parameters, Placed, seed, 64), *draw_ramps(64, seed), steps=200, seed=seed)
            found.append(measure_accuracy(algorithm, *draw_ramps(512, 100 + seed)))
        accuracy[weight] = sum(found) / len(found)
    assert accuracy[0.7] > accuracy[0.0] + 0.04


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"weight": -0.1}, "weight must be 0 or more"),
        ({"grid": 4}, "grid must be 2 or 3, got 4"),
        ({"grid": 2, "permutations": 24}, "permutations must be at most 23, got 24"),
        ({"ordered": 1.5}, "ordered must be between 0 and 1"),
    ],
)
def test_wrong_settings_are_named(parameters, message):
    with pytest.raises(UserError, match=message):
        make_jigen(**parameters)


def test_too_small_pictures_are_named():
    with pytest.raises(UserError, match="3 × 3 tiles: too many"):
        make_jigen().make_puzzles(Batch(torch.zeros(1, 3, 2, 2), *[torch.zeros(1, dtype=torch.int64)] * 3))
