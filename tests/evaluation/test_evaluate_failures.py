"""A network that predicts one class, guesses, or loses a group is told; one that has learned is not."""

from __future__ import annotations

import pytest
import torch

from stablenet.evaluation.evaluate import find_failures
from stablenet.metrics import GroupCounts

CLASSES, DOMAINS = ("cat", "dog", "hen"), ("grass", "sand")


def figures(predicted, y, domain):
    counts = GroupCounts(len(DOMAINS), len(CLASSES), torch.device("cpu"))
    counts.add(torch.eye(len(CLASSES))[predicted] * 5, y, domain)
    return counts.figures(DOMAINS, CLASSES)


@pytest.fixture
def drawn():
    y = torch.arange(120) % 3
    return y, (torch.arange(120) // 3) % 2


def test_one_class_for_everything(drawn):
    y, domain = drawn
    (found,) = find_failures(figures(torch.ones_like(y), y, domain), "held-out image")
    assert found.kind == "one class"
    assert str(found).startswith("predicts 'dog' for every held-out image: train longer")


def test_the_level_of_guessing(drawn):
    y, domain = drawn
    drawn_at_random = torch.randint(3, y.shape, generator=torch.Generator().manual_seed(0))
    (found,) = find_failures(figures(drawn_at_random, y, domain))
    assert found.kind == "guessing"
    assert "guessing on 33.3 %" in found.said


def test_guessing_the_usual_class_is_guessing_too():
    y = torch.cat([torch.zeros(90, dtype=torch.int64), torch.arange(30) % 3])
    predicted = torch.where(torch.arange(120) % 10 == 0, 1, 0)
    assert [found.kind for found in find_failures(figures(predicted, y, torch.zeros_like(y)))] == ["guessing"]


def test_a_group_that_is_always_wrong(drawn):
    y, domain = drawn
    predicted = torch.where((y == 2) & (domain == 1), 0, y)
    (found,) = find_failures(figures(predicted, y, domain))
    assert (found.kind, found.said) == ("lost group", "is wrong for all 20 images of hen on sand")


def test_what_was_learned_and_what_is_too_small_says_nothing(drawn):
    y, domain = drawn
    assert find_failures(figures(y, y, domain)) == []
    small = slice(0, 6)
    assert find_failures(figures(torch.ones(6, dtype=torch.int64), y[small], domain[small])) == []
    assert find_failures({"count": 500, "accuracy": 0.1}) == []
