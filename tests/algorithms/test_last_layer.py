"""AFR and DFR: held-out samples, and last layers against slow solutions in float64."""

import math

import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional

from stablenet.algorithms.last_layer import (
    AFR,
    HeldOutRows,
    bound_curvature,
    descend,
    draw_balanced,
    fit_sparse,
    keep_rows,
    weigh_unsure,
)
from stablenet.errors import UserError
from tests.algorithms.biased import SAMPLES, draw, train
from tests.algorithms.test_methods import make, make_batch
from tests.engine.tiny import tiny_run


def make_rows(samples=40, width=3, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % classes
    features = torch.randn(samples, width, generator=generator)
    features[:, 0] += y
    return HeldOutRows(features, y, torch.zeros_like(y))


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_share_is_held_out_and_the_others_make_up_for_it(share):
    kept = keep_rows(50, share, seed=3)
    assert (kept == 0).sum() == 50 * share
    assert kept.mean().item() == pytest.approx(1)
    assert len(kept.unique()) == 2
    assert torch.equal(kept, keep_rows(50, share, seed=3))
    assert not torch.equal(kept, keep_rows(50, share, seed=4))


@pytest.mark.parametrize("method", ["afr", "dfr"])
def test_labels_of_held_out_samples_train_nothing(method):
    algorithm, batch = make(method).train(), make_batch()
    algorithm.kept.fill_(1.0)[batch.index[:3]] = 0.0
    output = algorithm.loss(batch)
    assert output.weights.tolist() == [0.0] * 3 + [1.0] * 5
    (output.weights * output.per_sample_loss).mean().backward()
    gradient = algorithm.first.weight.grad.clone()
    with torch.no_grad():
        logits = algorithm.first(algorithm.eval().network.forward_features(batch.x))
    assert logits.shape == (8, 3)
    assert all(p.grad is not None for p in algorithm.network.body.parameters())
    assert all(p.grad is None for p in algorithm.network.head.parameters())
    assert (gradient != 0).any()


@pytest.mark.parametrize("method", ["afr", "dfr"])
def test_held_out_samples_alone_are_read_and_modes_stay(method):
    algorithm = train(method, epochs=1)
    seen = []
    algorithm.fit_head = lambda rows: seen.append(rows) or (algorithm.first.weight, algorithm.first.bias, {})
    assert algorithm.network.training
    samples = draw(SAMPLES, 0.95, 0)
    algorithm.refit(samples)
    out = (algorithm.kept == 0).nonzero().squeeze(1)
    assert torch.equal(seen[0].y, samples.y[out])
    assert torch.equal(seen[0].domain, samples.domain[out])
    with torch.no_grad():
        torch.testing.assert_close(seen[0].features, algorithm.network.forward_features(samples.x[out]))
    assert algorithm.network.training


def test_nobody_held_out_is_said(monkeypatch):
    algorithm = make("afr")
    algorithm.kept.fill_(1.0)
    with pytest.raises(UserError, match=r"no training image is held out .* raise method\.parameters\.share"):
        algorithm.refit(draw(4, 0.5, 0))


def test_unsure_samples_and_small_classes_weigh_more_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    y = torch.tensor([0, 0, 0, 1])
    own = [math.exp(2) / (math.exp(2) + 1), 0.5, 1 / (1 + math.e), 1 / (1 + math.exp(3))]
    raw = [math.exp(-4 * p) / n for p, n in zip(own, [3, 3, 3, 1], strict=True)]
    assert weigh_unsure(logits, y, 4.0).tolist() == pytest.approx([each / sum(raw) for each in raw])


def test_afr_finds_the_minimum_that_a_general_solver_finds():
    rows, closeness = make_rows(), 0.1
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    weights = weigh_unsure(rows.features @ start[:, :3].T + start[:, 3], rows.y, 2.0)
    z = torch.cat([rows.features, torch.ones(len(rows.y), 1)], 1).double()

    def objective(flat):
        head = torch.tensor(flat).view(3, 4).requires_grad_()
        loss = (weights.double() * functional.cross_entropy(z @ head.T, rows.y, reduction="none")).sum()
        loss = loss + closeness * (head - start.double()).square().sum()
        loss.backward()
        return loss.item(), head.grad.flatten().numpy()

    expected = minimize(objective, start.flatten().double().numpy(), jac=True, method="L-BFGS-B", tol=1e-12).x
    found = descend(start, rows, weights, closeness, steps=3000, rate=1.0)
    torch.testing.assert_close(found.flatten().double(), torch.tensor(expected), atol=1e-4, rtol=0)


def test_afr_never_climbs_however_large_the_features():
    rows = make_rows()
    rows = rows._replace(features=1e3 * rows.features)
    weights = torch.full((40,), 1 / 40)
    start = torch.zeros(3, 4)
    z = torch.cat([rows.features, torch.ones(40, 1)], 1)
    exact = torch.linalg.eigvalsh(z.T @ (weights[:, None] * z))[-1].item() / 2
    assert bound_curvature(z, weights) == pytest.approx(exact, rel=0.1)
    losses = [
        functional.cross_entropy(z @ descend(start, rows, weights, 0.0, steps, 1.0).T, rows.y).item()
        for steps in range(0, 30, 3)
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.01


def test_without_steps_afr_predicts_with_what_was_trained():
    algorithm = train("afr", {"steps": 0}, epochs=1)
    assert torch.equal(algorithm.network.head.weight, algorithm.first.weight)
    assert torch.equal(algorithm.network.head.bias, algorithm.first.bias)


def test_afr_trains_its_body_as_erm_does_without_the_held_out_samples():
    ours, erm, batch = make("afr").eval(), make("erm").eval(), make_batch()
    ours.kept.fill_(1.0)
    torch.testing.assert_close(ours.loss(batch).per_sample_loss, erm.loss(batch).per_sample_loss)
    for algorithm in (ours, erm):
        algorithm.loss(batch).per_sample_loss.mean().backward()
    for one, two in zip(ours.network.body.parameters(), erm.network.body.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
    assert torch.equal(ours.first.weight.grad, erm.network.head.weight.grad)


def test_the_last_layer_is_fitted_before_every_validation(tmp_path, monkeypatch):
    """Two epochs, five judged averages, and the averaged model at the end, whose features are new."""
    heads = []

    def count(algorithm, rows):
        heads.append(rows.features.clone())
        weight = torch.full_like(algorithm.first.weight, float(len(heads)))
        return weight, algorithm.first.bias.detach(), {"calls": float(len(heads))}

    monkeypatch.setattr(AFR, "fit_head", count)
    swad = ("averaging=swad", "swad.every=3", "swad.n_converge=1", "swad.tolerance_ratio=99.0", "epochs=2")
    run = tiny_run(tmp_path / "run", "afr", *(f"train.{setting}" for setting in swad))
    steps = run.records[-1]["step"]
    averaged = run.load_model("averaged").head.weight
    judged = sum(record["kind"] == "averaging" for record in run.records)
    assert judged == -(-steps // 3)
    assert len(heads) == 2 + judged + 1
    assert (averaged == len(heads)).all()
    solved = [record for record in run.records if record["kind"] == "solve"]
    assert [record["epoch"] for record in solved] == [1, 2]
    assert (run.load_model("last").head.weight == solved[-1]["calls"]).all()


def test_balanced_subsets_hold_every_group_equally_often():
    group = torch.tensor([0] * 30 + [1] * 4 + [3] * 9)
    chosen = draw_balanced(group, repeats=5, seed=0)
    assert chosen.shape == (5, 12)
    for rows in chosen:
        assert group[rows].unique(return_counts=True)[1].tolist() == [4, 4, 4]
        assert len(rows.unique()) == 12
    assert not torch.equal(chosen[0].sort().values, chosen[1].sort().values)
    assert torch.equal(chosen, draw_balanced(group, repeats=5, seed=0))


@pytest.mark.parametrize("inverse_penalty", [0.1, 1.0])
def test_dfr_finds_the_minimum_that_a_general_solver_finds(inverse_penalty):
    """The L1 norm as the sum of positive and negative parts, which a bounded solver takes."""
    rows = make_rows(samples=30)
    z = rows.features.double()

    def objective(flat):
        parts = torch.tensor(flat, requires_grad=True)
        up, down, bias = parts[:9].view(3, 3), parts[9:18].view(3, 3), parts[18:]
        loss = up.sum() + down.sum()
        loss = loss + inverse_penalty * functional.cross_entropy(z @ (up - down).T + bias, rows.y, reduction="sum")
        loss.backward()
        return loss.item(), parts.grad.numpy()

    bounds = [(0, None)] * 18 + [(None, None)] * 3
    options = {"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-10}
    solution = minimize(objective, [0.1] * 18 + [0.0] * 3, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    expected = torch.tensor(solution.x)
    chosen = torch.stack([torch.arange(30), torch.arange(30).flip(0)])
    weights, biases = fit_sparse(rows.features, rows.y, chosen, 3, inverse_penalty)
    for weight, bias in zip(weights.double(), biases.double(), strict=True):
        torch.testing.assert_close(weight, (expected[:9] - expected[9:18]).view(3, 3), atol=2e-3, rtol=0)
        torch.testing.assert_close(bias - bias.mean(), expected[18:] - expected[18:].mean(), atol=2e-3, rtol=0)


def test_dfr_standardises_and_predicts_on_plain_features():
    """Shifting and scaling the features changes the layer, not what it says."""
    algorithm, rows = make("dfr"), make_rows(samples=60, width=make("dfr").network.width)
    weight, bias, told = algorithm.fit_head(rows)
    moved, moved_bias, _ = algorithm.fit_head(rows._replace(features=100 + 20 * rows.features))
    torch.testing.assert_close(
        (100 + 20 * rows.features) @ moved.T + moved_bias, rows.features @ weight.T + bias, atol=1e-2, rtol=0
    )
    assert told["balanced_samples"] == 60
