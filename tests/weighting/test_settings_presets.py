"""The presets: `published` against a clean-room version of the authors' code, and what the documents say."""

import dataclasses

import pytest
import torch
from benchmarks.published import Table, balance_loss, fourier_channels, learn_weights, update_table

from stablenet import StableWeighting
from stablenet.errors import UserError
from stablenet.randomness import mix_seed
from stablenet.weighting import PRESETS, WeightingSettings, effective_sample_size
from stablenet.weighting.problem import draw_functions, draw_statistics, solve_problem
from stablenet.weighting.settings import settings_of


def batches(count, n=128, m=5):
    g = torch.Generator().manual_seed(0)
    for _ in range(count):
        x = torch.randn(n, 1, generator=g)
        yield x + 0.5 * torch.randn(n, m, generator=g)


def test_published_equals_a_clean_room_version_over_many_batches():
    """Twelve batches: past the ten of the running mean, with a short one among them."""
    weighting = StableWeighting("published", seed=7)
    table = Table(torch.zeros(128, 5), torch.zeros(128))
    for call, z in enumerate(batches(12)):
        z = z[:50] if call == 10 else z
        generator = torch.Generator().manual_seed(mix_seed(7, call))

        def draw(generator=generator):
            functions = draw_functions(5, weighting.settings, generator)
            return functions.omega[0], functions.phase

        logits, p = learn_weights(z, table, draw)
        w = weighting(z)
        torch.testing.assert_close(w, len(z) * p, atol=2e-6, rtol=0)
        update_table(table, z, logits, call)
        torch.testing.assert_close(weighting.memory.features[0], table.features, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(weighting.memory.measure[0], table.logits, atol=1e-6, rtol=1e-4)


def test_published_statistic_equals_the_clean_room_loss():
    (z,) = batches(1, n=20)
    settings = settings_of("published", {"num_functions": 3})
    w = torch.rand(20)
    w = w * 20 / w.sum()
    functions = draw_functions(5, settings, torch.Generator().manual_seed(1))
    expected = balance_loss(fourier_channels(z, functions.omega[0], functions.phase), w / 20)
    (statistic,) = draw_statistics(z, None, settings, torch.Generator().manual_seed(1))(0)
    assert statistic.value_and_gradient(w)[0].item() == pytest.approx(expected.item(), rel=1e-4)


PLAIN = {"fourier": "cosine", "scaling": "standard"}


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"num_functions": 2, "bandwidth": "median"},
        PLAIN,
        {**PLAIN, "num_functions": 0.8},
        {**PLAIN, "pairs": "both"},
        {**PLAIN, "pairs": "labels", "objective": "share", "penalty": 0.01, "chance": 0.5},
    ],
    ids=str,
)
def test_how_many_draws_are_applied_at_once_changes_nothing(monkeypatch, overrides):
    (z,) = batches(1, n=20)
    labels = (z[:, 0] > 0).long()
    z[:, 2] = 3.0  # a constant column
    settings = settings_of("published", {**overrides, "steps": 6})
    found = []
    for draws in (1, 2, 7):  # of the seven steps: each alone; pairs, with one left; all
        angles = draws * z.numel() * max(1, int(settings.num_functions))
        monkeypatch.setattr("stablenet.weighting.problem.ANGLES_AT_ONCE", angles)
        solution = solve_problem(z, labels, torch.zeros(0), 20, settings, torch.Generator().manual_seed(1))
        found.append((solution.objective, solution.weights))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)
    assert len(set(found[0][0].tolist())) == 7


def test_steps_are_drawn_in_any_order():
    (z,) = batches(1, n=20)
    draw = draw_statistics(z, None, settings_of("published", {"steps": 6}), torch.Generator().manual_seed(1))
    w = torch.ones(20)
    late, first = ([part.value_and_gradient(w)[0] for part in draw(step)] for step in (6, 0))
    assert late != first


@pytest.mark.parametrize("redraw", ["batch", "step"])
def test_linear_features_have_nothing_to_draw(redraw):
    (z,) = batches(1, n=20)
    settings = settings_of("recommended", {"pairs": "features", "num_functions": 0, "redraw": redraw})
    draw = draw_statistics(z, None, settings, torch.Generator().manual_seed(1))
    assert draw(0) is draw(1)


def test_published_defaults_hardly_move_the_weights():
    weighting = StableWeighting("published")
    for z in batches(4):
        w = weighting(z)
    assert (w - 1).abs().max() < 0.05


