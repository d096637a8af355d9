"""DatasetCriterion: its loss against the preset's rules, growing weights, several processes, saved state, mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models.resnet import BasicBlock, ResNet

from stablenet import UserError
from stablenet.integrations import DatasetCriterion, Indexed
from stablenet.weighting import pool_maps, solve_dataset, solve_offsets
from tests.weighting.test_distributed import free_port

MAKE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from stablenet.integrations import DatasetCriterion

torch.manual_seed(0)
y = torch.arange(40) % 2
samples = TensorDataset(torch.randn(40, 3, 6, 6) + y[:, None, None, None], y)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
criterion = DatasetCriterion(model, ["0"], samples, num_classes=2, act="always", epochs=12)
"""
WORKER = f"""
import sys
from torch import distributed as dist

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", rank=rank, world_size=2)
{MAKE}
strengths = []
for _ in range(3):
    for half in torch.arange(40)[rank::2].split(10):
        criterion(torch.zeros(10, 2), y[half], half)
    strengths.append(float(criterion.weighting.strength))
found = {{"offsets": criterion.offsets.offsets, "weights": criterion.weighting.weights, "strengths": strengths}}
torch.save(found, f"{{folder}}/{{rank}}.pt")
dist.destroy_process_group()
"""


def make_model():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))
    return nn.Sequential(first, nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3))


@pytest.fixture
def samples():
    """Three classes whose images differ a little in colour."""
    g = torch.Generator().manual_seed(1)
    y = torch.arange(90) % 3
    x = torch.randn(90, 3, 8, 8, generator=g)
    x[torch.arange(90), y] += 0.3
    return TensorDataset(x, y)


def read_features(model, x):
    model.eval()
    with torch.no_grad():
        first = model[0](x)
        return {"0": pool_maps(first).half(), "1": pool_maps(model[1](first)).half()}


def test_the_loss_is_that_of_the_preset(samples):
    x, y = samples.tensors
    model, index = make_model(), torch.tensor([5, 80, 33, 2])
    criterion = DatasetCriterion(
        model, ["0", "1"], samples, num_classes=3, act="always", epochs=6, seed=3, batch_size=32
    )
    features = read_features(model, x)
    offsets = solve_offsets(features["0"].float(), y, 3, seed=3)
    weights = solve_dataset({name: f.float() for name, f in features.items()}, y, seed=3).weights
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    plain = functional.cross_entropy(logits + 0.5 * offsets.values[index], y[index], reduction="none")
    assert criterion.diagnostics["context_explains"] == pytest.approx(offsets.explained, abs=1e-3)
    assert offsets.explained > 0.05
    torch.testing.assert_close(criterion(logits, y[index], index), plain.mean(), atol=1e-3, rtol=0)  # weights not grown
    criterion(torch.zeros(89, 3), y[:89], torch.arange(89))  # would not fit: the second of six epochs, full-grown
    expected = (weights[index] * plain).mean()
    torch.testing.assert_close(criterion(logits, y[index], index), expected, atol=2e-3, rtol=0)
    assert abs(expected - plain.mean()) > 0.01


def test_a_pretrained_model_gets_whole_offsets_of_components_and_no_weights(samples):
    x, y = samples.tensors
    model, index = make_model(), torch.tensor([5, 80, 33, 2])
    criterion = DatasetCriterion(model, ["0", "1"], samples, num_classes=3, act="always", epochs=6, pretrained=True)
    features = {name: f.float() for name, f in read_features(model, x).items()}
    offsets = solve_offsets(features, y, 3, components=4)
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = functional.cross_entropy(logits + 1.5 * offsets.values[index], y[index])
    torch.testing.assert_close(criterion(logits, y[index], index), expected, atol=2e-3, rtol=0)
    assert criterion.weighting is None
    found = criterion.diagnostics
    assert set(found) == {"context_explains", "ess_ratio", "largest_weight"}
    assert found["ess_ratio"] == found["largest_weight"] == 1.0


def test_weights_grow_over_the_first_sixth_of_the_epochs(samples):
    criterion = DatasetCriterion(make_model(), ["0"], samples, num_classes=3, act="always", epochs=12)
    strengths = []
    for _ in range(4):
        for index, _, labels in DataLoader(Indexed(samples), batch_size=30, shuffle=True):
            criterion(torch.zeros(30, 3), labels, index)
            strengths.append(float(criterion.weighting.strength))
    assert strengths == [*[0.0] * 3, *[0.5] * 3, *[1.0] * 6]


