"""HSIC weighting: the sum over pairs against the definition, agreement with the Fourier form, its claim."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from stablenet.algorithms.other_weights import HsicPairs, HSICSettings, check_size, solve_hsic
from stablenet.errors import UserError
from stablenet.weighting import pairwise_dependence, random_fourier_features, standardize
from stablenet.weighting.solver import solve_weights
from stablenet.weighting.statistic import GramPairs
from tests.algorithms.test_methods import make, make_batch
from tests.algorithms.toys import loss_and_gradient, toy_method
from tests.reference.hsic import biased_hsic


def draw_features(n=24, m=4, seed=0):
    """Columns that share a cause, not linearly alone."""
    generator = torch.Generator().manual_seed(seed)
    cause = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, m, generator=generator, dtype=torch.float64)
    return standardize(torch.cat([cause + noise[:, :2], cause.square() + noise[:, 2:]], 1))


def median_bandwidth(x):
    return float(np.median([abs(a - b) for a, b in combinations(x.tolist(), 2)]))


def weighted_hsic(x, y, p, sigma_x, sigma_y):
    """By the definition in expectations: E[kl] − 2·E[E[k]·E[l]] + E[k]·E[l], sample by sample."""
    n = len(x)
    k, other = (
        np.array([[np.exp(-((v[a] - v[b]) ** 2) / (2 * s * s)) for b in range(n)] for a in range(n)])
        for v, s in ((x, sigma_x), (y, sigma_y))
    )
    both = sum(p[a] * p[b] * k[a, b] * other[a, b] for a in range(n) for b in range(n))
    mixed = sum(p[a] * (k[a] @ p) * (other[a] @ p) for a in range(n))
    return both - 2 * mixed + (p @ k @ p) * (p @ other @ p)


def test_equal_weights_give_the_biased_hsic_of_every_pair():
    z = draw_features()
    sigma = torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
    value, _ = HsicPairs(z, sigma).value_and_gradient(torch.ones(24, dtype=torch.float64))
    columns = z.numpy().T
    assert value.item() == pytest.approx(sum(biased_hsic(x, y, 0.5) for x, y in combinations(columns, 2)), rel=1e-10)


def test_weights_and_median_bandwidth_against_the_definition():
    z = draw_features(10, 3)
    w = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    columns, p = z.numpy().T, (w / w.sum()).numpy()
    sigma = [median_bandwidth(x) for x in columns]
    expected = sum(
        weighted_hsic(columns[i], columns[j], p, sigma[i], sigma[j]) for i, j in combinations(range(len(columns)), 2)
    )
    # The lower of the two middle distances, as torch has it, lies a little off numpy's mean of both.
    found = HsicPairs(z, torch.tensor(sigma, dtype=torch.float64)).value_and_gradient(w)[0].item()
    assert found == pytest.approx(expected, rel=1e-10)
    assert HsicPairs(z).value_and_gradient(w)[0].item() == pytest.approx(expected, rel=0.05)


def test_gradient_against_differences():
    statistic = HsicPairs(draw_features())
    w = 0.5 + torch.rand(24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, gradient = statistic.value_and_gradient(w)
    step = 1e-6
    for row in range(0, 24, 5):
        up, down = w.clone(), w.clone()
        up[row] += step
        down[row] -= step
        slope = (statistic.value_and_gradient(up)[0] - statistic.value_and_gradient(down)[0]) / (2 * step)
        assert gradient[row].item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-10)


def test_constant_columns_add_nothing():
    z = draw_features()
    wider = torch.cat([z, torch.zeros(24, 1, dtype=torch.float64)], 1)
    ones = torch.ones(24, dtype=torch.float64)
    values = [HsicPairs(rows).value_and_gradient(ones)[0].item() for rows in (z, wider)]
    assert values[0] == pytest.approx(values[1], rel=1e-10)


def fourier(z, q):
    return random_fourier_features(z, q, generator=torch.Generator().manual_seed(0))


def test_fourier_form_estimates_it_under_any_weights():
    """D/q² → Σ HSIC: the error falls with q."""
    z = draw_features()
    w = 24 * torch.softmax(torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 0)
    exact = HsicPairs(z, torch.ones(4, dtype=torch.float64)).value_and_gradient(w)[0].item()
    off = [abs(pairwise_dependence(fourier(z, q), w).item() / q**2 / exact - 1) for q in (5, 4000)]
    assert off[1] < 0.02
    assert off[1] < off[0]


def test_weights_agree_with_the_fourier_forms():
    """The same solver on both statistics; a different bandwidth would give other weights."""
    z = draw_features(40)
    settings = HSICSettings(steps=40, penalty=0.02).solver()
    sigma = torch.ones(4, dtype=torch.float64)
    statistics = [HsicPairs(z, sigma), GramPairs(fourier(z, 2000), "covariance"), HsicPairs(z, 0.1 * sigma)]
    weights = []
    for statistic in statistics:
        statistic_in_float64 = lambda step, statistic=statistic: [DoubleInside(statistic)]  # noqa: E731
        weights.append(solve_weights(statistic_in_float64, torch.ones(0), 40, settings).weights)
    exact, estimated, other = weights
    assert (exact - 1).abs().mean() > 0.2
    assert (exact - estimated).abs().mean() < 0.03
    assert (exact - other).abs().mean() > 0.1


class DoubleInside:
    """A statistic in float64 for a solver in float32."""

    def __init__(self, statistic):
        self._statistic = statistic

    def value_and_gradient(self, w):
        value, gradient = self._statistic.value_and_gradient(w.double())
        return value.float(), gradient.float()


def test_weights_are_solved_for_the_tapped_features():
    algorithm, batch = make("hsic").train(), make_batch()
    for module in algorithm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    features = algorithm.network.forward_features(batch.x)
    expected = solve_hsic(features, HSICSettings().solver())
    output = algorithm.loss(batch)
    torch.testing.assert_close(output.weights, expected.weights)
    assert output.weights.sum().item() == pytest.approx(8, rel=1e-5)
    assert output.diagnostics["dependence_after"] < output.diagnostics["dependence_before"]


def test_equals_erm_where_weights_may_not_differ():
    """A floor of one under the effective sample size leaves no weights but ones."""
    ours = make("hsic")
    object.__setattr__(ours.settings, "min_ess", 1.0)
    for one, two in zip(
        loss_and_gradient(ours, make_batch()), loss_and_gradient(make("erm"), make_batch()), strict=True
    ):
        assert torch.equal(one, two)


def unstable_coefficient(steps):
    """Least squares on a cause and a column that goes with what the straight line misses of it."""
    generator = torch.Generator().manual_seed(0)
    cause = torch.randn(200, generator=generator)
    bend = cause.square() - 1
    unstable = bend + 0.5 * torch.randn(200, generator=generator)
    z = torch.stack([cause, unstable], 1)
    settings = HSICSettings(steps=steps, learning_rate=0.05, penalty=0.002, min_ess=0.1).solver()
    weights = solve_hsic(z, settings).weights if steps > 1 else torch.ones(200)
    rows = torch.cat([z, torch.ones(200, 1)], 1) * weights.sqrt()[:, None]
    return torch.linalg.lstsq(rows, ((cause + bend) * weights.sqrt())[:, None]).solution[1].item()


def test_claim_independent_features_free_the_model_of_what_only_goes_along():
    """The StableNet paper: under the weights the unstable column loses its share. It is uncorrelated with the cause."""
    assert unstable_coefficient(1) > 0.6
    assert unstable_coefficient(200) < unstable_coefficient(1) / 2


def test_what_does_not_fit_is_refused():
    check_size(128, 512)
    with pytest.raises(UserError, match=r"exact HSIC of 512 features over 1024 samples needs 2\.0 GiB.*stablenet"):
        HsicPairs(torch.empty(1024, 512, device="meta"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"taps": []}, "taps must be a non-empty list"),
        ({"taps": ["stage1:maps"]}, "maps"),
        ({"steps": 0}, "steps must be"),
    ],
)
def test_wrong_settings_are_named(parameters, message):
    with pytest.raises(UserError, match=message):
        toy_method("hsic", parameters, nn.Identity(), 2)
