"""The paper's network is its table; backbones are listed by name."""

import pytest
import torch
from torch import nn

from stablenet.models import build_network, list_backbones


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
