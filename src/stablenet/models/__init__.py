"""Networks: any torchvision or timm backbone, the paper's CNN or your own class, with named feature taps.

In reading order: `network` (a backbone and its classifier, and the features a method reads on the way), `taps` (names
for such features), `families` (the backbones) and `build` (from a name to a network, with its initial weights).
"""

from stablenet.models.build import build_network, list_backbones
from stablenet.models.network import Network
from stablenet.models.taps import FeatureTaps, Tap, parse_tap, read_features

__all__ = ["FeatureTaps", "Network", "Tap", "build_network", "list_backbones", "parse_tap", "read_features"]