def test_autocast_reaches_neither_the_solve_nor_the_loss(samples):
    x, y = samples.tensors
    plain = DatasetCriterion(make_model(), ["0", "1"], samples, num_classes=3, act="always", epochs=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = make_model()
        cast = DatasetCriterion(model, ["0", "1"], samples, num_classes=3, act="always", epochs=2)
        loss = cast(model(x), y, torch.arange(90))
    assert loss.dtype == torch.float32
    assert cast.diagnostics["context_explains"] == pytest.approx(plain.diagnostics["context_explains"], abs=0.03)
    assert cast.diagnostics["ess_ratio"] == pytest.approx(plain.diagnostics["ess_ratio"], abs=0.03)


def test_two_processes_find_and_grow_what_one_does(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path)], env={**os.environ, **port})
        for rank in (0, 1)
    ]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    names: dict[str, Any] = {}
    exec(MAKE, names)
    alone = names["criterion"]
    for found in (first, second):
        torch.testing.assert_close(found["offsets"], alone.offsets.offsets)
        torch.testing.assert_close(found["weights"], alone.weighting.weights)
        assert found["strengths"] == [0.0, 0.5, 1.0]  # the ramp is two epochs


def test_in_eval_the_loss_is_the_plain_mean(samples):
    _, y = samples.tensors
    criterion = DatasetCriterion(make_model(), ["0"], samples, num_classes=3, act="always", epochs=2)
    logits = torch.randn(90, 3)
    expected = functional.cross_entropy(logits, y)
    assert abs(criterion(logits, y, torch.arange(90)) - expected) > 1e-3
    torch.testing.assert_close(criterion.eval()(logits, y), expected)
    torch.testing.assert_close(criterion(logits, y.int(), torch.arange(90)), expected)


def test_the_model_is_left_as_it_was(samples):
    model, with_gradients = make_model(), []
    model[2].eval()
    model[4].register_forward_hook(lambda *_: with_gradients.append(torch.is_grad_enabled()))
    state, drawn = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    DatasetCriterion(model, ["0"], samples, num_classes=3, act="always", epochs=2)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert with_gradients == [False]
    assert model.training
    assert not model[2].training
    assert not model[0]._forward_hooks
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("pretrained", [False, True])
def test_the_state_goes_on_exactly(samples, pretrained):
    _, y = samples.tensors
    index, logits = torch.arange(90), torch.randn(90, 3)
    first = DatasetCriterion(
        make_model(), ["0"], samples, num_classes=3, act="always", epochs=24, pretrained=pretrained
    )
    for _ in range(2):
        first(logits, y, index)
    noise = TensorDataset(torch.randn(90, 3, 8, 8), y)
    second = DatasetCriterion(make_model(), ["0"], noise, num_classes=3, act="always", epochs=24, pretrained=pretrained)
    assert second.diagnostics != first.diagnostics
    second.load_state_dict(first.state_dict())
    assert second.diagnostics == first.diagnostics
    losses = [[criterion(logits, y, index) for _ in range(3)] for criterion in (first, second)]
    assert losses[0] == losses[1]
    assert (len({float(loss) for loss in losses[0]}) > 1) != pretrained  # weights still grow


def test_items_may_hold_more_and_be_indexed_already(samples):
    x, y = samples.tensors
    classes = TensorDataset(x, y.int(), torch.zeros(90))
    assert len(Indexed(classes)[7]) == 4
    criterion, expected = (
        DatasetCriterion(make_model(), ["0"], given, num_classes=3, act="always", epochs=2)
        for given in (Indexed(classes), samples)
    )
    assert torch.equal(criterion.offsets.offsets, expected.offsets.offsets)


def test_large_activations_need_another_storage(samples):
    x, y = samples.tensors
    large, kept = TensorDataset(1e6 * x, y), {"act": "always", "num_classes": 3, "epochs": 2}
    with pytest.raises(UserError, match=r"storage=torch\.float32"):
        DatasetCriterion(make_model(), ["0"], large, **kept)
    assert (
        DatasetCriterion(make_model(), ["0"], large, storage=torch.float32, **kept).diagnostics["context_explains"] > 0
    )


def test_offsets_may_be_left_out(samples):
    _, y = samples.tensors
    criterion = DatasetCriterion(
        make_model(), ["0"], samples, num_classes=3, act="always", epochs=2, pretrained=True, offset=0.0
    )
    logits = torch.randn(90, 3)
    torch.testing.assert_close(criterion(logits, y, torch.arange(90)), functional.cross_entropy(logits, y))


