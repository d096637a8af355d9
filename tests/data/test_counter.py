"""The mixer against plain Python integers, and what random numbers must look like."""

import torch

from stablenet.data.counter import combine, draw_uniform, mix

MASK = (1 << 64) - 1


def _mix_slowly(bits):
    bits = (bits + 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def test_the_mixer_agrees_with_plain_integers():
    values = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789, -987654321])
    expected = [_mix_slowly(value & MASK) for value in values.tolist()]
    assert [value & MASK for value in mix(values).tolist()] == expected
    # splitmix64 started at zero gives this first number, whoever implements it
    assert expected[0] == 0xE220A8397B1DCDAF


def test_counters_broadcast_and_do_not_commute():
    index = torch.arange(5)
    single = [combine(7, 3, torch.tensor(k)).item() for k in range(5)]
    assert combine(7, 3, index).tolist() == single
    assert combine(7, 3, 4).item() != combine(7, 4, 3).item()
    assert combine(7, 3).item() != combine(8, 3).item()
    assert combine(2**80 + 5, 1).item() == combine(5 + 2**80, 1).item()


def test_uniform_numbers_are_uniform_and_independent():
    values = draw_uniform(combine(0, 0, torch.arange(20_000)), 4)
    assert values.shape == (20_000, 4)
    assert 0 <= values.min() < values.max() < 1
    counts = torch.histc(values, bins=50, min=0, max=1)
    assert (counts - 1600).abs().max() < 5 * 1600**0.5
    together = torch.cat([values, values.roll(1, 0)], 1).T.corrcoef() - torch.eye(8)
    assert together.abs().max() < 0.03
