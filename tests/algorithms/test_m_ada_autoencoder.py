"""The Wasserstein autoencoder: density, codes, reconstructions; and the ascent: a step by hand, harder images."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms.m_ada import MADASettings, ascend, fit_autoencoder, log_density, shrink


def make_images(number=96, values=27, seed=0):
    """Images of three kinds, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    kinds = (torch.rand(3, values, generator=generator) > 0.5).float()
    noise = 0.1 * torch.rand(number, values, generator=generator)
    return (kinds[torch.arange(number) % 3] * 0.8 + noise).clamp(0, 1)


def fit(epochs, images=None, seed=0):
    return fit_autoencoder(make_images() if images is None else images, epochs, torch.Generator().manual_seed(seed))


def test_density_is_that_of_a_standard_normal():
    codes = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normal = torch.distributions.MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    torch.testing.assert_close(log_density(codes), normal.log_prob(codes))


def test_reconstructions_come_nearer():
    images = make_images()
    errors = [(fit(epochs)(images) - images).square().mean().item() for epochs in (1, 40)]
    assert errors[1] < 0.3 * errors[0]
    spread = (images - images.mean(0)).square().mean().item()
    assert errors[1] < 0.3 * spread  # it tells images apart


def test_critic_draws_codes_towards_the_prior(monkeypatch):
    """Without its word they are less likely there."""
    images, likelihood = make_images(), {}
    for weight in (100.0, 0.0):
        monkeypatch.setattr("stablenet.algorithms.m_ada.ADVERSARY", weight)
        likelihood[weight] = log_density(fit(40).encoder(images)).mean().item()
    assert likelihood[100.0] > likelihood[0.0] + 1


def test_same_seed_same_autoencoder_whatever_the_global_generator():
    one = fit(2)
    torch.rand(7)
    two, other = fit(2), fit(2, seed=1)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.encoder[0].weight, other.encoder[0].weight)
    assert not any(p.requires_grad for p in one.parameters())


@pytest.mark.parametrize("number", [1, 33])
def test_short_batches(number):
    reconstructions = fit(1, make_images(number))(make_images(number))
    assert reconstructions.shape == (number, 27)
    assert ((reconstructions > 0) & (reconstructions < 1)).all()


SIDE, CLASSES = 8, 3
GENTLE = MADASettings(ascent_steps=40, ascent_rate=10.0, relaxation=20.0, constraint=0.5, copy_size=4)
FIRM = replace(GENTLE, ascent_rate=100.0)


