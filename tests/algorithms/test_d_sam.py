"""D-SAM: its modules against their formula, who trains which, who is averaged, and what leaves the house."""

import copy

import pytest
import torch
from torch.nn import functional

from stablenet.algorithms import Context, build_algorithm
from stablenet.algorithms.d_sam import DomainModule, average_others, find_blocks, measure_blocks
from stablenet.data.loader import Batch
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import evaluate_run
from stablenet.evaluation.predict import predict_part
from stablenet.export import FORMATS, export_run, load_model
from stablenet.models import build_network
from tests.algorithms.cases import make_resnet, method_config

CLASSES = 3
TINY = f"{make_resnet.__module__}:make_resnet"


def make(domains=(0, 2), name=TINY, **settings):
    torch.manual_seed(0)
    parameters = {"image_size": 12} if name == TINY else {}
    network = build_network(name, CLASSES, parameters=parameters)
    context = Context(
        num_classes=CLASSES, num_domains=4, num_samples=9, epochs=1, seed=0, training_domains=tuple(domains)
    )
    return build_algorithm("d-sam", {"growth": 1, **settings}, network, context)


def make_batch(domain, side=16):
    generator = torch.Generator().manual_seed(0)
    count = len(domain)
    x = torch.rand(count, 3, side, side, generator=generator)
    return Batch(x, torch.arange(count) % CLASSES, torch.tensor(domain), torch.arange(count))


def aggregate_slowly(module, blocks):
    """Position by position, with plain sums over channels."""
    maps = blocks[0]
    for layer, block in zip(module.layers, blocks[1:], strict=True):
        if len(layer.shrink):
            maps = mix_channels(maps[:, :, ::2, ::2], layer.shrink[0])
        maps = mix_channels(torch.cat([maps, block], 1), layer.join[1])
    pooled = maps.sum((2, 3)) / (maps.shape[2] * maps.shape[3])
    return pooled @ module.classifier.weight.T + module.classifier.bias


def mix_channels(maps, convolution):
    mixed = torch.einsum("bchw,oc->bohw", maps, convolution.weight[:, :, 0, 0])
    return (mixed + convolution.bias[:, None, None]).clamp_min(0)


def test_a_module_is_its_formula():
    torch.manual_seed(0)
    module = DomainModule([3, 3, 5], [1, 1, 2], growth=2, dropout=0.5, num_classes=4).double().eval()
    assert module.classifier.in_features == 10
    sides = ((3, 7), (3, 7), (5, 4))  # an odd side is halved upwards, as a ResNet does it
    blocks = [torch.rand(2, channels, side, side, dtype=torch.float64) for channels, side in sides]
    logits = module.forward_head(module.forward_features(blocks))
    torch.testing.assert_close(logits, aggregate_slowly(module, blocks))


def test_whole_channels_are_dropped_in_training():
    module = DomainModule([4, 4], [1, 1], growth=1, dropout=0.5, num_classes=2).train()
    dropped = module.layers[0].join[0](torch.ones(8, 8, 3, 3))
    assert set(dropped.flatten(2).sum(2).flatten().tolist()) == {0.0, 18.0}


def test_the_blocks_are_those_of_a_walk_by_hand():
    algorithm, x = make(name="resnet18").eval(), torch.rand(2, 3, 32, 32)
    body = algorithm.network.body
    maps = body.maxpool(body.relu(body.bn1(body.conv1(x))))
    expected = []
    for stage in (body.layer1, body.layer2, body.layer3, body.layer4):
        for block in stage:
            maps = block(maps)
            expected.append(maps)
    found = algorithm.network.forward_blocks(x)
    assert len(found) == 8
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18"])
def test_blocks_are_measured_without_a_trace(name):
    network = build_network(name, CLASSES)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    channels, strides = measure_blocks(network, find_blocks(network))
    assert channels == [64, 64, 128, 128, 256, 256, 512, 512]
    assert strides == [1, 1, 2, 1, 2, 1, 2, 1]
    assert network.training
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_a_sample_goes_through_its_own_module():
    algorithm, batch = make().eval(), make_batch([2, 0, 2, 2])
    output = algorithm.loss(batch)
    for row, module in enumerate((1, 0, 1, 1)):
        with torch.no_grad():
            blocks = algorithm.network.forward_blocks(batch.x[row : row + 1])
            logits = aggregate_slowly(algorithm.network.domain_modules[module], blocks)
        expected = functional.cross_entropy(logits, batch.y[row : row + 1])
        torch.testing.assert_close(output.per_sample_loss[row].detach(), expected)


def test_a_sample_trains_the_backbone_and_its_own_module():
    algorithm, batch = make().train(), make_batch([0, 2])
    algorithm.loss(batch).per_sample_loss[0].backward()
    first, second = algorithm.network.domain_modules
    assert any((p.grad != 0).any() for p in algorithm.network.body.parameters())
    assert all((p.grad != 0).any() for p in first.parameters())
    assert not any(p.grad is not None and (p.grad != 0).any() for p in second.parameters())
    algorithm.loss(batch).per_sample_loss.sum().backward()
    assert all((p.grad != 0).any() for p in algorithm.parameters())


def test_others_are_averaged():
    logits = torch.tensor([[[1.0, 0.0], [3.0, 6.0], [5.0, 0.0]]]).expand(3, 3, 2)
    found = average_others(logits, torch.tensor([0, 2, -1]))
    assert found.tolist() == [[4.0, 3.0], [2.0, 3.0], [3.0, 2.0]]


