"""Weights of a whole set: what they raise and leave alone, strength, collecting by index, saved state."""

import copy

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import DatasetWeighting, effective_sample_size, label_dependence, solve_dataset, standardize


def contexts(n=600, seed=0):
    """Labels, contexts that agree with them four times in five, and features that show the context."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=g)
    strange = torch.rand(n, generator=g) < 0.2
    context = torch.where(strange, torch.randint(0, 4, (n,), generator=g), labels)
    z = torch.eye(4)[context] @ torch.randn(4, 20, generator=g) + 0.3 * torch.randn(n, 20, generator=g)
    return z, labels, context


def test_samples_whose_context_disagrees_are_raised():
    z, labels, context = contexts()
    solution = solve_dataset(z, labels)
    w = solution.weights
    assert w.sum().item() == pytest.approx(600, rel=1e-4)
    assert w[context != labels].mean() > 2.5
    assert solution.dependence[1] < 0.1 * solution.dependence[0]


def test_the_reported_dependence_is_that_of_the_public_function():
    z, labels, _ = contexts()
    solution = solve_dataset(z, labels, preset="paper", pairs="labels", form="covariance", scaling="standard")
    u = standardize(z).unsqueeze(-1)
    for value, w in zip(solution.dependence, (torch.ones(600), solution.weights), strict=True):
        assert label_dependence(u, labels, w).item() == pytest.approx(value.item(), rel=1e-3)


def test_contexts_become_alike_in_every_class():
    z, labels, context = contexts()
    w = solve_dataset(z, labels).weights

    def distance_from_alike(w):
        table = torch.zeros(4, 4)
        table.index_put_((labels, context), w, accumulate=True)
        shares = table / table.sum(1, keepdim=True)
        return (shares - shares.mean(0)).abs().max()

    assert distance_from_alike(w) < 0.5 * distance_from_alike(torch.ones(600))


def test_labels_that_context_does_not_predict_leave_the_weights_nearly_alone():
    z, labels, _ = contexts()
    shuffled = labels[torch.randperm(600, generator=torch.Generator().manual_seed(1))]
    raised = effective_sample_size(solve_dataset(z, labels, penalty=0.5).weights)
    calm = effective_sample_size(solve_dataset(z, shuffled, penalty=0.5).weights)
    assert calm / 600 > 0.9
    assert raised < calm


def test_every_class_keeps_its_total():
    z, labels, _ = contexts()
    w, free = (solve_dataset(z, labels, totals=totals).weights for totals in ("classes", "all"))
    means = torch.stack([w[labels == label].mean() for label in range(4)])
    torch.testing.assert_close(means, torch.ones(4), rtol=1e-4, atol=0)
    assert (torch.stack([free[labels == label].mean() for label in range(4)]) - 1).abs().max() > 0.01


def test_chance_is_left_alone_and_context_is_not():
    """Few samples and many features: permuted labels can be fitted by weights, and should not be."""
    z, labels, _ = contexts(n=100)
    shuffled = labels[torch.randperm(100, generator=torch.Generator().manual_seed(1))]
    real, chance = (effective_sample_size(solve_dataset(z, y).weights) / 100 for y in (labels, shuffled))
    fitted = effective_sample_size(solve_dataset(z, shuffled, chance=0.0).weights) / 100
    assert chance > 0.8
    assert real < 0.6
    assert fitted < chance - 0.1


def test_strength_blends_the_weights_exactly_at_both_ends():
    z, labels, _ = contexts()
    weighting, every = DatasetWeighting(600), torch.arange(600)
    weighting.collect(every, z, labels)
    solved = weighting.solve().weights
    assert torch.equal(weighting(every), solved)
    weighting.set_strength(0.0)
    assert torch.equal(weighting(every), torch.ones(600))
    weighting.set_strength(0.25)
    torch.testing.assert_close(weighting(every), 0.75 + 0.25 * solved)
    assert copy.deepcopy(weighting).strength == 0.25
    with pytest.raises(UserError, match="must be between 0 and 1"):
        weighting.set_strength(1.5)


def test_the_store_gives_the_weights_of_one_joint_solve():
    z, labels, _ = contexts()
    store = DatasetWeighting(600, storage=torch.float32)
    for index in torch.randperm(600).split(64):
        store.collect(index, z[index], labels[index])
    assert torch.equal(store(torch.arange(5)), torch.ones(5))
    solution = store.solve()
    expected = solve_dataset(z, labels)
    torch.testing.assert_close(solution.weights, expected.weights)
    assert store.features.numel() == store.labels.numel() == 0  # a checkpoint carries weights, not features
    index = torch.tensor([5, 3, 599])
    assert torch.equal(store(index), solution.weights[index])
    assert torch.equal(store.eval()(index), torch.ones(3))


def test_autocast_does_not_reach_the_solve():
    z, labels, _ = contexts()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = solve_dataset(z, labels).weights
    assert torch.equal(cast, solve_dataset(z, labels).weights)


def test_half_precision_storage_is_close():
    z, labels, _ = contexts()
    store = DatasetWeighting(600)
    store.collect(torch.arange(600), z, labels)
    torch.testing.assert_close(store.solve().weights, solve_dataset(z, labels).weights, atol=0.02, rtol=0.02)


def test_samples_never_collected_weigh_one():
    z, labels, _ = contexts()
    store = DatasetWeighting(700)
    store.collect(torch.arange(600), z, labels)
    assert store.solve().weights.shape == (600,)
    assert torch.equal(store(torch.arange(600, 700)), torch.ones(100))


def test_a_solve_takes_what_was_collected_since_the_last_one():
    z, labels, _ = contexts()
    store = DatasetWeighting(600)
    store.collect(torch.arange(600), z, labels)
    store.solve()
    store.collect(torch.arange(300), z[:300], labels[:300])
    assert store.solve().weights.shape == (300,)
    assert torch.equal(store(torch.arange(300, 600)), torch.ones(300))


def test_state_survives_saving_in_the_middle_of_an_epoch():
    z, labels, _ = contexts()
    one, other = DatasetWeighting(600), DatasetWeighting(600)
    one.collect(torch.arange(600), z, labels)
    one.solve()
    one.collect(torch.arange(300), z[:300], labels[:300])
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for store in (one, other):
        store.collect(torch.arange(300, 600), z[300:], labels[300:])
        store.solve()
    assert torch.equal(one.weights, other.weights)


def test_mistakes_are_answered():
    z, labels, _ = contexts(n=20)
    with pytest.raises(UserError, match="nothing was collected"):
        DatasetWeighting(20).solve()
    with pytest.raises(UserError, match="num_samples must be at least 1"):
        DatasetWeighting(0)
    with pytest.raises(UserError, match=r"num_samples must be a whole number, got 2\.5"):
        DatasetWeighting(2.5)
    with pytest.raises(UserError, match=r"the strength of weights must be between 0 and 1, got 1\.5"):
        DatasetWeighting(2).set_strength(1.5)
    with pytest.raises(UserError, match="one entry per sample"):
        DatasetWeighting(20).collect(torch.arange(3), z, labels)
    with pytest.raises(UserError, match="labels are needed"):
        solve_dataset(z)
    store = DatasetWeighting(20)
    store.collect(torch.arange(20), 1e6 * z, labels)
    with pytest.raises(UserError, match=r"overflow torch.float16.*storage=torch.float32"):
        store.solve()
    z[3, 1] = float("nan")
    with pytest.raises(UserError, match="column 1 of features"):
        solve_dataset(z, labels)


@pytest.mark.parametrize("form", ["covariance", "paper"])
@pytest.mark.parametrize("strength", [0.0, 0.1, 0.37, 0.8, 1.0])
def test_the_dependence_told_is_that_of_the_weights_handed_out(form, strength):
    """Measured anew, by the definition, for the weights at a strength that no solve has seen."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    z = torch.randn(60, 4, generator=g) + y[:, None] * torch.tensor([1.0, 0.5, 0.0, 0.0])
    weighting = DatasetWeighting(60, "paper", storage=torch.float32, form=form, pairs="labels", penalty=1e-3)
    weighting.collect(torch.arange(60), z, y)
    weighting.solve()
    weighting.set_strength(strength)
    handed = weighting(torch.arange(60))
    u, w = z.double()[..., None], handed.double()
    expected = [label_dependence(u, y, weights, form=form) for weights in (torch.ones_like(w), w)]
    torch.testing.assert_close(weighting.dependence.double(), torch.stack(expected), rtol=1e-4, atol=1e-7)
    assert weighting.describe()["largest_weight"] == pytest.approx(float(handed.max()))


def test_states_of_the_first_release_go_on(tmp_path):
    weighting = DatasetWeighting(8)
    weighting.collect(torch.arange(8), torch.randn(8, 3), torch.arange(8) % 2)
    weighting.solve()
    old = {name: value for name, value in weighting.state_dict().items() if name != "course"}
    other = DatasetWeighting(8)
    other.load_state_dict(old)
    assert torch.equal(other(torch.arange(8)), weighting(torch.arange(8)))
    assert torch.equal(other.dependence, weighting.dependence)
