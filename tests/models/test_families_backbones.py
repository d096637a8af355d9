"""Every backbone of `stablenet list backbones`: stages to tap by default, and features of the promised width."""

import pytest
import torch

from stablenet.models import build_network, list_backbones
from stablenet.weighting.recommended import BORDER_TAP, TAPS

# One of each family, small enough to be run; side of the images where 64 pixels do not do.
FAMILIES = {
    "paper-cnn": 28,
    "alexnet": 64,
    "convnext_tiny": 64,
    "densenet121": 64,
    "efficientnet_b0": 64,
    "maxvit_t": 224,
    "mnasnet0_5": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_large": 64,
    "mobilenet_v3_small": 64,
    "regnet_y_400mf": 64,
    "resnet18": 64,
    "shufflenet_v2_x0_5": 64,
    "swin_t": 64,
    "swin_v2_t": 64,
    "vgg11": 64,
    "vit_b_32": 224,
}

LARGE = ("maxvit_t", "swin_v2_t", "densenet121", "vgg11", "alexnet", "convnext_tiny")


def side_of(name):
    return 28 if name == "paper-cnn" else 224


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({name.split("_")[0].rstrip("0123456789") for name in list_backbones()}))
def test_every_backbone_has_the_default_taps(family):
    """Without memory for weights: shapes alone. Each stage is a mean and a deviation per channel."""
    names = [name for name in list_backbones() if name.split("_")[0].rstrip("0123456789") == family]
    for name in names:
        with torch.device("meta"):
            network = build_network(name, 3, taps=("stage1", "stage2", "stage3:border", "last")).eval()
            logits, first, second, third, last = network.forward_taps(torch.empty(2, 3, side_of(name), side_of(name)))
        assert logits.shape == (2, 3), name
        assert last.shape == (2, network.width), name
        assert first.shape[1] % 2 == second.shape[1] % 2 == 0, name
        assert 16 <= first.shape[1] // 2 <= second.shape[1] // 2, name
        assert third.shape[1] // 2 >= second.shape[1] // 2, name


def test_the_default_taps_are_these():
    assert TAPS == ("stage1", "stage2")
    assert BORDER_TAP == "stage3:border"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in FAMILIES])
def test_taps_differ_between_images_and_grow_deeper(name):
    """With random weights: a tap sees its image, and a later stage is one of fewer positions or of later layers."""
    torch.manual_seed(0)
    network = build_network(name, 3).eval()
    order = [path for path, _ in network.body.named_modules()]
    places = [order.index(path) for path in network.stages.values()]
    assert places == sorted(places)
    network.tap(tuple(network.stages))
    images = torch.rand(2, 3, FAMILIES[name], FAMILIES[name])
    with torch.no_grad():
        logits, *features = network.forward_taps(images)
    assert torch.isfinite(logits).all()
    for stage, feature in zip(network.stages, features, strict=True):
        assert torch.isfinite(feature).all(), stage
        assert not torch.equal(feature[0], feature[1]), stage


@pytest.mark.slow
def test_every_family_is_run():
    def kind(name):
        with torch.device("meta"):
            return type(build_network(name, 3).body).__name__

    assert {kind(name) for name in list_backbones()} == {kind(name) for name in FAMILIES}
