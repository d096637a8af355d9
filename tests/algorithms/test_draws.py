"""Random numbers by step and sample."""

import torch

from stablenet.algorithms.draws import StepDraws
from stablenet.data.counter import combine, draw_uniform


def test_numbers_are_those_of_seed_step_and_sample():
    draws, index = StepDraws(7), torch.tensor([4, 9])
    for step in range(3):
        assert torch.equal(draws(index, 5), draw_uniform(combine(7, step, index), 5))


def test_numbers_differ_between_steps_and_seeds_not_between_batches():
    index = torch.arange(6)
    first, other = StepDraws(0), StepDraws(1)
    numbers = first(index, 3)
    assert torch.equal(StepDraws(0)(index[2:4], 3), numbers[2:4])
    assert not torch.isclose(first(index, 3), numbers).any()
    assert not torch.isclose(other(index, 3), numbers).any()


def test_the_step_is_part_of_the_state():
    draws, index = StepDraws(3), torch.arange(2)
    draws(index, 1)
    resumed = StepDraws(3)
    resumed.load_state_dict(draws.state_dict())
    assert torch.equal(resumed(index, 4), draws(index, 4))
