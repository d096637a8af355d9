"""Do weights still matter once every training image is fitted? Linear heads on a pretrained network, source only.

    python -m benchmarks.probe --root data --set model.name=resnet50 \\
      --set model.pretrained=data/resnet50-imagenet-caffe-fp16.safetensors

Of every class one of its smaller source domains is hidden, drawn anew several times; heads learn from the rest and are
tested on what was hidden, so that no target image is looked at. The stronger a head's ridge, the less of the training
images it can fit. Features are read once (ten minutes on one core for 2,600 images); heads and weights take as long.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.evidence import open_session
from benchmarks.known_contexts import make_independent
from stablenet.algorithms.stablenet import SHALLOW
from stablenet.models.taps import LAST
from stablenet.weighting import solve_dataset
from stablenet.weighting.dataset import PRETRAINED_PENALTY, RECOMMENDED_OVERRIDES

RIDGES = (1e-5, 1e-3, 1e-2, 1e-1)
STEPS = 150


@torch.no_grad()
def read_features(
    recipe: str, seed: int, root: Path | None, settings: list[str]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of all training images: the last layer (n, m), the first two stages pooled (n, k), labels and domains (n,)."""
    session = open_session(recipe, seed, root, settings)
    network = session.algorithm.network
    network.tap((LAST, *SHALLOW), detach=True)
    network.eval()
    rows = []
    for batch in session.training_set.batches():
        _, last, *shallow = network.forward_taps(batch.x)
        rows.append((last, torch.cat(shallow, 1), batch.y, batch.domain))
    last, shallow, y, domain = (torch.cat(column) for column in zip(*rows, strict=True))
    return last.float(), shallow.float(), y, domain


def hide(y: Tensor, domain: Tensor, draw: int) -> Tensor:
    """(n,) whether an image is hidden: of every class one of its domains, not the largest."""
    generator = torch.Generator().manual_seed(draw)
    hidden = torch.zeros_like(y, dtype=torch.bool)
    for label in y.unique():
        found: tuple[Tensor, Tensor] = domain[y == label].unique(return_counts=True)
        smaller = found[0][found[1].argsort(descending=True)[1:]]
        chosen = smaller[torch.randint(len(smaller), (), generator=generator)]
        hidden |= (y == label) & (domain == chosen)
    return hidden


def fit_head(z: Tensor, y: Tensor, weights: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """min 1/n Σ w_i·CE_i + ridge·‖A‖², from zero.   z: (n, m) standardized.   Returns A (m, C) and the offset (C,)."""
    classes = int(y.max()) + 1
    matrix = z.new_zeros(z.shape[1], classes, requires_grad=True)
    offset = z.new_zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([matrix, offset], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        losses = F.cross_entropy(z @ matrix + offset, y, reduction="none")
        value: Tensor = (weights * losses).mean() + ridge * matrix.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return matrix.detach(), offset.detach()


def score(z: Tensor, y: Tensor, head: tuple[Tensor, Tensor]) -> float:
    matrix, offset = head
    return 100 * float(((z @ matrix + offset).argmax(1) == y).float().mean())


def probe(
    last: Tensor, shallow: Tensor, y: Tensor, domain: Tensor, draw: int
) -> dict[tuple[str, float], tuple[float, float]]:
    """Accuracy on hidden and on training images, by weights and ridge."""
    hidden = hide(y, domain, draw)
    seen = ~hidden
    centre, scale = last[seen].mean(0), last[seen].std(0) + 1e-6
    z, z_hidden = ((last[rows] - centre) / scale for rows in (seen, hidden))
    firm, careful = RECOMMENDED_OVERRIDES["penalty"], PRETRAINED_PENALTY
    weights = {
        "ones": torch.ones(len(z)),
        f"known domains, penalty {firm}": make_independent(y[seen], domain[seen], firm),
        f"known domains, penalty {careful}": make_independent(y[seen], domain[seen], careful),
        f"`recommended`, penalty {firm}": solve_dataset(shallow[seen], y[seen], penalty=firm).weights,
        f"`recommended`, penalty {careful}": solve_dataset(shallow[seen], y[seen], penalty=careful).weights,
    }
    found = {}
    for name, w in weights.items():
        for ridge in RIDGES:
            head = fit_head(z, y[seen], w, ridge)
            found[name, ridge] = score(z_hidden, y[hidden], head), score(z, y[seen], head)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="pacs-unbalanced-flexible-5")
    parser.add_argument("--set", action="append", default=[], help="a setting of the run, as model.name=resnet50")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--root", type=Path)
    arguments = parser.parse_args()
    features = read_features(arguments.recipe, arguments.seed, arguments.root, arguments.set)
    draws = [probe(*features, draw) for draw in range(arguments.draws)]
    print("| weights | " + " | ".join(f"ridge {ridge:g}" for ridge in RIDGES) + " |")
    print("|---" * (len(RIDGES) + 1) + "|")
    for name in dict.fromkeys(name for name, _ in draws[0]):
        cells = []
        for ridge in RIDGES:
            hidden, seen = zip(*(draw[name, ridge] for draw in draws), strict=True)
            gains = [value - draw["ones", ridge][0] for value, draw in zip(hidden, draws, strict=True)]
            told = f"{mean(hidden):.1f}" if name == "ones" else f"{mean(gains):+.1f} ± {stdev(gains):.1f}"
            cells.append(f"{told} (fitted {mean(seen):.1f})".replace("-", "−"))
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
