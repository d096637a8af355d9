"""The paper's network for MNIST-M (its table "The structure of CNNs for MNIST-M")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from stablenet.models.network import Backbone
from stablenet.values import Between, Share, read_fields

WIDTH = 16
DROPOUT = 0.4
LARGEST_SIDE = 4096  # its last layer then has 10⁹ weights


def _convolve(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    # The paper gives no padding: half the kernel, so that only the stride makes maps smaller.
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


class PaperCNN(nn.Module):
    """Four convolutions and a layer of 16: images (B, 3, s, s) -> features (B, 16)."""

    def __init__(self, image_size: int = 28, dropout: float = DROPOUT) -> None:
        super().__init__()
        side = (image_size + 3) // 4  # two strides of 2, each rounding up
        self.stage1 = nn.Sequential(*_convolve(3, 32, 7, 1), *_convolve(32, 32, 5, 2))
        self.dropout1 = nn.Dropout(dropout)
        self.stage2 = nn.Sequential(*_convolve(32, 64, 3, 1), *_convolve(64, 64, 3, 2))
        self.dropout2 = nn.Dropout(dropout)
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(64 * side * side, WIDTH), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_tail(self.forward_maps(images))

    def forward_maps(self, images: Tensor) -> Tensor:
        """Images (B, 3, s, s) -> the last maps (B, 64, s/4, s/4)."""
        maps: Tensor = self.stage2(self.dropout1(self.stage1(images)))
        return maps

    def forward_tail(self, maps: Tensor) -> Tensor:
        """The last maps -> features (B, 16)."""
        features: Tensor = self.fc(self.dropout2(maps))
        return features


@dataclass(frozen=True, kw_only=True)
class PaperCNNSettings:
    """image_size: side of the images it is to see.   dropout: after either stage."""

    image_size: Annotated[int, Between(4, LARGEST_SIDE)] = 28
    dropout: Share = DROPOUT


def build_paper_cnn(**parameters: Any) -> Backbone:
    chosen = read_fields(PaperCNNSettings, parameters, "model.parameters")
    return Backbone(PaperCNN(chosen.image_size, chosen.dropout), WIDTH, {"stage1": "stage1", "stage2": "stage2"})
