"""Networks cut at their last convolutional maps."""

import copy

import pytest
import torch
from torch import nn

from stablenet.errors import UserError
from stablenet.models import build_network
from stablenet.models.network import Backbone, Network

CONVOLUTIONAL = {
    "paper-cnn": (64, {"image_size": 64}),
    "resnet18": (512, {}),
    "regnet_y_400mf": (440, {}),
    "convnext_tiny": (768, {}),
    "densenet121": (1024, {}),
    "mobilenet_v2": (1280, {}),
    "mobilenet_v3_small": (576, {}),
    "efficientnet_b0": (1280, {}),
    "alexnet": (256, {}),
    "timm/resnet18": (512, {}),
    "timm/convnext_atto": (320, {}),
}
VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24}


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_both_halves_together_are_the_body(name):
    channels, parameters = CONVOLUTIONAL[name]
    network, images = build_network(name, 3, parameters=parameters).eval(), torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        maps = network.forward_maps(images)
        assert maps.ndim == 4
        assert maps.shape[:2] == (2, channels)
        expected = network.forward_features(images)
        torch.testing.assert_close(network.forward_tail(maps), expected)
        assert not torch.equal(network.forward_tail(maps * 0.5), expected)


def test_a_copy_is_cut_itself():
    network = build_network("resnet18", 3).eval()
    other, images = copy.deepcopy(network), torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        for parameter in other.body.layer4.parameters():
            parameter.zero_()
        assert not other.forward_maps(images).any()
        assert network.forward_maps(images).any()


class Own(nn.Module):
    """A network that says where its maps are."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward_maps(self, images):
        return self.convolution(images)

    def forward_tail(self, maps):
        return maps.mean((2, 3))

    def forward(self, images):
        return self.forward_tail(self.forward_maps(images))


def test_own_network_names_its_halves():
    network = Network(Backbone(Own(), 4), 2)
    images = torch.rand(2, 3, 8, 8)
    assert network.forward_maps(images).shape == (2, 4, 6, 6)
    torch.testing.assert_close(network.forward_tail(network.forward_maps(images)), network.forward_features(images))


@pytest.mark.parametrize(
    ("name", "parameters"), [("timm/vit_tiny_patch16_224", VIT), ("swin_t", {}), ("vit_b_16", {"image_size": 32})]
)
def test_network_without_maps_is_refused(name, parameters):
    network = build_network(name, 2, parameters=parameters)
    with pytest.raises(UserError, match="no known last convolutional maps: choose a convolutional network"):
        network.require_maps()


def test_tokens_are_no_maps():
    network = build_network("timm/mixer_s16_224", 2, parameters={"img_size": 32})
    with pytest.raises(UserError, match="expected convolutional maps"):
        network.forward_maps(torch.rand(1, 3, 32, 32))
