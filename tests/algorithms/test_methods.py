"""Every method on every family of backbones; what ERM and StableNet compute, against slow versions."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn import functional

from stablenet.algorithms import ALGORITHMS, Context, TrainingSet, build_algorithm
from stablenet.algorithms.stablenet import read_dependence
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import build_network
from stablenet.weighting import StableWeighting, solve_dataset
from tests.algorithms.cases import METHODS, PLAIN, UNSUPPORTED

FAMILIES = {
    "paper-cnn": ("paper-cnn", {"image_size": 32}),
    "resnet": ("resnet18", {}),
    "vit": ("timm/vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 4, "embed_dim": 48}),
}
BATCH, CLASSES = 8, 3


def make_batch(step=0, labels=None, side=32):
    """Two domains; the classes in turn unless labels are given."""
    generator = torch.Generator().manual_seed(step)
    y = torch.arange(BATCH) % CLASSES if labels is None else torch.tensor(labels)
    x = torch.rand(len(y), 3, side, side, generator=generator) + y.view(-1, 1, 1, 1) / 3
    return Batch(x, y, torch.arange(len(y)) % 2, torch.arange(len(y)) + BATCH * (step % 3))


def make(method, family="paper-cnn"):
    name, parameters = FAMILIES[family]
    torch.manual_seed(0)
    network = build_network(name, CLASSES, parameters=parameters)
    context = Context(
        num_classes=CLASSES, num_domains=2, num_samples=3 * BATCH, epochs=1, seed=0, training_domains=(0, 1)
    )
    kind, settings = METHODS.get(method, (method, {}))
    return build_algorithm(kind, settings, network, context)


class AllBatches(TrainingSet):
    """A training set of three batches."""

    def __init__(self, batches=None):
        self._batches = batches or [make_batch(step) for step in range(3)]

    def batches(self):
        return iter(self._batches)

    def pixels(self):
        return (replace(batch, x=(127 * batch.x).byte().permute(0, 2, 3, 1)) for batch in self._batches)


class PlainStepper:
    """A stepper without an engine."""

    def __init__(self, algorithm):
        self._algorithm = algorithm
        self._optimizer = torch.optim.SGD(algorithm.parameters(), 0.01, momentum=0.9)

    def loss(self, batch):
        return self._algorithm.loss(batch)

    def descend(self, output):
        weights = 1.0 if output.weights is None else output.weights
        self._optimizer.zero_grad()
        (weights * output.per_sample_loss).mean().backward()
        self._optimizer.step()


def test_every_method_is_tried_here():
    assert {name for name, _ in METHODS.values()} == set(ALGORITHMS)


def run_steps(algorithm, batches):
    """An epoch of the batches; what each step gave, after looking at its form."""
    stepper, outputs = PlainStepper(algorithm), []
    algorithm.start_epoch(0, AllBatches(batches))
    for number, batch in enumerate(batches):
        algorithm.start_step(number, AllBatches(batches))
        output = algorithm.step(batch, stepper)
        assert output.per_sample_loss.shape == (len(batch.y),)
        assert torch.isfinite(output.per_sample_loss).all()
        if output.weights is not None:
            assert output.weights.shape == (len(batch.y),)
            assert (output.weights >= 0).all()
            assert not output.weights.requires_grad
        outputs.append(output)
    algorithm.end_epoch(0)
    algorithm.refit(AllBatches(batches))
    return outputs


@pytest.mark.parametrize(
    ("method", "family"),
    [
        pytest.param(method, family, marks=[pytest.mark.slow] * (method in PLAIN and family != "paper-cnn"))
        for method, family in product(METHODS, FAMILIES)
    ],
)
def test_three_steps(method, family):
    """Every family, or a clear refusal. The gradient reaches all of the network."""
    kind = METHODS[method][0]
    if (kind, family) in UNSUPPORTED:
        with pytest.raises(UserError, match=UNSUPPORTED[kind, family]):
            make(method, family)
        return
    algorithm = make(method, family).train()
    before = [parameter.detach().clone() for parameter in algorithm.network.parameters()]
    run_steps(algorithm, [make_batch(step) for step in range(3)])
    assert all((p != old).any() for p, old in zip(algorithm.network.parameters(), before, strict=True))
    assert algorithm.predictor().eval()(make_batch().x).shape == (BATCH, CLASSES)


@pytest.mark.parametrize("method", METHODS)
def test_unequal_classes_and_a_last_batch_of_one(method):
    plain = (METHODS[method][0], "paper-cnn") not in UNSUPPORTED
    algorithm = make(method, "paper-cnn" if plain else "resnet").train()
    side = 32 if plain else 64  # BatchNorm needs more than one position of a single image's maps
    sizes = ([0] * 6 + [1] * 2, [0] * 7 + [2], [1])
    outputs = run_steps(algorithm, [make_batch(step, labels, side) for step, labels in enumerate(sizes)])
    assert [len(output.per_sample_loss) for output in outputs] == [len(labels) for labels in sizes]
    assert all(torch.isfinite(parameter).all() for parameter in algorithm.parameters())


def test_erm_is_cross_entropy():
    algorithm, batch = make("erm").eval(), make_batch()
    output = algorithm.loss(batch)
    probabilities = torch.softmax(algorithm.network(batch.x), 1)
    expected = [-probabilities[row, batch.y[row]].log().item() for row in range(BATCH)]
    assert output.per_sample_loss.tolist() == pytest.approx(expected, rel=1e-5)
    assert output.weights is None
    assert output.diagnostics["accuracy"].item() == (probabilities.argmax(1) == batch.y).float().mean().item()


def test_stablenet_weighs_the_tapped_features():
    algorithm, batch = make("stablenet-batch").train(), make_batch()
    for module in algorithm.network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    alone = StableWeighting("recommended", seed=0, num_classes=CLASSES)
    logits, shallow, deep = algorithm.network.forward_taps(batch.x)
    expected = alone({"a": shallow, "b": deep}, labels=batch.y)
    output = algorithm.loss(batch)
    torch.testing.assert_close(output.weights, expected)
    torch.testing.assert_close(output.per_sample_loss, functional.cross_entropy(logits, batch.y, reduction="none"))
    told, found = alone.diagnostics, {k: float(v) for k, v in output.diagnostics.items()}
    assert found["dependence_after"] == pytest.approx(told["dependence_after"])
    assert found["ess_ratio"] == pytest.approx(told["ess_ratio"])


def test_dataset_weights_are_those_of_one_solve_over_all():
    algorithm = make("stablenet-dataset")
    told = algorithm.start_epoch(0, AllBatches())
    assert not algorithm.network.taps  # steps need no features
    network = algorithm.network.eval()
    network.tap(("stage1", "stage2"))
    with torch.no_grad():
        features = [torch.cat(network.forward_taps(batch.x)[1:], 1) for batch in AllBatches().batches()]
    network.tap(())
    solution = solve_dataset(
        torch.cat(features).half().float(), torch.cat([b.y for b in AllBatches().batches()]), seed=0
    )
    algorithm.train()
    for step, batch in enumerate(AllBatches().batches()):
        expected = solution.weights[step * BATCH : (step + 1) * BATCH]
        torch.testing.assert_close(algorithm.loss(batch).weights, expected, rtol=1e-3, atol=1e-3)
    assert told["dependence_after"] < told["dependence_before"]


def test_state_is_complete():
    """A method rebuilt from its state gives the same next step."""
    first, second = make("stablenet-batch").train(), make("stablenet-batch").train()
    stepper = PlainStepper(first)
    for step in range(2):
        first.step(make_batch(step), stepper)
    second.load_state_dict(first.state_dict())
    torch.manual_seed(1)
    one = first.loss(make_batch(5))
    torch.manual_seed(1)
    two = second.loss(make_batch(5))
    assert torch.equal(one.weights, two.weights)
    assert torch.equal(one.per_sample_loss, two.per_sample_loss)


def test_backbone_without_stages_is_refused_clearly():
    network = build_network("mobilenet_v2", CLASSES)
    network.stages.clear()  # as a backbone of one's own
    context = Context(num_classes=CLASSES, num_domains=1, num_samples=8, epochs=1, seed=0)
    with pytest.raises(UserError, match=r"does not name its first two: set method\.parameters\.taps"):
        build_algorithm("stablenet", {}, network, context)
    assert build_algorithm("stablenet", {"taps": ["features.3", "last"]}, network, context)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"preset": "papr"}, "did you mean 'paper'"),
        ({"taps": []}, "taps must be at least one tap"),
        ({"taps": ["stage1:maps"]}, "which the form 'maps' is not"),
        ({"solve": "all"}, "unknown method.parameters.solve"),
        ({"every": -1}, "every must be 0"),
        ({"lambda": 1}, "unknown setting 'method.parameters.lambda'"),
        ({"overrides": {"stepz": 1}}, "did you mean 'steps'"),
    ],
)
def test_wrong_settings_are_named(parameters, message):
    network = build_network("paper-cnn", CLASSES)
    context = Context(num_classes=CLASSES, num_domains=1, num_samples=8, epochs=1, seed=0)
    with pytest.raises(UserError, match=message):
        build_algorithm("stablenet", parameters, network, context)


def test_unknown_method_lists_neighbours():
    with pytest.raises(UserError, match="unknown method 'stablnet': did you mean 'stablenet'"):
        make("stablnet")


def test_dependence_is_that_of_the_latest_solve_or_of_the_last_epochs_batches():
    def both(kind, before, after):
        found = {"dependence_before": before, "dependence_after": after}
        return {"kind": kind, **({"train": found} if kind == "epoch" else found)}

    batches = [both("epoch", 4.0, 3.0), both("epoch", 6.0, 5.0)]
    assert read_dependence(batches) == (6.0, 5.0)
    assert read_dependence([both("solve", 2.0, 1.0), *batches]) == (2.0, 1.0)
    assert read_dependence([both("epoch", None, None)]) is None
    assert read_dependence([{"kind": "epoch", "train": {"loss": 1.0}}]) is None
