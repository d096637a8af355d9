"""Random Fourier features against their formula and the Gaussian kernel; standardisation and bandwidth."""

import math

import pytest
import torch

from stablenet.weighting.fourier import (
    apply_fourier_functions,
    draw_fourier_functions,
    median_distance,
    random_fourier_features,
    standardize,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_features_follow_the_formula():
    z = torch.randn(6, 3, generator=generator(), dtype=torch.float64)
    functions = draw_fourier_functions(3, 4, generator=generator(1), dtype=torch.float64)
    u = apply_fourier_functions(z, functions, bandwidth=2.0)
    for n in range(6):
        for i in range(3):
            for a in range(4):
                angle = functions.omega[i, a] * z[n, i] / 2.0 + functions.phase[i, a]
                assert u[n, i, a].item() == pytest.approx(math.sqrt(2) * math.cos(angle), abs=1e-12)


def test_many_functions_approach_the_gaussian_kernel():
    x = torch.tensor([[0.0], [0.3], [1.5]], dtype=torch.float64)
    u = random_fourier_features(x, 200_000, generator=generator())[:, 0]
    kernel = u @ u.T / u.shape[1]
    expected = torch.exp(-0.5 * (x - x.T) ** 2)
    torch.testing.assert_close(kernel, expected, atol=0.02, rtol=0)


def test_share_takes_that_many_features_with_one_function_each():
    z = torch.randn(5, 20, generator=generator())
    assert random_fourier_features(z, 0.3, generator=generator()).shape == (5, 6, 1)
    assert random_fourier_features(z[:, :3], 0.3, generator=generator()).shape == (5, 2, 1)
    one = draw_fourier_functions(20, 0.3, generator=generator(1)).columns
    two = draw_fourier_functions(20, 0.3, generator=generator(2)).columns
    assert len(one.unique()) == 6
    assert one.tolist() != two.tolist()


def test_zero_functions_is_the_linear_case():
    z = torch.randn(5, 2)
    assert torch.equal(random_fourier_features(z, 0), z.unsqueeze(-1))


def test_one_seed_one_result_and_the_global_state_is_left_alone():
    z = torch.randn(4, 2)
    before = torch.get_rng_state()
    first = random_fourier_features(z, 5, generator=generator(3))
    assert torch.equal(first, random_fourier_features(z, 5, generator=generator(3)))
    assert not torch.equal(first, random_fourier_features(z, 5, generator=generator(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_standardize_has_unit_scale_and_drops_constants():
    z = torch.randn(50, 4, generator=generator()) * torch.tensor([1e-30, 1.0, 1e30, 0.0]) + torch.tensor([0, 5, 0, 7.0])
    s = standardize(z)
    torch.testing.assert_close(s.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(s.square().mean(0), torch.tensor([1.0, 1, 1, 0]), atol=1e-4, rtol=0)


def test_standardize_does_not_blow_up_rounding_noise():
    z = torch.full((64, 1), 0.1) * (1 + 1e-7 * torch.randn(64, 1, generator=generator()))
    assert len(z.unique()) > 1
    assert standardize(z).abs().max() == 0


def test_median_distance_leaves_equal_values_out():
    z = torch.tensor([0.0, 0, 0, 0, 1, 4]).double()[torch.randperm(6)]
    # the distances that are not zero: four of 1, four of 4, one of 3
    assert median_distance(z[:, None]).item() == 3
    assert median_distance(torch.ones(5, 1)).item() == 1


def test_median_bandwidth_makes_the_features_free_of_scale():
    z = torch.randn(500, 2, generator=generator())
    one = random_fourier_features(z, 4, "median", generator=generator(1))
    other = random_fourier_features(7 * z, 4, "median", generator=generator(1))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_published_map_has_cosine_and_sine_of_squeezed_angles():
    z = torch.randn(5, 6, generator=generator(), dtype=torch.float64)
    functions = draw_fourier_functions(6, 2, shared=True, generator=generator(1), dtype=torch.float64)
    assert torch.equal(functions.omega[0], functions.omega[5])
    u = apply_fourier_functions(z, functions, with_sine=True, scale_phases=True)
    assert u.shape == (5, 6, 4)
    torch.testing.assert_close(u[..., :2] ** 2 + u[..., 2:] ** 2, torch.full((5, 6, 2), 1.0, dtype=torch.float64))
    angle = torch.atan2(u[..., 2:], u[..., :2])
    torch.testing.assert_close(angle.amin(1), torch.zeros(5, 2, dtype=torch.float64), atol=1e-7, rtol=0)
    torch.testing.assert_close(angle.amax(1), torch.full((5, 2), math.pi / 2, dtype=torch.float64))
