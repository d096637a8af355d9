"""FAR: its stages, moments and entropies against their definitions; alignment takes away, restoration gives back."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet.algorithms import ALGORITHMS, Context, build_algorithm
from stablenet.algorithms.far import RestoredParts, RestoredStage, align_moments, attend, entropy, rank_entropies
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.export import export_run
from stablenet.models import build_network
from stablenet.models.network import Backbone, Network
from tests.algorithms.test_methods import PlainStepper, make, make_batch
from tests.engine.tiny import tiny_run


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_stage(channels=6):
    torch.manual_seed(0)
    return RestoredStage(nn.Identity(), channels, reduction=2).double()


def open_gate(stage, value):
    """Fix a gate: 1 lets all of the residual through, 0 nothing."""
    stage.gate = nn.Sequential(nn.Linear(stage.channels, stage.channels), nn.Sigmoid())
    nn.init.zeros_(stage.gate[0].weight)
    nn.init.constant_(stage.gate[0].bias, 100.0 if value else -100.0)


def test_entropy_is_that_of_its_definition():
    logits = draw(5, 4)
    expected = []
    for row in logits.tolist():
        weights = [math.exp(value) for value in row]
        shares = [weight / sum(weights) for weight in weights]
        expected.append(-sum(share * math.log(share) for share in shares))
    assert entropy(logits).tolist() == pytest.approx(expected)
    assert entropy(torch.zeros(1, 7)).item() == pytest.approx(math.log(7))  # the largest there is
    assert entropy(torch.tensor([[1000.0, 0.0]])).item() == 0.0  # none, and no NaN


def test_parts_of_a_stage_are_those_of_their_definition():
    stage, maps = make_stage(), 2 + 3 * draw(3, 6, 4, 5)
    parts = stage.split(maps.flatten(2))
    torch.testing.assert_close(parts.normalised.view_as(maps), functional.instance_norm(maps, eps=1e-5))
    residual = parts.maps - parts.normalised
    torch.testing.assert_close(parts.useful + parts.useless, 2 * parts.normalised + residual)
    gate = stage.gate(residual.mean(2))
    assert ((gate > 0) & (gate < 1)).all()
    for row in range(3):
        for channel in range(6):
            expected = parts.normalised[row, channel] + gate[row, channel] * residual[row, channel]
            torch.testing.assert_close(parts.useful[row, channel], expected)
    torch.testing.assert_close(stage(maps), parts.useful.view_as(maps))


def test_an_open_gate_changes_nothing_and_a_closed_one_normalises():
    stage, maps = make_stage(), draw(2, 6, 3, 3)
    open_gate(stage, 1)
    torch.testing.assert_close(stage.double()(maps), maps)
    open_gate(stage, 0)
    torch.testing.assert_close(stage.double()(maps), functional.instance_norm(maps, eps=1e-5))


def test_with_open_gates_the_logits_are_those_of_erm():
    far, erm, batch = make("far").eval(), make("erm").eval(), make_batch()
    for stage in far._stages:
        open_gate(stage, 1)
    torch.testing.assert_close(far.network(batch.x), erm.network(batch.x), rtol=1e-4, atol=1e-5)


def test_attention_by_hand():
    """Position 1 has three quarters of the squares: (1 + 1) of 8, and (4 + 2) of 8."""
    maps = torch.tensor([[[1.0, 2.0], [1.0, math.sqrt(2)]]])
    normalised = torch.tensor([[[-1.0, 1.0], [4.0, 8.0]]])
    found = attend(RestoredParts(maps, normalised, normalised, normalised))
    assert found.tolist() == [pytest.approx([0.5, 7.0])]
    nothing = torch.zeros(1, 2, 2)
    assert attend(RestoredParts(nothing, normalised, normalised, normalised)).tolist() == [[0.0, 0.0]]


def test_moments_against_plain_loops():
    z, place = draw(9, 4), torch.tensor([0, 0, 2, 2, 2, 4, 4, 4, 4])  # domains 1 and 3 are missing, as in a batch
    expected = 0.0
    for power in (1, 2):
        means = [(z[place == domain] ** power).mean(0) for domain in (0, 2, 4)]
        centre = sum(means) / 3
        expected += sum(((mean - centre) ** 2).mean().item() for mean in means) / 3
    assert align_moments(z, place, 5).item() == pytest.approx(expected)
    assert align_moments(z, torch.zeros(9, dtype=torch.int64), 5).item() == 0.0
    twice = torch.cat([z, z])
    assert align_moments(twice, torch.arange(2).repeat_interleave(9), 2).item() == pytest.approx(0, abs=1e-20)


def test_ranking_against_its_formula_and_its_direction():
    parts, classifier = RestoredParts(*(draw(3, 6, 5, seed=k) for k in range(4))), nn.Linear(6, 4).double()
    y = torch.tensor([0, 3, 1])
    ranking, auxiliary = rank_entropies(parts, classifier, y)
    h = [entropy(classifier(part.mean(2))).tolist() for part in parts[1:]]
    expected = [math.log(1 + math.exp(h[1][k] - h[0][k])) + math.log(1 + math.exp(h[0][k] - h[2][k])) for k in range(3)]
    assert ranking.tolist() == pytest.approx(expected)
    probabilities = torch.softmax(classifier(parts.useful.mean(2)), 1).tolist()
    assert auxiliary.tolist() == pytest.approx([-math.log(probabilities[k][y[k]]) for k in range(3)])
    sure, unsure = parts.useful * 100, parts.useless * 0
    better = rank_entropies(RestoredParts(parts.maps, parts.normalised, sure, unsure), classifier, y)[0]
    worse = rank_entropies(RestoredParts(parts.maps, parts.normalised, unsure, sure), classifier, y)[0]
    assert better.mean() < worse.mean()


def test_the_loss_is_the_sum_of_its_terms():
    batch, weights = make_batch(), {"alignment": 0.5, "ranking": 0.25, "auxiliary": 2.0}
    parts, totals = {}, {}
    for name in (None, *weights):
        torch.manual_seed(0)
        network = build_network("paper-cnn", 3, parameters={"image_size": 32, "dropout": 0.0})
        context = Context(num_classes=3, num_domains=2, num_samples=8, epochs=1, seed=0, training_domains=(0, 1))
        chosen = {key: (value if key == name else 0.0) for key, value in weights.items()}
        output = build_algorithm("far", chosen, network, context).train().loss(batch)
        totals[name], parts[name] = output.per_sample_loss.mean().item(), output.diagnostics
    for name, weight in weights.items():
        added = totals[name] - totals[None]
        assert added == pytest.approx(weight * parts[name][name].item(), rel=1e-3)
        assert added > 0


def test_gradient_reaches_all_that_is_trained():
    algorithm = make("far").train()
    algorithm.loss(make_batch()).per_sample_loss.mean().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in algorithm.parameters())


class Shades(nn.Module):
    """One stage without a border or a kink, so that a shade reaches its maps as their means alone."""

    def __init__(self):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))

    def forward(self, images):
        return self.stage1(images).relu().mean((2, 3))


def draw_shades(count, generator):
    """The class is how bright the picture is, which normalising each image takes away; noise beside it."""
    y = torch.randint(0, 2, (count,), generator=generator)
    x = torch.randn(count, 3, 6, 6, generator=generator) + (2.0 * y - 1)[:, None, None, None]
    return Batch(x, y, torch.randint(0, 2, (count,), generator=generator), torch.arange(count))


def learn_shades(gate=None, **settings):
    """A method trained on them; accuracy on others. gate: fixed open or closed where given."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = Network(Backbone(Shades(), 8, {"stage1": "stage1"}), 2)
    context = Context(num_classes=2, num_domains=2, num_samples=32, epochs=1, seed=0, training_domains=(0, 1))
    algorithm = build_algorithm("far", settings, network, context).train()
    if gate is not None:
        for stage in algorithm._stages:
            open_gate(stage, gate)
            stage.gate.requires_grad_(False)
    stepper = PlainStepper(algorithm)
    for _ in range(200):
        algorithm.step(draw_shades(32, generator), stepper)
    test = draw_shades(400, generator)
    accuracy = (network.eval()(test.x).argmax(1) == test.y).float().mean().item()
    return algorithm.train(), test, accuracy


