"""Offsets: what features predict of the labels, cross-fitting, fading, the store of a whole set."""

import copy

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from stablenet.errors import UserError
from stablenet.weighting import DatasetOffsets, solve_offsets
from stablenet.weighting.logistic import FOLDS, RIDGES, cross_fit, deal_folds, leading_components, whole_regressors
from tests.weighting.test_logistic import predicted_by_features


def missing_cell(seed=0):
    """Two classes on two grounds: the first class never stands on the second ground. The object is a weak feature."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (2000,), generator=g)
    ground = torch.where(y == 0, 0, torch.randint(0, 2, (2000,), generator=g))
    context = torch.eye(2)[ground] + 0.1 * torch.randn(2000, 2, generator=g)
    obj = 2.0 * y - 1 + torch.randn(2000, generator=g)
    return torch.cat([context, obj[:, None]], 1), context, y


def fit_network(x, y, offsets):
    """A linear network on all features, by many steps of plain gradient descent."""
    layer = torch.zeros(x.shape[1], 2, requires_grad=True)
    for _ in range(3000):
        loss = functional.cross_entropy(x @ layer + offsets, y)
        (slope,) = torch.autograd.grad(loss, layer)
        layer = (layer - 0.5 * slope).detach().requires_grad_()
    return layer.detach()


def test_offsets_are_held_out_log_odds_times_the_root_of_what_they_explain():
    z, y = predicted_by_features(dtype=torch.float32)
    fold = deal_folds(y, seed=3)
    scaled = ((z - z.mean(0)) / z.std(0, correction=0)).double()
    best = None
    for ridge in RIDGES:
        told = torch.empty(400, 3, dtype=torch.float64)
        for k in range(FOLDS):
            shown = fold != k
            model = LogisticRegression(C=1 / (2 * ridge * int(shown.sum())), tol=1e-10, max_iter=5000)
            told[~shown] = torch.tensor(model.fit(scaled[shown], y[shown]).predict_log_proba(scaled[~shown]))
        loss = -float(told.gather(1, y[:, None]).mean())
        best = (loss, told, ridge) if best is None or loss < best[0] else best
    prior = torch.bincount(y) / 400
    entropy = -float((prior * prior.log()).sum())
    explained = 1 - best[0] / entropy
    offsets = solve_offsets(z, y, seed=3)
    assert offsets.ridge == best[2]
    assert offsets.explained == pytest.approx(explained, abs=1e-3)
    torch.testing.assert_close(offsets.values.double(), explained**0.5 * (best[1] - prior.log()), atol=0.02, rtol=0)


def test_labels_that_features_do_not_predict_leave_the_loss_alone_bit_for_bit():
    z, y = predicted_by_features(dtype=torch.float32)
    shuffled = y[torch.randperm(400, generator=torch.Generator().manual_seed(5))]
    offsets = solve_offsets(z, shuffled)
    assert offsets.explained == 0.0
    assert torch.equal(offsets.values, torch.zeros(400, 3))


def test_offsets_of_components_are_whole_held_out_log_odds():
    z, y = predicted_by_features(dtype=torch.float32)
    few = leading_components(z, 2)
    assert few.shape == (400, 5)
    damped, whole = solve_offsets(few, y, seed=3), solve_offsets(z, y, components=2, seed=3)
    assert whole.explained == pytest.approx(damped.explained, abs=1e-4)
    assert 0.05 < whole.explained < 0.9
    torch.testing.assert_close(whole.explained**0.5 * whole.values, damped.values, atol=0.01, rtol=0)


def test_components_find_a_style_and_leave_the_object_to_the_network():
    """Twenty columns show one of three styles, in which classes differ; one shows the object alone."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (1500,), generator=g)
    style = torch.where(torch.rand(1500, generator=g) < 0.8, y, torch.randint(0, 3, (1500,), generator=g))
    shown = torch.randn(3, 20, generator=g)[style] + 0.3 * torch.randn(1500, 20, generator=g)
    obj = (4.0 * y - 2 + torch.randn(1500, generator=g))[:, None]
    known = solve_offsets(functional.one_hot(style).float(), y, components=2)
    few, every = (solve_offsets(torch.cat([shown, obj], 1), y, components=k) for k in (2, 0))
    assert every.explained > 0.9
    assert few.explained == pytest.approx(known.explained, abs=0.05)
    assert float((few.values - known.values).abs().mean()) < 0.2


@pytest.mark.parametrize("components", [0, 4])
def test_offsets_fade_where_nothing_would_be_left_to_learn(components):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    for gap, fades in ((1.0, False), (2.3, True), (6.0, True)):
        z = torch.randn(400, 4, generator=g) + gap * (2 * y[:, None] - 1) * torch.tensor([1.0, 0, 0, 0])
        offsets = solve_offsets(z, y, components=components)
        context = leading_components(z, 4) if components else (z - z.mean(0)) / z.std(0, correction=0)
        fold = deal_folds(y, 0)
        told = cross_fit(whole_regressors(context), y, 2, fold).predict(context, fold) - torch.tensor(0.5).log()
        trusted = told if components else offsets.explained**0.5 * told
        assert (offsets.explained > 0.9) == fades
        share = float(offsets.values.norm() / trusted.norm())
        assert (share == pytest.approx(1.0, abs=1e-3)) if not fades else share < 0.95
    assert offsets.explained > 0.99
    assert float(offsets.values.abs().max()) < 0.7  # odds of two to one at most


def test_labels_that_components_do_not_predict_leave_every_offset_at_zero():
    z, y = predicted_by_features(dtype=torch.float32)
    shuffled = y[torch.randperm(400, generator=torch.Generator().manual_seed(5))]
    assert torch.equal(solve_offsets(z, shuffled, components=3).values, torch.zeros(400, 3))


