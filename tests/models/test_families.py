"""The paper's network is its table; backbones are listed by name."""

import pytest
import torch
from torch import nn
from torchvision import models

from stablenet.models import build_network, list_backbones
from stablenet.models.families import find_stages, import_timm


def test_paper_cnn_is_the_papers_table():
    network = build_network("paper-cnn", 10)
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    found = [(m.kernel_size[0], m.stride[0], m.out_channels) for m in convolutions]
    assert found == [(7, 1, 32), (5, 2, 32), (3, 1, 64), (3, 2, 64)]
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.4, 0.4]
    assert network.width == 16
    assert network(torch.rand(2, 3, 28, 28)).shape == (2, 10)
    assert (network.forward_features(torch.rand(2, 3, 28, 28)) >= 0).all()  # a ReLU comes last


@pytest.mark.parametrize("size", [12, 13, 28, 31])
def test_paper_cnn_takes_any_size(size):
    assert build_network("paper-cnn", 3, parameters={"image_size": size})(torch.rand(2, 3, size, size)).shape == (2, 3)


def test_listing_by_wildcard():
    assert list_backbones("resnet1*") == ["resnet101", "resnet152", "resnet18"]
    assert "timm/vit_tiny_patch16_224" in list_backbones("timm/vit_tiny*", timm=True)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "resnet18", "timm/mobilenetv3_small_050", "timm/test_resnet"])
def test_stages_of_a_finished_network_are_those_of_the_backbone(name):
    with torch.device("meta"):
        built = import_timm().create_model(name[5:]) if name.startswith("timm/") else models.get_model(name)
    stages = find_stages(built)
    assert len(stages) >= 3
    assert set(stages.values()) <= {path for path, _ in built.named_modules()}
    if not name.startswith("timm/"):
        assert stages == build_network(name, 2).stages


def test_of_other_networks_no_stages_are_known():
    class ResNet(nn.Sequential):
        pass

    assert find_stages(ResNet(nn.Linear(2, 2))) == {}
    with torch.device("meta"):
        assert find_stages(models.swin_t()) == {}  # its maps have their channels last