def test_restoration_gives_back_what_normalising_takes_away():
    """The paper's claim: alignment alone costs discrimination. With gates closed the classes cannot be told apart."""
    *_, restored = learn_shades()
    *_, normalised = learn_shades(gate=0)
    assert restored > 0.95
    assert normalised < 0.7


def measure_gap(ranking):
    """By how much the useless parts leave more open than the useful ones, over all stages, after training."""
    algorithm, test, _ = learn_shades(ranking=ranking, auxiliary=1.0)
    gap = 0.0
    with torch.no_grad():
        algorithm.network(test.x)
        for stage, classifier in zip(algorithm._stages, algorithm.classifiers, strict=True):
            parts = stage.take_parts()
            useful, useless = (entropy(classifier(part.mean(2))).mean() for part in (parts.useful, parts.useless))
            gap += (useless - useful).item()
    return gap


def test_the_ranking_parts_useful_from_useless():
    assert measure_gap(ranking=1.0) > measure_gap(ranking=0.0) + 0.05


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_finished_run_comes_back_with_its_gates(tmp_path, form):
    run = tiny_run(tmp_path / "run", "far", "train.epochs=1")
    assert any(".gate." in name for name in run.model.state_dict())
    recorded = next(record for record in run.records if record["kind"] == "epoch")["validation"]["accuracy"]
    samples = run.open_part("validation")
    images = run.transform(samples.pixels.read(samples.row), torch.zeros(len(samples), dtype=torch.int64))
    with torch.no_grad():
        assert (run.model(images).argmax(1) == samples.y).float().mean().item() == pytest.approx(recorded)
    assert export_run(run, form).difference < 1e-3


def test_it_says_that_it_is_an_approximation():
    kind = ALGORITHMS["far"]
    assert "not public" in kind.approximation
    assert "an approximation" in kind.title
    assert "approximation" in kind.__doc__
    assert not ALGORITHMS["erm"].approximation


def test_backbones_it_cannot_work_on_are_refused():
    context = Context(num_classes=3, num_domains=2, num_samples=8, epochs=1, seed=0, training_domains=(0, 1))
    own = build_network("mobilenet_v2", 3)
    own.stages.clear()  # as a backbone of one's own
    with pytest.raises(UserError, match="this one names none"):
        build_algorithm("far", {}, own, context)
    dense = build_algorithm("far", {}, build_network("densenet121", 3), context)
    with pytest.raises(UserError, match="FAR expected maps of"):
        dense.loss(make_batch())


@pytest.mark.parametrize("name", ["alignment", "ranking", "auxiliary", "reduction"])
def test_wrong_settings_are_named(name):
    context = Context(num_classes=3, num_domains=2, num_samples=8, epochs=1, seed=0, training_domains=(0, 1))
    with pytest.raises(UserError, match=f"{name} must be"):
        build_algorithm("far", {name: -1 if name == "reduction" else -1.0}, build_network("paper-cnn", 3), context)
