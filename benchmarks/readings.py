"""What the readings of the preset `paper` do, and what its literal form does without them, as docs/presets.md tells.

    python -m benchmarks.readings

Ten batches of 128 embedded digits (ratio 0.9), features of an untrained network, seed 0 throughout; the memory goes
along from batch to batch, as in training. Figures are means over the batches, but for the largest weight of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from stablenet import StableWeighting
from stablenet.data.augment import Normalization, Resize
from stablenet.data.loader import BatchSettings, Loader
from stablenet.engine.config import assemble_config
from stablenet.engine.run_data import open_data
from stablenet.models import build_network
from stablenet.weighting import effective_sample_size
from stablenet.weighting.settings import WeightingSettings

BATCH, BATCHES = 128, 10
SINGLE = "float32 in place of float64"
READINGS: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "no retreat, best iterate kept": {"on_rise": "go-on"},
    "no retreat, last iterate kept": {"on_rise": "go-on", "keep": "last"},
    "no retreat, no floor, last iterate kept": {"on_rise": "go-on", "keep": "last", "min_ess": 0.0},
    "no penalty": {"penalty": 0.0},
    "0.3·Σw² in place of 0.3·mean(w²)": {"penalty": 0.3 * BATCH},
    SINGLE: {},
}


def read_features(backbone: str) -> list[Tensor]:
    """Features (128, m) of ten batches, of the network as it starts."""
    config = assemble_config("embedded-dr0.9")
    data = open_data(config, None)
    torch.manual_seed(0)
    network = build_network(backbone, len(data.manifest.classes)).train()  # BatchNorm as in the first steps
    settings = BatchSettings(batch_size=BATCH, seed=0, drop_last=True)
    loader = Loader(data.open_part("train"), settings, Resize(28, Normalization((0.5,) * 3, (0.5,) * 3)))
    found: list[Tensor] = []
    epoch = 0
    while len(found) < BATCHES:
        with torch.no_grad():
            found += [network.forward_features(batch.x) for batch in loader.epoch(epoch)]
        epoch += 1
    return found[:BATCHES]


def weigh(batches: list[Tensor], settings: Mapping[str, Any]) -> dict[str, float]:
    """Weights of every batch under the preset with some of its settings changed."""
    weighting = StableWeighting("paper", seed=0, **settings)
    largest, sizes, ratios, kept = 0.0, [], [], []
    for features in batches:
        weights = weighting(features)
        told = weighting.diagnostics
        largest = max(largest, float(weights.max()))
        sizes.append(float(effective_sample_size(weights)))
        ratios.append(told["dependence_after"] / told["dependence_before"])
        kept.append(told["kept_step"])
    return {"largest": largest, "ess": fmean(sizes), "dependence": fmean(ratios), "step": fmean(kept)}


@contextmanager
def use_float32() -> Iterator[None]:
    with mock.patch.object(WeightingSettings, "working_dtype", return_value=torch.float32):
        yield


def main() -> None:
    for backbone in ("paper-cnn", "resnet18"):
        batches = read_features(backbone)
        print(f"\n{backbone}, {batches[0].shape[1]} features")
        print("| | largest weight | effective samples | dependence ÷ before | step kept |\n|---|---:|---:|---:|---:|")
        for name, settings in READINGS.items():
            with use_float32() if name == SINGLE else nullcontext():
                found = weigh(batches, settings)
            row = f"{found['largest']:.3f} | {found['ess']:.1f} | {found['dependence']:.5g} | {found['step']:.1f}"
            print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
