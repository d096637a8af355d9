"""Do weights still matter once every training image is fitted, and do offsets? Linear heads on a pretrained network.

    python -m benchmarks.probe hidden --root data --set model.name=resnet50 \\
      --set model.pretrained=data/resnet50-imagenet-caffe-fp16.safetensors
    python -m benchmarks.probe target --seeds 20,21,22,23,24 --root data …

`hidden` uses no target image: one of the smaller source domains of every class is hidden, in several draws; heads learn
from the rest and are tested on the hidden images. `target` learns from all source images of every seed's split and is
tested on its target. The stronger a head's ridge, the fewer training images it can fit.

Reading features takes ten minutes for 2,600 images on one core, heads and weights about three for a draw or seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.evidence import open_session, spread
from stablenet.algorithms.domain_losses import make_independent
from stablenet.data.loader import Batch
from stablenet.models.taps import LAST
from stablenet.weighting import recommended, solve_dataset, solve_offsets

RIDGES = (1e-5, 1e-3, 1e-2, 1e-1)
STEPS = 150
NONE = "ones"
Found = dict[tuple[str, float], tuple[float, float]]  # what was tried and ridge: accuracy on test and training images


@dataclass(frozen=True)
class Images:
    """last: (n, m) last layer.   first, shallow: (n, k) one stage and the first two, pooled.   y, domain: (n,)."""

    last: Tensor
    first: Tensor
    shallow: Tensor
    y: Tensor
    domain: Tensor

    def choose(self, rows: Tensor) -> Images:
        columns = (self.last, self.first, self.shallow, self.y, self.domain)
        return Images(*(column[rows] for column in columns))


@torch.no_grad()
def read_images(network: Any, batches: Iterable[Batch]) -> Images:
    network.tap((LAST, *recommended.TAPS), detach=True)
    network.eval()
    rows = []
    for batch in batches:
        _, last, *shallow = network.forward_taps(batch.x)
        rows.append((last.float(), shallow[0].float(), torch.cat(shallow, 1).float(), batch.y, batch.domain))
    return Images(*(torch.cat(column) for column in zip(*rows, strict=True)))


def hide(y: Tensor, domain: Tensor, draw: int) -> Tensor:
    """(n,) whether an image is hidden: one domain of every class, not the largest."""
    generator = torch.Generator().manual_seed(draw)
    hidden = torch.zeros_like(y, dtype=torch.bool)
    for label in y.unique():
        found: tuple[Tensor, Tensor] = domain[y == label].unique(return_counts=True)
        smaller = found[0][found[1].argsort(descending=True)[1:]]
        chosen = smaller[torch.randint(len(smaller), (), generator=generator)]
        hidden |= (y == label) & (domain == chosen)
    return hidden


def fit_head(z: Tensor, y: Tensor, weights: Tensor, offsets: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """min 1/n Σ w_i·CE_i + ridge·‖A‖², from zero, CE with offsets (n, C) on the logits.

    z: (n, m) standardized.   Returns A (m, C) and the level (C,), to be used without offsets.
    """
    classes = offsets.shape[1]
    matrix = z.new_zeros(z.shape[1], classes, requires_grad=True)
    level = z.new_zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([matrix, level], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        losses = F.cross_entropy(z @ matrix + level + offsets, y, reduction="none")
        value: Tensor = (weights * losses).mean() + ridge * matrix.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return matrix.detach(), level.detach()


def score(z: Tensor, y: Tensor, head: tuple[Tensor, Tensor]) -> float:
    matrix, level = head
    return 100 * float(((z @ matrix + level).argmax(1) == y).float().mean())


def probe(source: Images, test: Images) -> Found:
    """Accuracy on test and on training images, by weights or offsets and ridge."""
    centre, scale = source.last.mean(0), source.last.std(0) + 1e-6
    z, z_test = ((images.last - centre) / scale for images in (source, test))
    ones, zeros = torch.ones(len(z)), torch.zeros(len(z), int(source.y.max()) + 1)
    tried = {NONE: (ones, zeros)}
    for penalty in (recommended.WHOLE_SET["penalty"], recommended.PRETRAINED_PENALTY):
        known = make_independent(source.y, source.domain, penalty)
        found = solve_dataset(source.shallow, source.y, penalty=penalty).weights
        tried[f"known domains, penalty {penalty}"] = known, zeros
        tried[f"first two stages, penalty {penalty}"] = found, zeros
    indicators = F.one_hot(source.domain).float()
    tried["offsets of known domains, √U"] = ones, solve_offsets(indicators, source.y).values
    tried["offsets of the first stage, √U"] = ones, solve_offsets(source.first, source.y).values
    leading = solve_offsets(source.shallow, source.y, components=recommended.PRETRAINED_COMPONENTS)
    tried["offsets of leading components"] = ones, leading.values
    told = {}
    for name, (weights, offsets) in tried.items():
        for ridge in RIDGES:
            head = fit_head(z, source.y, weights, offsets, ridge)
            told[name, ridge] = score(z_test, test.y, head), score(z, source.y, head)
    return told


def show(results: list[Found]) -> None:
    """Means over draws or seeds; after ±, the sample standard deviation of the paired differences."""
    print("| weights or offsets | " + " | ".join(f"ridge {ridge:g}" for ridge in RIDGES) + " |")
    print("|---" * (len(RIDGES) + 1) + "|")
    for name in dict.fromkeys(name for name, _ in results[0]):
        cells = []
        for ridge in RIDGES:
            tested, fitted = zip(*(found[name, ridge] for found in results), strict=True)
            gains = [value - found[NONE, ridge][0] for value, found in zip(tested, results, strict=True)]
            sign = "+" if name != NONE and mean(gains) >= 0 else ""
            told = sign + spread(tested if name == NONE else gains)
            cells.append(f"{told} (fitted {mean(fitted):.1f})".replace("-", "−"))
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", choices=("hidden", "target"))
    parser.add_argument("--recipe", default="pacs-unbalanced-flexible-5")
    parser.add_argument("--set", action="append", default=[], help="a setting of the run, as model.name=resnet50")
    parser.add_argument("--seeds", default="0", help="of the split")
    parser.add_argument("--draws", type=int, default=8, help="how often `hidden` draws what it hides, for every seed")
    parser.add_argument("--root", type=Path)
    arguments = parser.parse_args()
    results = []
    for seed in arguments.seeds.split(","):
        with_target = arguments.test == "target"
        session = open_session(arguments.recipe, int(seed), arguments.root, arguments.set, with_target)
        network = session.algorithm.network
        source = read_images(network, session.training_set.batches())
        if with_target:
            results.append(probe(source, read_images(network, session.target.epoch(0))))
        else:
            hidden = [hide(source.y, source.domain, draw) for draw in range(arguments.draws)]
            results += [probe(source.choose(~rows), source.choose(rows)) for rows in hidden]
    show(results)


if __name__ == "__main__":
    main()
