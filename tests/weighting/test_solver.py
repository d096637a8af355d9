"""Momentum steps by hand, and the guards: the best iterate is kept, the floor holds, overflow gives ones."""

import pytest
import torch

from stablenet.weighting import effective_sample_size
from stablenet.weighting.problem import solve_problem
from stablenet.weighting.settings import settings_of
from stablenet.weighting.solver import blend_to_ess, ess_spread_limit, optimality_gap, solve_weights
from stablenet.weighting.statistic import GramPairs


def correlated(n=96, m=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, generator=g)
    return x + 0.5 * torch.randn(n, m, generator=g), (x[:, 0] > 0).long()


def solve(z, labels=None, preset="recommended", fixed=0, **overrides):
    overrides = {"pairs": "features", **overrides}
    settings = settings_of(preset, overrides)
    return solve_problem(z, labels, torch.ones(fixed), len(z) - fixed, settings, torch.Generator().manual_seed(0))


class Fixed:
    """A statistic with a known gradient: D = target-weighted sum, so that a step can be written by hand."""

    def __init__(self, slope):
        self.slope = slope

    def value_and_gradient(self, w):
        return self.slope.to(w) @ w, self.slope.to(w)


def test_two_steps_by_hand():
    slope = torch.tensor([1.0, 2.0, 3.0])
    settings = settings_of("recommended", {"steps": 2, "penalty": 0.0, "min_ess": 0.0})
    solution = solve_weights(lambda step: [Fixed(slope)], torch.ones(0), 3, settings)
    theta, velocity = torch.zeros(3), torch.zeros(3)
    scale = slope.sum()  # D(1)
    for _ in range(2):
        w = 3 * torch.softmax(theta, 0)
        g = slope / scale
        velocity = 0.9 * velocity + 3 * w * (g - (w * g).mean())
        theta = theta - 0.05 * velocity
    torch.testing.assert_close(solution.weights, 3 * torch.softmax(theta, 0))
    assert solution.kept == 2


@pytest.mark.parametrize("preset", ["paper", "recommended"])
def test_dependence_falls_on_correlated_features(preset):
    z, _ = correlated()
    solution = solve(z, preset=preset)
    before, after = solution.dependence
    assert after < (0.6 if preset == "recommended" else 0.97) * before
    assert solution.weights.min() >= 0
    assert solution.weights.sum().item() == pytest.approx(96, rel=1e-5)


def test_independent_features_stay_near_uniform():
    z = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    solution = solve(z, penalty=0.5, preset="recommended")
    z_bad, _ = correlated(n=400, m=4)
    other = solve(z_bad, penalty=0.5, preset="recommended")
    assert effective_sample_size(solution.weights) / 400 > 0.9
    assert effective_sample_size(other.weights) < effective_sample_size(solution.weights)


def test_effective_samples_of_torch_and_numpy():
    w = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = sum(w.tolist()) ** 2 / sum(value**2 for value in w.tolist())
    for weights in (w, 3 * w, w.numpy()):
        assert abs(float(effective_sample_size(weights)) - expected) < 1e-9
    assert effective_sample_size(torch.ones(7)) == 7
    assert effective_sample_size(torch.eye(5)[0]) == 1


def test_the_kept_iterate_is_the_best_by_the_objective():
    z, y = correlated()
    solution = solve(z, y, pairs="both", learning_rate=0.6)
    assert solution.objective[int(solution.kept)] == solution.objective.min()
    assert solution.kept < 20  # a rate this large overshoots, so the last is not the best


def test_the_dependence_never_rises_however_large_the_rate():
    z, _ = correlated()
    for rate in (0.01, 1.0, 100.0, 1e6):
        solution = solve(z, learning_rate=rate)
        assert solution.dependence[1] <= solution.dependence[0]
        assert torch.isfinite(solution.weights).all()


def test_retreat_makes_use_of_a_rate_that_overshoots():
    z, _ = correlated()
    plain = solve(z, preset="paper", on_rise="go-on")
    careful = solve(z, preset="paper")
    assert plain.kept == 0  # every iterate was worse than uniform
    assert careful.dependence[1] < careful.dependence[0]
    best = careful.objective.cummin(0).values
    assert careful.objective[-1] <= best[5]


