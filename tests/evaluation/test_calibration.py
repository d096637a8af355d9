"""The calibration error against its definition, bin by bin."""

import numpy as np
import pytest
import torch

from stablenet.evaluation.calibration import calibration_error


def slow_error(probabilities, y, bins):
    total = 0.0
    for k in range(bins):
        members = [
            (max(row), int(np.argmax(row) == label))
            for row, label in zip(probabilities, y, strict=True)
            if k / bins < max(row) <= (k + 1) / bins
        ]
        if members:
            confidence, right = np.mean(members, axis=0)
            total += len(members) / len(y) * abs(right - confidence)
    return total


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_against_the_definition(bins):
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(200, 4, generator=generator, dtype=torch.float64)).softmax(1)
    y = torch.randint(4, (200,), generator=generator)
    expected = slow_error(probabilities.tolist(), y.tolist(), bins)
    assert calibration_error(probabilities, y, bins) == pytest.approx(expected, abs=1e-12)


def test_by_hand():
    # Two at 0.8, one right: gap 0.3. Two at 0.6, both right: gap 0.4. Mean 0.35.
    probabilities = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.6, 0.4], [0.6, 0.4]])
    assert calibration_error(probabilities, torch.tensor([0, 1, 0, 0])) == pytest.approx(0.35)


def test_a_sure_classifier_that_is_right_has_none_and_one_that_is_wrong_has_all():
    sure = torch.eye(3)
    assert calibration_error(sure, torch.arange(3)) == 0
    assert calibration_error(sure, torch.tensor([1, 2, 0])) == 1
