"""Threads of a solve: one where the problem is small, restored afterwards, and the same weights."""

import pytest
import torch

from stablenet import StableWeighting
from stablenet.weighting import problem
from stablenet.weighting.problem import fitting_threads


@pytest.fixture(autouse=True)
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("device", "work", "inside"), [("cpu", 9, 1), ("cpu", 10, 3), ("cuda", 9, 3)])
def test_one_thread_where_there_is_little_work(device, work, inside):
    with fitting_threads(torch.device(device), work, worth=10):
        assert torch.get_num_threads() == inside
    assert torch.get_num_threads() == 3


def test_the_threads_come_back_after_an_error():
    with pytest.raises(ValueError, match="stop"), fitting_threads(torch.device("cpu"), 0):
        raise ValueError("stop")
    assert torch.get_num_threads() == 3


def test_a_batch_is_solved_by_one_thread_and_training_goes_on_with_all(monkeypatch):
    seen = []
    solve = problem.solve_weights

    def look(*arguments):
        seen.append(torch.get_num_threads())
        return solve(*arguments)

    monkeypatch.setattr(problem, "solve_weights", look)
    z = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    few = StableWeighting("paper")(z)
    monkeypatch.setattr(fitting_threads.__wrapped__, "__defaults__", (0,))
    many = StableWeighting("paper")(z)
    assert seen == [1, 3]
    assert torch.get_num_threads() == 3
    torch.testing.assert_close(few, many, rtol=1e-6, atol=1e-6)
