"""`context_use`: in standard errors, and on networks that use the context or do not."""

import pytest
import torch

from stablenet.weighting import context_use, effective_sample_size, solve_dataset
from stablenet.weighting.recommended import CLEAR


@pytest.mark.parametrize(
    ("plain", "weighted", "effective", "expected"),
    [
        (0.6, 0.4, 100, 4.0),  # a standard error is 0.05
        (0.4, 0.6, 100, -4.0),
        (0.6, 0.4, 25, 2.0),
        (0.7, 0.7, 100, 0.0),
        (1.0, 1.0, 50, 0.0),  # no variance, and nothing to tell
        (1.0, 0.0, 1, 1.0),  # one sample tells nothing
    ],
)
def test_use_of_the_context_in_standard_errors(plain, weighted, effective, expected):
    assert context_use(plain, weighted, effective) == pytest.approx(expected)


@pytest.mark.parametrize(("by", "low", "high"), [("colour", CLEAR, 99), ("other", -99, -CLEAR), ("object", -2, 2)])
def test_held_out_samples_tell_what_a_network_goes_by(by, low, high):
    """The colour agrees with the label nine times in ten, the object three times in four."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 2, (600,), generator=generator)
    colour, shape = (label ^ (torch.rand(600, generator=generator) < wrong).long() for wrong in (0.1, 0.25))
    seen = torch.nn.functional.one_hot(colour, 2) + 0.1 * torch.randn(600, 2, generator=generator)
    weights = solve_dataset(seen, label).weights
    right = ({"colour": colour, "other": 1 - colour, "object": shape}[by] == label).float()
    plain, weighted = right.mean(), (weights * right).sum() / weights.sum()
    assert low < context_use(float(plain), float(weighted), float(effective_sample_size(weights))) < high
