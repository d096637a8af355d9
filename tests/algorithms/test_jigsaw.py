"""Tiles and their orders, by hand and against loops."""

from itertools import combinations

import pytest
import torch

from stablenet.algorithms.jigsaw import choose_permutations, grey_tiles, shuffle_tiles


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
