"""Random numbers of a run: functions of seed, rank and step, and nobody else's generator is touched."""

import torch

from stablenet.engine.session import own_random_numbers, seed_generators

CPU = torch.device("cpu")


def test_random_numbers_are_functions_of_seed_rank_and_step():
    def draw(*where):
        with own_random_numbers(CPU):
            seed_generators(CPU, *where)
            return torch.rand(3).tolist()

    before = torch.get_rng_state()
    draws = [draw(seed, rank, step) for seed in (0, 1) for rank in (0, 1) for step in (-1, 0, 1)]
    assert len({tuple(d) for d in draws}) == len(draws)
    assert draw(1, 1, 1) == draws[-1]
    assert torch.equal(torch.get_rng_state(), before)