def test_ess_floor_holds_and_is_reported():
    z, _ = correlated()
    free = solve(z, penalty=0.0, learning_rate=0.3, min_ess=0.0)
    floor = 0.8
    assert effective_sample_size(free.weights) / 96 < floor
    held = solve(z, penalty=0.0, learning_rate=0.3, min_ess=floor)
    assert effective_sample_size(held.weights) / 96 >= floor - 1e-5
    assert held.guarded > 0
    assert free.guarded == 0


def test_blending_reaches_the_floor_exactly():
    w = torch.tensor([8.0, 0, 0, 0, 0, 0, 0, 0])
    blended, flag = blend_to_ess(w, ess_spread_limit(0.5))
    assert flag == 1
    assert effective_sample_size(blended).item() == pytest.approx(4, rel=1e-6)
    assert blended.sum().item() == pytest.approx(8)
    same, flag = blend_to_ess(torch.tensor([1.5, 0.5]), ess_spread_limit(0.2))
    assert flag == 0
    assert torch.equal(same, torch.tensor([1.5, 0.5]))


def test_only_the_batch_moves_and_fixed_rows_count():
    z, _ = correlated()
    solution = solve(z, fixed=48)
    assert solution.weights.shape == (48,)
    assert solution.weights.sum().item() == pytest.approx(48, rel=1e-5)
    alone = solve(z[48:])
    assert not torch.allclose(solution.weights, alone.weights, atol=1e-3)


def test_gap_bounds_what_a_better_point_could_gain_on_a_linear_function():
    g = torch.tensor([3.0, 1.0, 2.0])
    assert optimality_gap(torch.ones(3), g).item() == pytest.approx(6 - 3)
    assert optimality_gap(torch.tensor([0.0, 3.0, 0.0]), g).item() == pytest.approx(0)


def test_constant_batch_gives_exact_ones():
    for preset in ("paper", "recommended"):
        solution = solve(torch.full((7, 3), 2.5), preset=preset, scaling="standard")
        assert torch.equal(solution.weights, torch.ones(7))


def test_overflow_gives_exact_ones():
    solution = solve(1e25 * correlated()[0], scaling="none", num_functions=0, form="covariance")
    assert torch.equal(solution.weights, torch.ones(96))


def test_relative_objective_is_free_of_the_features_scale():
    z, _ = correlated()
    one = solve(z, num_functions=0)
    other = solve(1000 * z, num_functions=0)
    torch.testing.assert_close(one.weights, other.weights, atol=1e-4, rtol=1e-3)


def test_rate_decays_where_asked():
    z, _ = correlated()
    early = solve(z, decay_after=1, penalty=0.02)
    plain = solve(z, penalty=0.02)
    assert (early.weights - 1).abs().max() < (plain.weights - 1).abs().max()


def test_paper_form_is_solved_in_float64_and_returned_in_float32():
    z, _ = correlated()
    solution = solve(z, preset="paper")
    assert solution.objective.dtype == torch.float64
    assert solution.weights.dtype == torch.float32


def test_gram_statistic_in_float32_loses_digits_in_the_paper_form():
    """The reason for float64: with it gone, the objective at uniform weights is off in the fourth digit."""
    g = torch.Generator().manual_seed(0)
    u = 1 + 0.05 * torch.randn(256, 200, 3, generator=g, dtype=torch.float64)
    exact, _ = GramPairs(u, "paper").value_and_gradient(torch.ones(256, dtype=torch.float64))
    single, _ = GramPairs(u.float(), "paper").value_and_gradient(torch.ones(256))
    assert abs(single.item() / exact.item() - 1) > 1e-4


def test_a_solution_can_be_used_in_training():
    """Tensors of inference mode, in which steps are taken, cannot be saved for a backward pass."""
    solution = solve(correlated(12)[0], preset="paper")
    values = [value for value in vars(solution).values() if value is not None]
    assert len(values) == 7
    assert not any(value.is_inference() for value in values)
    loss = torch.ones(12, requires_grad=True)
    (solution.weights * loss).sum().backward()
    assert torch.equal(loss.grad, solution.weights)
