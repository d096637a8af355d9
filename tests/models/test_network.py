"""Networks: the split in features and head, and taps on them."""

import pytest
import torch
from torch import nn

from stablenet.models import build_network
from stablenet.models.network import Backbone, Network

FAMILIES = {
    "paper-cnn": {"image_size": 32},
    "resnet18": {},
    "convnext_tiny": {},
    "timm/vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 5, "embed_dim": 48},
    "timm/resnet18": {},
}


def build(name, *taps, classes=4):
    torch.manual_seed(0)
    return build_network(name, classes, parameters=FAMILIES[name], taps=taps).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_forward_is_features_then_head(name):
    network, x = build(name), torch.rand(2, 3, 32, 32)
    features = network.forward_features(x)
    assert features.shape == (2, network.width)
    torch.testing.assert_close(network(x), features @ network.head.weight.T + network.head.bias)


@pytest.mark.parametrize("name", FAMILIES)
def test_taps_equal_a_walk_by_hand(name):
    """Against hooks set by hand and pooled with plain loops over channels."""
    network, x = build(name, "stage1", "last", "stage2:mean"), torch.rand(2, 3, 32, 32)
    caught = []
    module = network.body.get_submodule(network.stages["stage1"])
    module.register_forward_hook(lambda m, args, out: caught.append(out.detach().clone()))
    logits, shallow, last, mean = network.forward_taps(x)
    torch.testing.assert_close(logits, network(x))
    torch.testing.assert_close(last, network.forward_features(x))
    maps = caught[0].movedim(-1, 1) if caught[0].ndim == 3 else caught[0]
    channels = maps.shape[1]
    assert shallow.shape == (2, 2 * channels)
    for channel in range(channels):
        values = maps[1, channel].flatten()
        assert shallow[1, channel].item() == pytest.approx(values.mean().item(), abs=1e-4)
        spread = ((values - values.mean()) ** 2).mean() ** 0.5
        assert shallow[1, channels + channel].item() == pytest.approx(spread.item(), abs=1e-3)
    assert mean.ndim == 2


def test_tap_by_module_path_and_maps():
    network = build("resnet18", "layer2.0.conv1:maps", "layer1:std")
    _, maps, spread = network.forward_taps(torch.rand(2, 3, 32, 32))
    assert maps.shape == (2, 128, 4, 4)
    assert spread.shape == (2, 64)


def test_detached_taps_leave_the_gradient_alone():
    network, x = build("paper-cnn"), torch.rand(2, 3, 32, 32)
    network.tap(["stage1", "last"], detach=True)
    logits, *features = network.forward_taps(x)
    assert logits.requires_grad
    assert not any(feature.requires_grad for feature in features)
    network.tap(["stage1"])
    assert network.forward_taps(x)[1].requires_grad


def test_taps_survive_a_later_change_in_place():
    """What follows the tapped module writes into its output."""
    body = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(inplace=True), nn.Flatten())
    network = Network(Backbone(body, 8, {"stage1": "0"}), 3)
    network.tap(["stage1:mean"])
    x = torch.rand(2, 3, 2, 2)
    expected = body[0](x).mean((2, 3))
    assert (expected < 0).any()  # the ReLU has something to change
    torch.testing.assert_close(network.forward_taps(x)[1], expected)