def test_a_class_unseen_on_some_ground_is_not_held_to_be_impossible_there():
    """Weights cannot raise what is not there. Plain training learns that the second ground means the second class."""
    x, context, y = missing_cell()
    plain = fit_network(x, y, torch.zeros(2000, 2))
    ours = fit_network(x, y, solve_offsets(context, y).values)
    strange = torch.tensor([[0.0, 1.0, -1.5]])  # a usual object of the first class, on the ground it never had
    says = [float(torch.softmax(strange @ layer, 1)[0, 0]) for layer in (plain, ours)]
    assert says[0] < 0.5 < says[1]
    assert abs(ours[1, 1] - ours[1, 0]) < 0.5 * abs(plain[1, 1] - plain[1, 0])


def test_classes_without_samples_and_constant_columns_do_no_harm():
    z, y = predicted_by_features(dtype=torch.float32)
    wide = torch.cat([z, torch.full((400, 1), 7.0)], 1)
    offsets = solve_offsets(wide, y, num_classes=5)
    assert torch.equal(offsets.values[:, 3:], torch.zeros(400, 2))
    torch.testing.assert_close(offsets.values[:, :3], solve_offsets(z, y).values, atol=0.02, rtol=2e-3)
    assert torch.equal(solve_offsets(z, torch.zeros_like(y)).values, torch.zeros(400, 1))
    assert solve_offsets(z[:3], y[:3], num_classes=3).values.isfinite().all()


def test_the_store_gives_the_offsets_of_one_joint_solve():
    z, y = predicted_by_features(dtype=torch.float32)
    store = DatasetOffsets(450, 3, strength=0.5, storage=torch.float32)
    for index in torch.randperm(400).split(64):
        store.collect(index, z[index], y[index])
    assert torch.equal(store(torch.arange(450)), torch.zeros(450, 3))
    solution = store.solve()
    torch.testing.assert_close(solution.values, solve_offsets(z, y).values)
    torch.testing.assert_close(store(torch.arange(400)), 0.5 * solution.values)
    assert torch.equal(store(torch.arange(400, 450)), torch.zeros(50, 3))
    assert store.features.numel() == store.labels.numel() == 0
    other = DatasetOffsets(450, 3)
    other.load_state_dict(copy.deepcopy(store.state_dict()))
    assert torch.equal(other(torch.arange(450)), store(torch.arange(450)))
    assert torch.equal(store.eval()(torch.arange(3)), torch.zeros(3, 3))


def test_weakened_offsets_stay_weak():
    z, y = predicted_by_features(dtype=torch.float32)
    store = DatasetOffsets(400, 3, strength=0.5, storage=torch.float32)
    store.collect(torch.arange(400), z, y)
    values = store.solve().values
    assert (store.weaken(), store.weaken(0.25)) == (0.5, 0.125)
    torch.testing.assert_close(store(torch.arange(400)), 0.0625 * values)
    with pytest.raises(UserError, match="a factor from 0 to 1, got -1"):
        store.weaken(-1)
    other = DatasetOffsets(400, 3, strength=0.5, storage=torch.float32)
    other.load_state_dict(copy.deepcopy(store.state_dict()))
    other.collect(torch.arange(400), z, y)
    other.solve()
    torch.testing.assert_close(other(torch.arange(400)), 0.0625 * values)


def test_the_store_knows_components():
    z, y = predicted_by_features(dtype=torch.float32)
    store = DatasetOffsets(400, 3, components=2, storage=torch.float32)
    store.collect(torch.arange(400), {"first": z[:, :2], "second": z[:, 2:]}, y)
    store.solve()
    assert torch.equal(store(torch.arange(400)), solve_offsets(z, y, components=2).values)


def test_a_state_from_before_offsets_could_be_weakened_loads():
    store = DatasetOffsets(5, 2)
    state = {name: value for name, value in store.state_dict().items() if name != "left"}
    store.weaken()
    store.load_state_dict(state)
    assert store.left == 1


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8, torch.bool])
def test_classes_of_any_integer_type(kind):
    z, y = predicted_by_features(dtype=torch.float32)
    y = y.clamp_max(1)
    assert torch.equal(solve_offsets(z, y.to(kind)).values, solve_offsets(z, y).values)


def test_autocast_does_not_reach_the_solve():
    z, y = predicted_by_features(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = solve_offsets(z, y).values
    assert torch.equal(cast, solve_offsets(z, y).values)


def test_mistakes_are_answered():
    z, y = predicted_by_features(n=20, dtype=torch.float32)
    with pytest.raises(UserError, match=r"one integer class per sample, shape \(20,\), got torch.float32"):
        solve_offsets(z, y.float())
    with pytest.raises(UserError, match="below num_classes=2, got 0 to 2"):
        solve_offsets(z, y, num_classes=2)
    with pytest.raises(UserError, match="got -1 to 1"):
        solve_offsets(z, y - 1)
    with pytest.raises(UserError, match=r"strength must be 0 or more, got -1\.0"):
        DatasetOffsets(20, 3, strength=-1.0)
    with pytest.raises(UserError, match="components must be 0 or more, got -1"):
        solve_offsets(z, y, components=-1)
    with pytest.raises(UserError, match=r"whole number.*got 2.5"):
        DatasetOffsets(20, 3, components=2.5)
    with pytest.raises(UserError, match="strength must be a finite number"):
        DatasetOffsets(20, 3, strength=float("nan"))
    with pytest.raises(UserError, match="nothing was collected"):
        DatasetOffsets(20, 3).solve()
    z[3, 1] = float("nan")
    with pytest.raises(UserError, match="column 1 of features"):
        solve_offsets(z, y)