def make_case(number=10, dtype=torch.float64):
    """Images, labels, a network in two parts and an autoencoder of quarter-size copies."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(54, 7), nn.Tanh()).to(dtype)
        head = nn.Linear(7, CLASSES, dtype=dtype)
        many = torch.rand(64, 3, SIDE, SIDE)
        images = many[:number]
    autoencoder = fit_autoencoder(shrink(many, 4), 60, torch.Generator().manual_seed(0)).to(dtype)

    def look(x):
        features = body(x)
        return features, head(features)

    return images.to(dtype), torch.arange(number) % CLASSES, look, autoencoder


def measure(start, end, labels, look, autoencoder, side=4):
    """Cross-entropy, distance of reconstructions and of features (b,) of the images at the end."""
    features, logits = look(end)
    near = ((features - look(start)[0]) ** 2).mean(1)
    far = ((autoencoder(shrink(end, side)) - autoencoder(shrink(start, side))) ** 2).mean(1)
    return functional.cross_entropy(logits, labels, reduction="none"), far, near


@pytest.mark.parametrize(("side", "small"), [(8, 4), (32, 32), (6, 4)])
def test_copies_are_means(side, small):
    images = torch.rand(2, 3, side, side)
    copies = shrink(images, small).view(2, 3, small, small)
    if side % small == 0:
        step = side // small
        expected = images.view(2, 3, small, step, small, step).mean((3, 5))
        torch.testing.assert_close(copies, expected)
    assert copies.min() >= images.min()
    assert copies.max() <= images.max()


def test_one_step_is_the_gradient():
    """From the start both distances are at their minimum: the first step is that of the cross-entropy alone."""
    images, labels, look, autoencoder = make_case()
    moved = ascend(images, labels, look, autoencoder, replace(GENTLE, ascent_steps=1))
    x = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(look(x)[1], labels, reduction="sum"), x)
    torch.testing.assert_close(moved - images, 10.0 / 32 * SIDE**2 / 32**2 * gradient)


def test_second_step_by_finite_differences():
    images, labels, look, autoencoder = make_case(2)
    ascent = replace(GENTLE, ascent_steps=1)
    start = ascend(images, labels, look, autoencoder, ascent)
    moved = ascend(images, labels, look, autoencoder, replace(ascent, ascent_steps=2))

    def objective(x):
        loss, far, near = measure(images, x, labels, look, autoencoder)
        return (loss + 20.0 * far - 0.5 * near).sum()

    for place in ((0, 0, 1, 1), (1, 2, 5, 3), (1, 0, 7, 7)):
        up, down = start.clone(), start.clone()
        up[place] += 1e-6
        down[place] -= 1e-6
        slope = (objective(up) - objective(down)).item() / 2e-6
        assert (moved - start)[place].item() == pytest.approx(10.0 / 32 * SIDE**2 / 32**2 * slope, rel=1e-5, abs=1e-10)


def test_images_are_harder_and_within_the_constraint():
    """What is climbed rises from CE(x), so that constraint·MSE(f) ≤ CE(x⁺) − CE(x) + relaxation·MSE(V)."""
    images, labels, look, autoencoder = make_case()
    moved = ascend(images, labels, look, autoencoder, GENTLE)
    loss, far, near = measure(images, moved, labels, look, autoencoder)
    gain = loss - measure(images, images, labels, look, autoencoder)[0]
    assert (gain > 0).all()
    assert (0.5 * near <= gain + 20.0 * far).all()


def test_constraint_holds_features_back():
    images, labels, look, autoencoder = make_case()
    changes = []
    for constraint in (0.0, 2.0, 20.0):
        moved = ascend(images, labels, look, autoencoder, replace(FIRM, relaxation=0.0, constraint=constraint))
        changes.append(measure(images, moved, labels, look, autoencoder)[2].mean().item())
    assert changes[0] > 1.5 * changes[1] > 1.5 * changes[2]


def test_relaxation_drives_images_away_from_the_source():
    """The paper's ablation: without it augmented domains stay close."""
    images, labels, look, autoencoder = make_case()
    distances, changes = [], []
    for relaxation in (0.0, 2000.0):
        moved = ascend(images, labels, look, autoencoder, replace(FIRM, relaxation=relaxation))
        distances.append(measure(images, moved, labels, look, autoencoder)[1].mean().item())
        changes.append((moved - images).square().mean().item())
    assert distances[1] > 10 * distances[0]
    assert changes[1] > 10 * changes[0]


def test_an_image_moves_alike_in_any_batch():
    images, labels, look, autoencoder = make_case()
    together = ascend(images, labels, look, autoencoder, GENTLE)
    alone = ascend(images[3:4], labels[3:4], look, autoencoder, GENTLE)
    torch.testing.assert_close(together[3:4], alone)


def test_large_images_move_as_far_as_small_ones():
    """The same picture in twice the pixels, for a network that sees their mean: every pixel moves as far."""
    images, labels, _, autoencoder = make_case()
    head = torch.randn(3, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def look(x):
        return x.mean((2, 3)), x.mean((2, 3)) @ head

    large = images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    small_step = ascend(images, labels, look, autoencoder, GENTLE) - images
    large_step = ascend(large, labels, look, autoencoder, GENTLE) - large
    torch.testing.assert_close(large_step, small_step.repeat_interleave(2, 2).repeat_interleave(2, 3))
