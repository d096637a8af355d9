"""Registries: one part per name, and neighbours of an unknown one."""

import pytest

from stablenet.errors import UserError
from stablenet.registry import Registry, unknown_name


@pytest.fixture
def colours():
    registry = Registry("colour")
    registry.add("red", 1)
    registry.add("green", 2)
    return registry


def test_parts_are_found_in_the_order_of_their_adding(colours):
    assert (colours["green"], list(colours), len(colours)) == (2, ["red", "green"], 2)
    assert "red" in colours


def test_a_name_is_taken_once(colours):
    with pytest.raises(ValueError, match="the colour name 'red' is already taken"):
        colours.add("red", 3)
    assert colours["red"] == 1


def test_an_unknown_name_lists_its_neighbours_first(colours):
    with pytest.raises(
        UserError, match=r"unknown colour 'gren': did you mean 'green' or 'red'\? choose from green, red"
    ):
        colours["gren"]
    assert unknown_name("part", "zzz", ["b", "a"]) == "unknown part 'zzz': choose from a, b"
    assert unknown_name("part", "zzz", []) == "unknown part 'zzz': none are available"
    assert unknown_name("part", "z" * 200, ["a"]).startswith(f"unknown part '{'z' * 80}…'")