def test_validation_leaves_the_own_module_out_and_prediction_none():
    algorithm, batch = make((0, 2, 3)).eval(), make_batch([0, 3, 1])
    each = [slow_logits(algorithm.network, module, batch.x) for module in range(3)]
    torch.testing.assert_close(algorithm.predictor()(batch.x), (each[0] + each[1] + each[2]) / 3)
    found = algorithm.validator()(batch)
    torch.testing.assert_close(found[0], (each[1][0] + each[2][0]) / 2)
    torch.testing.assert_close(found[1], (each[0][1] + each[1][1]) / 2)
    torch.testing.assert_close(found[2], (each[0][2] + each[1][2] + each[2][2]) / 3)  # not a training domain


def slow_logits(network, module, x):
    return aggregate_slowly(network.domain_modules[module], network.forward_blocks(x))


def test_a_copy_stands_alone():
    network, x = make().network.eval(), torch.rand(2, 3, 12, 12)
    other, expected = copy.deepcopy(network), network(x)
    for parameter in network.parameters():
        parameter.data.zero_()
    assert torch.equal(other(x), expected)
    assert not torch.equal(network(x), expected)


def test_other_networks_are_refused():
    for name in ("convnext_tiny", "mobilenet_v2"):
        with pytest.raises(UserError, match=r"residual blocks of a ResNet, and .* has none: set model\.name"):
            make(name=name)


@pytest.mark.parametrize(
    ("settings", "message"), [({"growth": 0}, "at least 1"), ({"dropout": 1.0}, r"at least 0 and below 1")]
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        make(**settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = method_config("d-sam", "data.parameters.backgrounds=6", "train.epochs=1")
    return train(config, Runtime(folder=tmp_path_factory.mktemp("run") / "d-sam", device="cpu"))


def read_images(run, samples):
    return run.transform(samples.pixels.read(samples.row), torch.zeros(len(samples), dtype=torch.int64))


def test_a_runs_validation_is_that_of_the_other_modules(run):
    samples, network = run.open_part("validation"), run.model
    places = {domain: place for place, domain in enumerate(run.context.training_domains)}
    place = torch.tensor([places.get(domain, -1) for domain in samples.domain.tolist()])
    with torch.no_grad():
        each = network.forward_each(network.forward_features(read_images(run, samples)))
    epochs = {record["epoch"]: record for record in run.records if record["kind"] == "epoch"}
    recorded = epochs[run.records[-1]["best_epoch"]]["validation"]
    loss = functional.cross_entropy(average_others(each, place), samples.y).item()
    assert recorded["loss"] == pytest.approx(loss, rel=1e-4)
    assert functional.cross_entropy(each.mean(1), samples.y).item() != pytest.approx(loss, rel=1e-4)


def test_evaluation_averages_all(run):
    (evaluation,) = evaluate_run(run, device="cpu")
    samples, domains = run.open_part("test"), len(run.context.training_domains)
    logits = predict_part(run.model, samples, run.transform).logits
    x = read_images(run, samples)
    with torch.no_grad():
        expected = sum(slow_logits(run.model, module, x) for module in range(domains)) / domains
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert evaluation.figures["accuracy"] == pytest.approx((logits.argmax(1) == samples.y).float().mean().item())


@pytest.mark.parametrize("form", list(FORMATS))
def test_every_format_holds_all_modules(run, form, tmp_path):
    exported = export_run(run, form, tmp_path)
    assert exported.difference < 1e-4  # to the run's own model, on images neither has seen
    if form == "safetensors":
        network = load_model(exported.file).network
        assert len(network.domain_modules) == len(run.context.training_domains) > 2


def make_conflict(count, generator):
    """A bright half tells the class, in one domain the left, in the other the right one; nothing tells the domain."""
    y, domain = torch.randint(2, (2, count), generator=generator)
    x = torch.rand(count, 3, 16, 16, generator=generator)
    left = (y == domain).view(-1, 1, 1, 1)
    bright = torch.arange(16) < 8
    return Batch(x + (left == bright).float(), y, domain, torch.arange(count))


def learn_conflict(routed):
    """Accuracy on new samples of their own domain's module, and of the other one."""
    algorithm, generator = make((0, 1), dropout=0.1), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(algorithm.train().parameters(), 1e-3)
    for _ in range(25):
        batch = make_conflict(32, generator)
        mixed = torch.randint(2, (32,), generator=generator)
        loss = algorithm.loss(batch if routed else Batch(batch.x, batch.y, mixed, batch.index)).per_sample_loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batch = make_conflict(128, generator)
    with torch.no_grad():
        each = algorithm.eval().network.forward_each(algorithm.network.forward_features(batch.x))
    right = (each.argmax(2) == batch.y[:, None]).float()
    own = functional.one_hot(batch.domain, 2)
    return (right * own).sum(1).mean(), (right * (1 - own)).sum(1).mean()


def test_modules_learn_what_is_special_to_their_domain():
    """The paper's claim, and that it hangs on the routing: with domains dealt at random the modules learn nothing."""
    own, other = learn_conflict(routed=True)
    assert own > 0.9
    assert other < 0.3
    own, _ = learn_conflict(routed=False)
    assert own < 0.7
