"""Networks: any torchvision or timm backbone, the paper's CNN or a class of one's own, with named feature taps."""

from stablenet.models.build import build_network, list_backbones
from stablenet.models.network import Network
from stablenet.models.taps import Tap, parse_tap

__all__ = ["Network", "Tap", "build_network", "list_backbones", "parse_tap"]
