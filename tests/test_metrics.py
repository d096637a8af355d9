"""Figures against plain counting, the calibration error against its definition, spreads and pairs by hand."""

import math

import numpy as np
import pytest
import torch

from stablenet.metrics import GroupCounts, calibration_error, compare_pairs, summarize


def test_group_counts_against_plain_counting():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 3, generator=generator)
    y = torch.randint(0, 3, (200,), generator=generator)
    domain = torch.randint(0, 4, (200,), generator=generator)
    domain[domain == 2] = 0  # a domain without samples
    counts = GroupCounts(4, 3, torch.device("cpu"))
    for part in torch.arange(200).split(64):
        counts.add(logits[part], y[part], domain[part])
    found = counts.figures(["p", "q", "r", "s"], ["a", "b", "c"])
    right = [bool(logits[k].argmax() == y[k]) for k in range(200)]

    def share(chosen):
        return sum(right[k] for k in chosen) / len(chosen)

    assert found["accuracy"] == share(range(200))
    per_domain = {name: share([k for k in range(200) if domain[k] == d]) for d, name in ((0, "p"), (1, "q"), (3, "s"))}
    assert found["per_domain"] == pytest.approx(per_domain)
    assert found["mean_domain_accuracy"] == pytest.approx(sum(per_domain.values()) / 3)
    assert found["per_class"]["b"] == pytest.approx(share([k for k in range(200) if y[k] == 1]))
    groups = [share([k for k in range(200) if (domain[k], y[k]) == (d, c)]) for d in (0, 1, 3) for c in range(3)]
    assert found["worst_group_accuracy"] == pytest.approx(min(groups))
    losses = [-torch.log_softmax(logits[k], 0)[y[k]].item() for k in range(200)]
    assert found["loss"] == pytest.approx(sum(losses) / 200, rel=1e-5)
    assert found["count"] == 200
    assert "weighted_accuracy" not in found


def test_group_counts_under_weights_against_plain_counting():
    generator = torch.Generator().manual_seed(1)
    logits, y = torch.randn(50, 3, generator=generator), torch.randint(0, 3, (50,), generator=generator)
    weights, nowhere = torch.rand(50, generator=generator), torch.zeros(50, dtype=torch.int64)
    counts = GroupCounts(1, 3, torch.device("cpu"))
    for part in torch.arange(50).split(16):
        counts.add(logits[part], y[part], nowhere[part], weights[part])
    found, total = counts.figures(["p"], ["a", "b", "c"]), sum(weights.tolist())
    right = sum(float(weights[k]) for k in range(50) if logits[k].argmax() == y[k])
    loss = sum(float(weights[k]) * -torch.log_softmax(logits[k], 0)[y[k]].item() for k in range(50))
    assert found["weighted_accuracy"] == pytest.approx(right / total)
    assert found["weighted_loss"] == pytest.approx(loss / total, rel=1e-5)
    assert found["weighted_count"] == pytest.approx(total**2 / sum(w**2 for w in weights.tolist()))


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
def test_calibration_against_the_definition(bins):
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(200, 4, generator=generator, dtype=torch.float64)).softmax(1)
    y = torch.randint(4, (200,), generator=generator)
    expected = slow_error(probabilities.tolist(), y.tolist(), bins)
    assert calibration_error(probabilities, y, bins) == pytest.approx(expected, abs=1e-12)


def test_calibration_by_hand():
    # Two at 0.8, one right: gap 0.3. Two at 0.6, both right: gap 0.4. Mean 0.35.
    probabilities = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.6, 0.4], [0.6, 0.4]])
    assert calibration_error(probabilities, torch.tensor([0, 1, 0, 0])) == pytest.approx(0.35)


def test_a_sure_classifier_that_is_right_has_none_and_one_that_is_wrong_has_all():
    sure = torch.eye(3)
    assert calibration_error(sure, torch.arange(3)) == 0
    assert calibration_error(sure, torch.tensor([1, 2, 0])) == 1


def test_the_deviation_is_that_of_a_sample():
    spread = summarize([1.0, 2.0, 6.0])
    assert spread.mean == 3.0
    assert spread.deviation == pytest.approx(math.sqrt((4 + 1 + 9) / 2))


def test_pairs_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1; Student's t for two degrees of freedom at 97.5 % is 4.302653.
    paired = compare_pairs([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert paired.differences.values == (1.0, 2.0, 3.0)
    reach = 4.302653 / math.sqrt(3)
    assert (paired.low, paired.high) == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    assert not paired.is_clear


def test_clear_on_either_side():
    assert compare_pairs([2.0, 2.1, 2.2], [0.0, 0.1, 0.1]).is_clear
    assert compare_pairs([0.0, 0.1, 0.1], [2.0, 2.1, 2.2]).is_clear


def test_unpaired_values_are_refused():
    with pytest.raises(ValueError, match="zip"):
        compare_pairs([1.0, 2.0], [1.0])
