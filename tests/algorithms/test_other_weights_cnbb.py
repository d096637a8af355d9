"""CNBB: its balance by hand and by autograd, that it falls, its claim about confounded features, and ResNets."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms.other_weights import (
    CNBBSettings,
    balance_slope,
    balance_weights,
    bound_features,
    measure_balance,
)
from stablenet.errors import UserError
from stablenet.models import build_network
from tests.algorithms.test_methods import make, make_batch
from tests.algorithms.toys import loss_and_gradient, toy_method
from tests.engine.tiny import tiny_run


def draw_features(n=40, m=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(n, 1, generator=generator, dtype=dtype)
    return torch.tanh(common + torch.randn(n, m, generator=generator, dtype=dtype))


def slow_balance(g, w):
    """Treatment by treatment, feature by feature."""
    total = 0.0
    for j in range(g.shape[1]):
        treated = [i for i in range(len(g)) if g[i, j] > 0]
        control = [i for i in range(len(g)) if g[i, j] <= 0]
        if not treated or not control:
            continue
        for k in range(g.shape[1]):
            if k != j:
                sides = [sum(w[i] * g[i, k] for i in side) / sum(w[i] for i in side) for side in (treated, control)]
                total += (sides[0] - sides[1]) ** 2
    return float(total)


def test_balance_against_loops():
    g = draw_features(12, 4)
    g[:, 3] = g[:, 3].abs() + 0.1  # all on one side: no treatment, but still to be balanced
    w = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert measure_balance(g, g > 0, w).item() == pytest.approx(slow_balance(g, w), rel=1e-12)


def test_balance_by_hand():
    """Treatment 0 splits feature 1 into 0.4 and −0.2; treatment 1 splits feature 0 into 0.5 and (0.5 − 0.5)/2."""
    g = torch.tensor([[0.5, 0.4], [0.5, 0.0], [-0.5, -0.2]])
    w = torch.tensor([1.0, 0.0, 1.0])
    assert measure_balance(g, g > 0, w).item() == pytest.approx(0.6**2 + 1.0**2)


def test_slope_against_autograd():
    g = draw_features()
    g[:, 0] = g[:, 0].abs()
    w = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_(True)
    (expected,) = torch.autograd.grad(measure_balance(g, g > 0, w), w)
    torch.testing.assert_close(balance_slope(g, g > 0, w.detach()), expected)


def test_balance_falls_at_the_published_settings_on_the_papers_cnn():
    """Over a few steps of training, in every one."""
    algorithm = make("cnbb").train()
    optimizer = torch.optim.SGD(algorithm.parameters(), 0.01)
    for step in range(4):
        output = algorithm.loss(make_batch(step))
        told = {name: value.item() for name, value in output.diagnostics.items()}
        assert 0 < told["balance_after"] < told["balance_before"]
        assert told["compared"] > 0.5
        assert told["ess_ratio"] > 0.5
        optimizer.zero_grad()
        output.per_sample_loss.mean().backward()
        optimizer.step()


def test_weights_are_positive_and_sum_to_n_even_after_a_step_too_far():
    for rate in (1e-4, 1e3):
        weights, _ = balance_weights(draw_features().float(), CNBBSettings(rate=rate))
        assert (weights > 0).all()
        assert weights.sum().item() == pytest.approx(40, rel=1e-5)


def test_loss_by_its_formula():
    """Σ w·CE − γ·Σ‖g‖² with weights that sum to one; settings under which both terms show."""
    algorithm, batch = make("cnbb").train(), make_batch()
    for module in algorithm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    object.__setattr__(algorithm, "settings", CNBBSettings(rate=0.01, quantisation=0.03))
    g = algorithm.network.forward_features(batch.x)
    w = balance_weights(g.detach(), algorithm.settings)[0] / len(g)
    losses = functional.cross_entropy(algorithm.network(batch.x), batch.y, reduction="none")
    weighted, sharpness = (w * losses).sum(), 0.03 * g.square().sum()
    assert (weighted - losses.mean()).abs() > 1e-3
    assert sharpness > 1e-3
    torch.testing.assert_close(algorithm.loss(batch).per_sample_loss.mean(), weighted - sharpness)


def test_equals_erm_around_the_same_network_without_steps_and_quantisation():
    ours, other = make("cnbb"), make("erm")
    object.__setattr__(ours, "settings", CNBBSettings(steps=0, quantisation=0.0))
    bound_features(other.network)
    for one, two in zip(loss_and_gradient(ours, make_batch()), loss_and_gradient(other, make_batch()), strict=True):
        torch.testing.assert_close(one, two)


def test_features_are_bounded_by_tanh_in_place_of_a_last_relu():
    network = build_network("paper-cnn", 3, parameters={"image_size": 32})
    bound_features(network)
    assert isinstance(network.body.fc[2], nn.Tanh)
    features = network.forward_features(10 * make_batch().x)
    assert (features.abs() <= 1).all()
    assert (features < 0).any()


def test_other_networks_have_tanh_behind_them_and_keep_their_stages():
    network, images = build_network("resnet18", 3).eval(), make_batch().x
    before = network.forward_features(images)
    bound_features(network)
    torch.testing.assert_close(network.forward_features(images), torch.tanh(before))
    network.tap(["stage1"])
    assert network.forward_taps(images)[1].shape == (8, 128)


@pytest.mark.parametrize("side", [32, 96])
def test_failure_on_resnets_is_told(side):
    """As the StableNet paper reports: averaged features have one side only, single ones make the step too long."""
    told = make("cnbb", "resnet").train().loss(make_batch(side=side)).diagnostics
    if side == 32:  # maps of one position
        assert told["compared"] > 0.9
        assert told["balance_after"] > told["balance_before"]
    else:
        assert told["compared"] < 0.05
        assert told["ess_ratio"] > 0.99


def test_a_trained_run_is_loaded_with_its_tanh(tmp_path):
    run = tiny_run(tmp_path / "run", "cnbb", "train.epochs=1")
    model = run.load_model("last")
    features = model.forward_features(5 * torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(0)))
    assert (features.abs() <= 1).all()
    assert (features < 0).any()


def confounded_effect(steps):
    """The difference of an outcome between the sides of a treatment that has no effect on it."""
    generator = torch.Generator().manual_seed(0)
    cause = torch.randn(300, 1, generator=generator)
    treatment = cause + 0.7 * torch.randn(300, 1, generator=generator)
    g = torch.tanh(torch.cat([cause, treatment], 1))
    outcome = torch.sigmoid(3 * cause[:, 0])
    weights, _ = balance_weights(g, CNBBSettings(steps=steps, rate=1e-3))
    on = g[:, 1] > 0
    means = [(weights[side] @ outcome[side]) / weights[side].sum() for side in (on, ~on)]
    return (means[0] - means[1]).item()


def test_claim_balancing_removes_a_confounded_effect():
    """He et al.: with balanced causes, a feature that only goes with them seems to matter less; without steps not."""
    assert confounded_effect(0) > 0.4
    assert confounded_effect(40) < confounded_effect(0) / 4


@pytest.mark.parametrize("name", ["steps", "rate", "decay", "quantisation"])
def test_negative_settings_are_refused(name):
    with pytest.raises(UserError, match=f"parameters.{name} must be 0 or more"):
        toy_method("cnbb", {name: -1}, nn.Identity(), 2)
