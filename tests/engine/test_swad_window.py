"""SWAD's window against its definition, read off a whole list of losses."""

import math

import pytest
import torch

from stablenet.engine.config import SwadConfig
from stablenet.engine.swad import Mean, Segment, Window

EVERY = 3  # steps in a segment


def find_window(losses, n_converge, n_tolerance, ratio):
    """First and last segment of the window, from 0, by the paper's algorithm over all losses at once; None without.

    In the paper a run that was not overfitted is averaged to its end; the published code leaves out what lies beyond
    the threshold there, and so does this.
    """
    for start in range(len(losses) - n_converge + 1):
        following = losses[start : start + n_converge]
        if losses[start] == min(following):
            break
    else:
        return None
    threshold = (1 + ratio) * sum(following) / n_converge
    end = len(losses) - 1
    for last in range(start + n_tolerance, len(losses)):
        if min(losses[last - n_tolerance + 1 : last + 1]) > threshold:
            end = last - n_tolerance
            break
    while losses[end] > threshold:
        end -= 1
    return start, end


def make_weights(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(2, 3, generator=generator), torch.randn(4, generator=generator)] for _ in range(steps)]


def run_window(losses, weights, settings, through=lambda window: window):
    """Segments of EVERY steps, one after the other. through: what happens to the window between two segments."""
    window = Window(settings)
    for number, loss in enumerate(losses):
        mean = None
        for step in range(number * EVERY, (number + 1) * EVERY):
            if mean is None:
                mean = Mean.start(step + 1, weights[step])
            else:
                mean.add(step + 1, weights[step])
        if not window.ended:
            window.close(Segment(mean, loss))
        window = through(window)
    return window


def check(window, found, losses, weights):
    if found is None:
        first, last = len(losses) - 1, len(losses) - 1
        assert window.kept is None
    else:
        first, last = found
    steps = range(first * EVERY, (last + 1) * EVERY)
    result = window.result()
    assert (result.first, result.last) == (steps[0] + 1, steps[-1] + 1)
    for number, tensor in enumerate(result.tensors):
        expected = sum(weights[step][number].double() for step in steps) / len(steps)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-5)


def draw_losses(seed, length):
    """A falling curve, a rising one or neither, with noise; some values twice."""
    generator = torch.Generator().manual_seed(seed)
    slope, noise = torch.randn(2, generator=generator).tolist()
    line = torch.linspace(0, 1, length)
    curve = 2 + slope * line + 3 * (line - 0.4) ** 2 * (seed % 3) + noise * torch.randn(length, generator=generator)
    return (curve.abs() + 0.05).mul(10).round().div(10).tolist()


@pytest.mark.parametrize("settings", [(3, 6, 0.3), (2, 3, 0.0), (1, 1, 0.1), (3, 3, 0.2), (4, 6, 0.0)])
def test_windows_are_those_of_the_definition(settings):
    n_converge, n_tolerance, ratio = settings
    chosen = SwadConfig(n_converge=n_converge, n_tolerance=n_tolerance, tolerance_ratio=ratio)
    weights, ended, unfound = make_weights(20 * EVERY), 0, 0
    for seed in range(120):
        losses = draw_losses(seed, 1 + seed % 20)
        window = run_window(losses, weights, chosen)
        check(window, find_window(losses, *settings), losses, weights)
        ended, unfound = ended + window.ended, unfound + (window.kept is None)
    assert ended or settings == (3, 6, 0.3)
    assert unfound or n_converge == 1


def test_a_window_by_hand():
    """The loss falls to 1.0, stays within 1.3 times the mean of 1.0, 1.1 and 1.2, that is 1.43, and leaves for good."""
    losses = [3.0, 2.0, 1.0, 1.1, 1.2, 1.5, 1.4, 1.6, 1.5, 1.9, 1.5, 1.6, 1.7, 0.1]
    weights = make_weights(len(losses) * EVERY)
    window = run_window(losses, weights, SwadConfig())
    assert window.threshold == pytest.approx(1.43)
    assert window.ended
    check(window, (2, 6), losses, weights)


def test_only_open_segments_are_kept():
    losses = [3.0, 2.0, 1.0, 1.1, 1.2, 1.5, 1.6, 1.7, 1.0]
    held = []
    run_window(losses, make_weights(30), SwadConfig(), lambda window: held.append(len(window.open)) or window)
    assert held == [1, 1, 1, 2, 0, 1, 2, 3, 0]


def test_a_window_goes_through_a_checkpoint():
    weights, settings = make_weights(60), SwadConfig(n_converge=2, n_tolerance=3, tolerance_ratio=0.1)

    def pass_on(window):
        tensors, plain = window.state()
        other = Window(settings)
        other.restore({name: tensor.clone() for name, tensor in tensors.items()}, plain, weights[0])
        return other

    for seed in range(20):
        losses = draw_losses(seed, 20)
        straight, passed = (run_window(losses, weights, settings, go) for go in (lambda window: window, pass_on))
        assert all(map(torch.equal, straight.result().tensors, passed.result().tensors))
        assert (straight.ended, straight.threshold) == (passed.ended, passed.threshold)


def test_steps_may_not_be_missed():
    mean = Mean.start(1, [torch.zeros(2)])
    with pytest.raises(AssertionError, match="step 1 is followed by step 3"):
        mean.add(3, [torch.ones(2)])


def test_the_mean_keeps_its_precision():
    value = torch.tensor([math.pi])
    mean = Mean.start(1, [value])
    for step in range(2, 3001):
        mean.add(step, [value])
    assert torch.equal(mean.tensors[0], value)
    assert mean.steps == 3000