CHANGES = {
    "num_functions": 5,
    "fourier": "cosine",
    "scaling": "none",
    "redraw": "batch",
    "form": "paper",
    "pairing": "all",
    "objective": "sum",
    "penalty": 0.3,
    "learning_rate": 3.0,
    "decay_after": None,
    "logits": "block",
    "keep": "best",
    "memory_start": "fill",
    "memory_holds": "weights",
    "memory_rows": None,
    "groups": 2,
    "min_ess": 0.999999,
    "memory": "queue",
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_row_of_the_published_column_can_be_switched_alone(name):
    change = {name: CHANGES[name]}
    if name == "memory":
        change["memory_start"] = "fill"
    plain, switched = StableWeighting("published", seed=1), StableWeighting("published", seed=1, **change)
    for z in batches(3, n=64):
        before, after = plain(30 * z), switched(30 * z)
    assert torch.isfinite(after).all()
    assert after.sum().item() == pytest.approx(64, rel=1e-5)
    if name not in ("min_ess", "keep"):  # these two act only where there is something to guard or to discard
        assert not torch.equal(before, after)


def test_the_preset_table_shows_every_setting_of_all():
    lines = StableWeighting.preset_table().splitlines()
    assert lines[0].split() == ["setting", "paper", "paper-covariance", "published", "recommended"]
    assert [line.split()[0] for line in lines[2:]] == [f.name for f in dataclasses.fields(WeightingSettings)]
    assert "penalty 0.3 0.3 70.0 0.5" in [" ".join(line.split()) for line in lines]


def test_presets_are_what_the_documents_say():
    paper, published = PRESETS["paper"], PRESETS["published"]
    assert (paper.num_functions, paper.form, paper.penalty, paper.learning_rate) == (5, "paper", 0.3, 3.0)
    assert (published.num_functions, published.penalty, published.learning_rate) == (1, 70.0, 1.0)
    assert (published.steps, published.decay_after, published.memory_rows) == (20, 10, 128)


def test_the_papers_method_with_the_weighted_covariance_moves_its_weights():
    """Literally, the statistic grows with unevenness: weights stay near ones where the covariance's do not."""
    paper, read = PRESETS["paper"], PRESETS["paper-covariance"]
    changed = {f.name for f in dataclasses.fields(paper) if getattr(paper, f.name) != getattr(read, f.name)}
    assert changed == {"form", "scaling", "objective"}
    assert (read.form, read.scaling, read.objective, read.penalty) == ("covariance", "standard", "relative", 0.3)
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(128, 1, generator=generator)
    z = shared + 0.3 * torch.randn(128, 64, generator=generator)
    moved = {name: float((StableWeighting(name, seed=0)(z) - 1).abs().mean()) for name in ("paper", "paper-covariance")}
    assert moved["paper-covariance"] > 3 * moved["paper"] > 0


def test_keywords_override_the_preset():
    weighting = StableWeighting("paper", num_functions=2, alphas=[0.5, 0.6], groups=2, bandwidth="median")
    assert weighting.settings.num_functions == 2
    assert weighting.settings.alphas == (0.5, 0.6)
    assert weighting.settings.penalty == 0.3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"preset": "papr"}, "unknown preset 'papr': did you mean 'paper'"),
        ({"lerning_rate": 1}, "did you mean 'learning_rate'"),
        ({"form": "covarance"}, "did you mean 'covariance'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"num_functions": 2.5}, "whole number, or a share below 1"),
        ({"bandwidth": "mean"}, r"bandwidth must be a number \(positive\) or 'median'"),
        ({"penalty": -1}, "penalty must be 0 or more"),
        ({"min_ess": 2}, "min_ess must be between 0 and 1"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"alphas": (0.5,), "groups": 2, "memory": "average"}, "one value per group"),
        ({"alphas": (1.5,), "groups": 1, "memory": "average"}, r"alphas\[0\] must be at least 0 and below 1"),
        ({"alphas": (0.5,)}, "left out with a queue"),
        ({"memory": "queue", "memory_start": "running-mean"}, "'fill' with a queue"),
        ({"scaling": "phase", "num_functions": 0}, "at least 1 with this Fourier map"),
        ({"logits": "joint", "tolerance": 0.1}, "has no gap"),
        ({"keep": "last", "on_rise": "retreat"}, "keep must be 'best'"),
        ({"method": "fused"}, "not possible here: the features are on the cpu device"),
    ],
)
def test_wrong_settings_are_answered(overrides, message):
    with pytest.raises(UserError, match=message):
        StableWeighting(**overrides)(torch.randn(8, 3), labels=torch.arange(8) % 2)


def test_the_literal_form_of_the_paper_puts_all_weight_on_few_samples():
    """What docs/presets.md says of many features: without retreat and floor, all weight ends on one sample,
    and two are the least that is allowed."""
    z = torch.rand(64, 256, generator=torch.Generator().manual_seed(0)).exp()
    preset, literal = StableWeighting("paper"), StableWeighting("paper", on_rise="go-on", keep="last", min_ess=0.0)
    kept = StableWeighting("paper", on_rise="go-on")
    assert effective_sample_size(literal(z)) == pytest.approx(2, abs=1e-4)
    assert preset(z).max() < 1.5
    assert preset.diagnostics["dependence_after"] < preset.diagnostics["dependence_before"]
    kept(z)
    assert kept.diagnostics["kept_step"] == 0


def test_rows_of_the_published_table_beyond_a_smaller_batch_stay_zero():
    weighting = StableWeighting("published")
    for seed in range(12):
        weighting(torch.rand(48, 8, generator=torch.Generator().manual_seed(seed)))
    assert weighting.memory.features[0, :48].abs().sum(1).all()
    assert not weighting.memory.features[0, 48:].any()
