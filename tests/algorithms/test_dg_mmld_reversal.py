"""Gradient reversal: nothing forward, the opposite backward."""

import pytest
import torch

from stablenet.algorithms.dg_mmld import reverse_gradient


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0])
def test_gradient_is_reversed_and_values_are_not(strength):
    features = torch.tensor([[1.0, -2.0], [3.0, 0.5]], requires_grad=True)
    given = reverse_gradient(features, torch.tensor(strength))
    assert torch.equal(given, features)
    given.square().sum().backward()
    torch.testing.assert_close(features.grad, -strength * 2 * features.detach())


def test_what_follows_descends_and_what_lies_before_climbs():
    """One step of both parts: the part after loses loss, the part before gains it."""
    before, after = torch.tensor(0.5, requires_grad=True), torch.tensor(2.0, requires_grad=True)

    def lose(before, after):
        return (reverse_gradient(before * 3, torch.tensor(1.0)) * after - 1) ** 2

    loss = lose(before, after)
    up, down = torch.autograd.grad(loss, (before, after))
    with torch.no_grad():
        assert lose(before, after - 0.01 * down) < loss
        assert lose(before - 0.01 * up, after) > loss