def test_mistakes_are_answered(samples):
    _, y = samples.tensors
    criterion = DatasetCriterion(make_model(), ["0"], samples, num_classes=3, act="always", epochs=2)
    with pytest.raises(UserError, match=r"needs the samples' indices.*criterion.eval\(\)"):
        criterion(torch.zeros(90, 3), y)
    with pytest.raises(UserError, match=r"one entry per sample, shape \(4,\), got \(1,\)"):
        criterion(torch.zeros(4, 3), y[:4], torch.tensor([0]))
    with pytest.raises(UserError, match=r"logits \(batch, 3\), got \(4, 1\)"):
        criterion(torch.zeros(4, 1), y[:4], torch.arange(4))
    with pytest.raises(UserError, match="tap 'layer1'"):
        DatasetCriterion(make_model(), ["layer1"], samples, num_classes=3, act="always", epochs=2)
    with pytest.raises(UserError, match="below num_classes=2, got 0 to 2"):
        DatasetCriterion(make_model(), ["0"], samples, num_classes=2, act="always", epochs=2)
    with pytest.raises(UserError, match=r"taps must be a list of modules' paths, such as .*, got the text 'layer1'"):
        DatasetCriterion(make_model(), "layer1", samples, num_classes=3, epochs=2)


@pytest.mark.parametrize(
    ("pretrained", "taps"), [(False, ["layer1", "layer2"]), (True, ["layer1", "layer2", "layer3:border"])]
)
def test_taps_are_those_of_the_preset_where_none_are_named(samples, pretrained, taps):
    torch.manual_seed(0)
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=3)
    options = {"num_classes": 3, "epochs": 3, "act": "always", "pretrained": pretrained}
    chosen, named = (DatasetCriterion(model, given, samples, **options) for given in (None, taps))
    assert f"features of {', '.join(taps)}" in repr(chosen)
    for ours, theirs in zip(chosen.whole_set(torch.arange(90)), named.whole_set(torch.arange(90)), strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    with pytest.raises(UserError, match=r"the stages of a Sequential are not known.*name early modules"):
        DatasetCriterion(make_model(), None, samples, **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number, got 1.5"),
        ({"num_classes": "3"}, "num_classes must be a whole number, got '3'"),
        ({"offset": -1.0}, "offset must be 0 or more, got -1.0"),
        ({"offset": float("nan")}, "offset must be a finite number, got nan"),
        ({"act": "domains"}, "unknown act 'domains': choose from always, auto"),
        ({"pretrained": "no"}, "pretrained must be true or false, got 'no'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"storage": torch.int8}, "storage must be a floating-point type such as torch.float16, got torch.int8"),
        ({"contexts": torch.zeros(3, dtype=torch.int64)}, "one for each of the 90 samples"),
        ({"contexts": torch.full((90,), -1)}, "contexts must be a tensor of whole numbers from 0 on"),
        ({"contexts": [0] * 90}, "contexts must be a tensor"),
        ({"held_out": []}, "no samples are held out"),
    ],
)
def test_wrong_options_are_one_sentence(samples, given, message):
    with pytest.raises(UserError, match=message):
        DatasetCriterion(make_model(), ["0"], samples, **{"num_classes": 3, "epochs": 2, **given})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("pretrained", [False, True])
def test_on_a_gpu_with_indices_from_the_processor(samples, pretrained):
    x, y = samples.tensors
    here, there = make_model(), make_model().cuda()
    options = {"num_classes": 3, "epochs": 6, "pretrained": pretrained}
    criteria = [DatasetCriterion(model, ["0", "1"], samples, **options) for model in (here, there)]
    index = torch.arange(30)
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    ours = criteria[0](logits, y[:30], index)
    theirs = criteria[1](logits.cuda(), y[:30].cuda(), index)
    assert theirs.device.type == "cuda"
    assert theirs.item() == pytest.approx(ours.item(), rel=1e-2)  # each device draws its own Fourier functions
    criteria[1](there(x[:30].cuda()), y[:30].cuda(), index).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in there.parameters())


@pytest.mark.parametrize("place", ["host", "folder"])
def test_features_kept_elsewhere_give_the_same_criterion(samples, tmp_path, place):
    place = tmp_path if place == "folder" else place
    one, two = (
        DatasetCriterion(make_model(), ["0", "1"], samples, num_classes=3, epochs=2, act="always", features=each)
        for each in ("device", place)
    )
    assert two.weighting.place == two.offsets.place == place
    assert one.diagnostics == two.diagnostics
    assert torch.equal(one.weighting.weights, two.weighting.weights)
    assert torch.equal(one.offsets.offsets, two.offsets.offsets)


def test_a_misspelt_place_is_refused(samples):
    with pytest.raises(UserError, match=r"in a place named 'device', 'host' or a folder .* got 'hots'"):
        DatasetCriterion(make_model(), ["0"], samples, num_classes=3, epochs=2, features="hots")
